// Package common is what the Go clients share: the records, the checks' frame, and how results are told.
package common

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// How many records a check sends.
const (
	Records      = 2000
	GroupRecords = 400
	within       = 40 * time.Second
)

// What the environment asks for.
var (
	Bootstrap = os.Getenv("BOOTSTRAP")
	Prefix    = os.Getenv("PREFIX")
	Phase     = os.Getenv("PHASE")
	Name      = os.Getenv("NAME")
	Seconds   = seconds()
	Options   = options()
	Replicas  = replicas()
)

// options of how to connect, by librdkafka's names.
func options() map[string]string {
	all := map[string]string{}
	for _, line := range strings.Split(os.Getenv("OPTIONS"), "\n") {
		if name, value, found := strings.Cut(line, "="); found {
			all[name] = value
		}
	}
	return all
}

// TLS as the options ask for it; nil without.
func TLS() *tls.Config {
	file, found := Options["ssl.ca.location"]
	if !found {
		return nil
	}
	text, err := os.ReadFile(file)
	Must(err)
	pool := x509.NewCertPool()
	Expect(pool.AppendCertsFromPEM(text), file)
	return &tls.Config{RootCAs: pool}
}

func replicas() int16 {
	count, err := strconv.Atoi(os.Getenv("REPLICAS"))
	if err != nil {
		count = 3
	}
	return int16(count)
}

func seconds() time.Duration {
	count, err := strconv.Atoi(os.Getenv("DURATION"))
	if err != nil {
		count = 20
	}
	return time.Duration(count) * time.Second
}

// Value of record number: the number, and something that compresses.
func Value(number int) string {
	return fmt.Sprintf("%08d %s", number, strings.Repeat("abcdefghij", number%30))
}

// NumberOf a record with this value.
func NumberOf(value []byte) int {
	number, err := strconv.Atoi(string(value[:8]))
	Must(err)
	return number
}

// Version prints the version of the module that the program is about.
func Version(module string) {
	built, _ := debug.ReadBuildInfo()
	for _, dependency := range built.Deps {
		if dependency.Path == module {
			fmt.Println("VERSION", strings.TrimPrefix(dependency.Version, "v"))
		}
	}
}

// Check runs one check and tells what came of it.
func Check(name string, body func() string) {
	fmt.Println("RESULT", name, outcome(body))
}

// Lacking tells that the client has no such thing, and why.
func Lacking(name, reason string) {
	fmt.Println("RESULT", name, "none", reason)
}

func outcome(body func() string) (told string) {
	defer func() {
		if failure := recover(); failure != nil {
			debug.PrintStack()
			told = "fail " + strings.Join(strings.Fields(fmt.Sprint(failure)), " ")
		}
	}()
	return "ok " + body()
}

// Expect ends the check unless the condition holds.
func Expect(condition bool, words string) {
	if !condition {
		panic(words)
	}
}

// Must ends the check on an error.
func Must(err error) {
	if err != nil {
		panic(err)
	}
}

// Until waits for a condition, which does the waiting itself by polling a client.
func Until(what string, condition func() bool) {
	UntilWithin(within, what, condition)
}

// UntilWithin waits for as long as it is told to.
func UntilWithin(within time.Duration, what string, condition func() bool) {
	deadline := time.Now().Add(within)
	for !condition() {
		Expect(time.Now().Before(deadline), fmt.Sprint("not within ", within, ": ", what))
	}
}

// ExpectAll ends the check unless got are the values 0 to count, each once.
func ExpectAll(got []string, count int) {
	sent := make([]string, count)
	for number := range sent {
		sent[number] = Value(number)
	}
	slices.Sort(got)
	Expect(slices.Equal(got, sent), fmt.Sprint(len(got), " of ", count, " came back as sent"))
}

// Kept is what was acknowledged and what was read while nodes were killed.
type Kept struct {
	mutex  sync.Mutex
	acked  map[int]bool
	places map[int]map[string]bool
}

// NewKept begins with nothing.
func NewKept() *Kept {
	return &Kept{acked: map[int]bool{}, places: map[int]map[string]bool{}}
}

// OnAck notes that a record was acknowledged.
func (k *Kept) OnAck(number int) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	k.acked[number] = true
}

// OnRead notes where a record lies.
func (k *Kept) OnRead(partition int32, offset int64, value []byte) {
	number := NumberOf(value)
	k.mutex.Lock()
	defer k.mutex.Unlock()
	if k.places[number] == nil {
		k.places[number] = map[string]bool{}
	}
	k.places[number][fmt.Sprint(partition, "/", offset)] = true
}

// IsComplete says whether all that was acknowledged was read.
func (k *Kept) IsComplete() bool {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	for number := range k.acked {
		if k.places[number] == nil {
			return false
		}
	}
	return true
}

// Verdict of an idempotent producer: nothing lost, nothing twice.
func (k *Kept) Verdict() string {
	Expect(len(k.acked) > 0, "nothing was acknowledged")
	Expect(k.IsComplete(), "acknowledged records were not read")
	doubled := 0
	for _, places := range k.places {
		if len(places) > 1 {
			doubled++
		}
	}
	Expect(doubled == 0, fmt.Sprint(doubled, " records are in the log twice"))
	return fmt.Sprint(len(k.acked), " records")
}
