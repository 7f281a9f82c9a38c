package common

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// OnRead is told of each record: its number, its partition and its offset.
type OnRead func(number int, partition int32, offset int64)

// Member of a group, whose calls do not wait for long.
type Member interface {
	Poll(told OnRead)
	Commit() error
	Owned() int
	Close()
}

// Producer with an id; what fails panics.
type Producer interface {
	Begin()
	// Send writes a record to each partition: its number is first and the partition's. It waits until all are acknowledged.
	Send(first, partitions int)
	Commit()
	Abort()
	Close()
}

// Step of an administrator: what it is, whether it holds, and what to do for it, if that is up to it. Either may fail for a while.
type Step struct {
	What  string
	Holds func() bool
	Act   func()
}

const partitions = 9

var telling sync.Mutex

// tell prints a line that the driver judges by.
func tell(words ...any) {
	telling.Lock()
	defer telling.Unlock()
	fmt.Println(words...)
}

func signalled(word string) bool {
	_, err := os.Stat(filepath.Join(os.Getenv("SIGNALS"), word))
	return err == nil
}

// try tells of what fails.
func try(what string, body func()) (done bool) {
	defer func() {
		if failure := recover(); failure != nil {
			tell(what+":", failure)
		}
	}()
	body()
	return true
}

// GroupKill lets two members share four partitions, until one leaves, while nodes are killed.
func GroupKill(join func() Member, write func(number int, told func()), flush func()) string {
	kept := NewKept()
	members := []Member{join(), join()}
	turn := func() {
		for _, member := range members {
			member.Poll(func(number int, partition int32, offset int64) {
				kept.OnRead(partition, offset, []byte(Value(number)))
				tell("READ", number, partition, offset)
			})
		}
	}
	Until("two members share", func() bool {
		turn()
		return members[0].Owned() == 2 && members[1].Owned() == 2
	})
	tell("READY")
	commit := func(member Member) bool {
		return try("commit", func() { Must(member.Commit()) })
	}
	for number := 0; !signalled("stop"); number++ {
		write(number, func() {
			kept.OnAck(number)
			tell("ACKED", number)
		})
		turn()
		if number%20 == 0 {
			commit(members[number/20%len(members)])
		}
		if len(members) == 2 && signalled("leave") {
			members[1].Close()
			turn() // what it had read when it left
			members = members[:1]
			tell("LEFT")
		}
	}
	flush()
	one := members[0]
	// A member whose farewell found no coordinator is missed after 45 s.
	UntilWithin(2*within, "one member has and has read all", func() bool {
		turn()
		return one.Owned() == 4 && kept.IsComplete()
	})
	Until("all is committed", func() bool { return commit(one) })
	one.Close()
	after := join()
	again := func(number int, _ int32, _ int64) { tell("AGAIN", number) }
	Until("the group goes on", func() bool { after.Poll(again); return after.Owned() == 4 })
	after.Poll(again)
	after.Close()
	return kept.Verdict()
}

// TransactionsKill writes transactions of a record in each of nine partitions, every fifth aborted, while nodes are killed.
// After an error there is a new producer. It reads what is committed then.
func TransactionsKill(start func() Producer, read func(OnRead)) string {
	var producer Producer
	number := 0
	for outcome := ""; outcome != "COMMITTED" || !signalled("stop"); number++ {
		outcome = "ABORTED"
		done := try("transaction", func() {
			if producer == nil {
				producer = start()
			}
			producer.Begin()
			producer.Send(number*10, partitions)
			if number%5 == 4 {
				producer.Abort()
			} else {
				outcome = "UNKNOWN"
				producer.Commit()
				outcome = "COMMITTED"
			}
		})
		if !done && producer != nil {
			try("close", producer.Close)
			producer = nil
		}
		tell(outcome, number)
		if number == 4 {
			tell("READY")
		}
	}
	producer.Close()
	// Each partition has a record of the last one: what comes before it has been read then.
	last := map[int]bool{}
	Until("the last transaction", func() bool {
		read(func(one int, partition int32, offset int64) {
			if one >= (number-1)*10 {
				last[one] = true
			}
			tell("READ", one, partition, offset)
		})
		return len(last) == partitions
	})
	return fmt.Sprint(number, " transactions")
}

// AdminKill takes an administrator's steps in rounds while nodes are killed.
func AdminKill(steps func(topic string) []Step) string {
	var longest time.Duration
	for round := 0; ; round++ {
		isLast := signalled("stop")
		for _, step := range steps(fmt.Sprint(Name, "-", round)) {
			began := time.Now()
			Until(step.What, func() bool {
				holds := false
				try(step.What, func() {
					if holds = step.Holds(); !holds && step.Act != nil {
						step.Act()
					}
				})
				if !holds {
					time.Sleep(100 * time.Millisecond)
				}
				return holds
			})
			longest = max(longest, time.Since(began))
		}
		if round == 0 {
			tell("READY")
		}
		if isLast {
			return fmt.Sprintf("%d rounds, a step took %.1f s at most", round+1, longest.Seconds())
		}
	}
}
