// franz-go.
package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"meridian/clients/common"
)

var admin *kadm.Client

func client(options ...kgo.Opt) *kgo.Client {
	if config := common.TLS(); config != nil {
		options = append(options, kgo.DialTLSConfig(config))
	}
	user, password := common.Options["sasl.username"], common.Options["sasl.password"]
	switch common.Options["sasl.mechanism"] {
	case "PLAIN":
		options = append(options, kgo.SASL(plain.Auth{User: user, Pass: password}.AsMechanism()))
	case "SCRAM-SHA-512":
		options = append(options, kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha512Mechanism()))
	}
	options = append(options, kgo.SeedBrokers(strings.Split(common.Bootstrap, ",")...))
	made, err := kgo.NewClient(options...)
	common.Must(err)
	return made
}

func within(seconds int) context.Context {
	ctx, _ := context.WithTimeout(context.Background(), time.Duration(seconds)*time.Second)
	return ctx
}

func create(name string, partitions int) string {
	topic := common.Prefix + name
	_, err := admin.CreateTopic(within(30), int32(partitions), common.Replicas, nil, topic)
	common.Must(err)
	common.Until("leaders", func() bool { return partitionCount(topic) == partitions })
	return topic
}

func partitionCount(topic string) int {
	time.Sleep(50 * time.Millisecond) // between two questions
	topics, err := admin.ListTopics(within(10), topic)
	common.Must(err)
	count := 0
	for _, partition := range topics[topic].Partitions {
		if partition.Err == nil && partition.Leader >= 0 {
			count++
		}
	}
	return count
}

func record(topic string, number int) *kgo.Record {
	return &kgo.Record{Topic: topic, Key: []byte(fmt.Sprint(number)), Value: []byte(common.Value(number))}
}

func records(topic string, from, to int) (all []*kgo.Record) {
	for number := from; number < to; number++ {
		all = append(all, record(topic, number))
	}
	return all
}

func consumer(group, topic string, options ...kgo.Opt) *kgo.Client {
	options = append(options, kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit())
	return client(options...)
}

func poll(reader *kgo.Client, read func(*kgo.Record)) {
	ctx, done := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer done()
	reader.PollFetches(ctx).EachRecord(read)
}

func readAll(topic string, count int, options ...kgo.Opt) (got []string) {
	reader := consumer(common.Prefix+"read-"+topic, topic, options...)
	defer reader.Close()
	keep := func(record *kgo.Record) { got = append(got, string(record.Value)) }
	common.Until(fmt.Sprint(count, " records of ", topic), func() bool { poll(reader, keep); return len(got) >= count })
	poll(reader, keep)
	return got
}

func compression(codec string, compression kgo.CompressionCodec) string {
	topic := create(codec, 2)
	writer := client(kgo.ProducerBatchCompression(compression), kgo.ProducerLinger(20*time.Millisecond))
	defer writer.Close()
	common.Must(writer.ProduceSync(within(30), records(topic, 0, common.Records)...).FirstErr())
	common.ExpectAll(readAll(topic, common.Records), common.Records)
	return fmt.Sprint(common.Records, " records")
}

// member is one of a group, and what it is assigned.
type member struct {
	*kgo.Client
	mutex    sync.Mutex
	assigned int
}

func join(group, topic string, options ...kgo.Opt) *member {
	m := &member{}
	change := func(sign int) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
			m.mutex.Lock()
			defer m.mutex.Unlock()
			m.assigned += sign * len(partitions[topic])
		}
	}
	options = append(options, kgo.OnPartitionsAssigned(change(1)), kgo.OnPartitionsRevoked(change(-1)),
		kgo.OnPartitionsLost(change(-1)))
	m.Client = consumer(group, topic, options...)
	return m
}

func group(name string, options ...kgo.Opt) string {
	topic, got := create(name, 4), []string{}
	keep := func(record *kgo.Record) { got = append(got, string(record.Value)) }
	shared := func(want int, members ...*member) bool {
		all := true
		for _, m := range members {
			poll(m.Client, keep)
			m.mutex.Lock()
			all = all && m.assigned == want
			m.mutex.Unlock()
		}
		return all
	}
	one := join(common.Prefix+name, topic, options...)
	common.Until("the first member has all", func() bool { return shared(4, one) })
	two := join(common.Prefix+name, topic, options...)
	common.Until("two members share", func() bool { return shared(2, one, two) })
	writer := client()
	common.Must(writer.ProduceSync(within(30), records(topic, 0, common.GroupRecords)...).FirstErr())
	writer.Close()
	common.Until("both read", func() bool { return shared(2, one, two) && len(got) >= common.GroupRecords })
	common.Must(one.CommitUncommittedOffsets(within(30)))
	common.Must(two.CommitUncommittedOffsets(within(30)))
	two.Close()
	common.Until("the first member has all again", func() bool { return shared(4, one) })
	one.Close()
	common.ExpectAll(got, common.GroupRecords)
	got = nil
	after := join(common.Prefix+name, topic, options...)
	common.Until("the group goes on", func() bool { return shared(4, after) })
	poll(after.Client, keep)
	after.Close()
	common.Expect(len(got) == 0, fmt.Sprint(len(got), " committed records were read again"))
	return "2 members, 4 partitions"
}

func transactions() string {
	topic := create("transactions", 1)
	writer := client(kgo.TransactionalID(common.Prefix + "t"))
	defer writer.Close()
	for _, one := range []struct {
		from, to int
		end      kgo.TransactionEndTry
	}{{0, 10, kgo.TryCommit}, {10, 20, kgo.TryAbort}, {10, 15, kgo.TryCommit}} {
		common.Must(writer.BeginTransaction())
		common.Must(writer.ProduceSync(within(30), records(topic, one.from, one.to)...).FirstErr())
		common.Must(writer.EndTransaction(within(30), one.end))
	}
	common.ExpectAll(readAll(topic, 15, kgo.FetchIsolationLevel(kgo.ReadCommitted())), 15)
	return "2 committed, 1 aborted"
}

func administer() string {
	topic, value := create("admin", 1), "123456"
	altered, err := admin.AlterTopicConfigs(within(30), []kadm.AlterConfig{{Name: "retention.ms", Value: &value}}, topic)
	common.Must(err)
	common.Must(altered[0].Err)
	common.Until("the config is kept", func() bool {
		described, err := admin.DescribeTopicConfigs(within(30), topic)
		common.Must(err)
		return slices.ContainsFunc(described[0].Configs, func(config kadm.Config) bool {
			return config.Key == "retention.ms" && config.MaybeValue() == value
		})
	})
	_, err = admin.UpdatePartitions(within(30), 3, topic)
	common.Must(err)
	common.Until("there are 3 partitions", func() bool { return partitionCount(topic) == 3 })
	ends, err := admin.ListEndOffsets(within(30), topic)
	common.Must(err)
	end, _ := ends.Lookup(topic, 0)
	common.Expect(end.Err == nil && end.Offset == 0, "an empty partition ends at 0")
	brokers, err := admin.ListBrokers(within(30))
	common.Must(err)
	common.Expect(len(brokers) > 0, "the cluster has nodes")
	_, err = admin.ListGroups(within(30))
	common.Must(err)
	_, err = admin.DeleteTopics(within(30), topic)
	common.Must(err)
	common.Until("the topic is gone", func() bool {
		topics, err := admin.ListTopics(within(10))
		common.Must(err)
		return !topics.Has(topic)
	})
	return "topics, partitions, configs, offsets, cluster, groups"
}

func kill() string {
	topic, kept := common.Prefix+"kill", common.NewKept()
	writer, reader := client(kgo.ProducerLinger(5*time.Millisecond)), consumer(common.Prefix+"kill", topic)
	defer writer.Close()
	defer reader.Close()
	read := func() {
		poll(reader, func(record *kgo.Record) { kept.OnRead(record.Partition, record.Offset, record.Value) })
	}
	number := 0
	for deadline := time.Now().Add(common.Seconds); time.Now().Before(deadline); {
		for range 20 {
			one := number
			writer.Produce(context.Background(), &kgo.Record{Topic: topic, Value: []byte(common.Value(one))},
				func(_ *kgo.Record, err error) {
					if err == nil {
						kept.OnAck(one)
					}
				})
			number++
		}
		read()
	}
	common.Must(writer.Flush(within(60)))
	common.Until("all is read", func() bool { read(); return kept.IsComplete() })
	return kept.Verdict()
}

// Owned says how many partitions the member has.
func (m *member) Owned() int {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return m.assigned
}

// Poll reads for a moment.
func (m *member) Poll(told common.OnRead) {
	ctx, done := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer done()
	m.PollFetches(ctx).EachRecord(func(record *kgo.Record) {
		told(common.NumberOf(record.Value), record.Partition, record.Offset)
	})
}

// Commit what was polled.
func (m *member) Commit() error { return m.CommitUncommittedOffsets(within(10)) }

func groupKill(options ...kgo.Opt) string {
	topic, writer := common.Prefix+common.Phase, client()
	defer writer.Close()
	write := func(number int, told func()) {
		one := &kgo.Record{Topic: topic, Value: []byte(common.Value(number))}
		writer.Produce(context.Background(), one, func(_ *kgo.Record, err error) {
			if err == nil {
				told()
			}
		})
	}
	member := func() common.Member { return join(common.Name, topic, options...) }
	return common.GroupKill(member, write, func() { common.Must(writer.Flush(within(40))) })
}

// producer with an id.
type producer struct{ *kgo.Client }

func (p producer) Begin()  { common.Must(p.BeginTransaction()) }
func (p producer) Commit() { common.Must(p.EndTransaction(within(40), kgo.TryCommit)) }
func (p producer) Abort()  { common.Must(p.EndTransaction(within(40), kgo.TryAbort)) }
func (p producer) Close()  { p.Client.Close() }

func (p producer) Send(first, partitions int) {
	all := []*kgo.Record{}
	for to := range partitions {
		value := []byte(common.Value(first + to))
		all = append(all, &kgo.Record{Topic: common.Prefix + common.Phase, Partition: int32(to), Value: value})
	}
	common.Must(p.ProduceSync(within(40), all...).FirstErr())
}

func transactionsKill() string {
	start := func() common.Producer {
		return producer{client(kgo.TransactionalID(common.Name), kgo.RecordPartitioner(kgo.ManualPartitioner()))}
	}
	topic := common.Prefix + common.Phase
	reader := join(common.Name+"-read", topic, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	defer reader.Close()
	return common.TransactionsKill(start, reader.Poll)
}

func steps(topic string) []common.Step {
	value, group := "123456", common.Prefix+"group"
	exists := func() bool {
		topics, err := admin.ListTopics(within(10))
		common.Must(err)
		return topics.Has(topic)
	}
	return []common.Step{
		{What: "create", Holds: exists, Act: func() {
			_, err := admin.CreateTopic(within(10), 1, common.Replicas, nil, topic)
			common.Must(err)
		}},
		{What: "describe", Holds: func() bool { return partitionCount(topic) == 1 }},
		{What: "alter the config", Holds: func() bool {
			described, err := admin.DescribeTopicConfigs(within(10), topic)
			common.Must(err)
			return slices.ContainsFunc(described[0].Configs, func(config kadm.Config) bool {
				return config.Key == "retention.ms" && config.MaybeValue() == value
			})
		}, Act: func() {
			change := []kadm.AlterConfig{{Name: "retention.ms", Value: &value}}
			altered, err := admin.AlterTopicConfigs(within(10), change, topic)
			common.Must(err)
			common.Must(altered[0].Err)
		}},
		{What: "list groups", Holds: func() bool {
			groups, err := admin.ListGroups(within(10))
			common.Must(err)
			return slices.Contains(groups.Groups(), group)
		}},
		{What: "describe the group", Holds: func() bool {
			described, err := admin.DescribeGroups(within(10), group)
			common.Must(err)
			return described[group].State == "Empty"
		}},
		{What: "delete", Holds: func() bool { return !exists() }, Act: func() {
			_, err := admin.DeleteTopics(within(10), topic)
			common.Must(err)
		}},
	}
}

func main() {
	common.Version("github.com/twmb/franz-go")
	asking := client()
	admin = kadm.NewClient(asking)
	nextGeneration := []kgo.Opt{kgo.ServerSideBalancer(), kgo.Balancers(kgo.RangeBalancer())}
	switch common.Phase {
	case "steady":
		common.Check("none", func() string { return compression("none", kgo.NoCompression()) })
		common.Check("gzip", func() string { return compression("gzip", kgo.GzipCompression()) })
		common.Check("snappy", func() string { return compression("snappy", kgo.SnappyCompression()) })
		common.Check("lz4", func() string { return compression("lz4", kgo.Lz4Compression()) })
		common.Check("zstd", func() string { return compression("zstd", kgo.ZstdCompression()) })
		common.Check("group", func() string { return group("group") })
		common.Check("consumer", func() string { return group("consumer", nextGeneration...) })
		common.Check("admin", administer)
		common.Check("transactions", transactions)
	case "kill":
		common.Check(common.Phase, kill)
	case "group-kill":
		common.Check(common.Phase, func() string { return groupKill(kgo.SessionTimeout(10 * time.Second)) })
	case "consumer-kill":
		common.Check(common.Phase, func() string { return groupKill(nextGeneration...) })
	case "transactions-kill":
		common.Check(common.Phase, transactionsKill)
	case "admin-kill":
		common.Check(common.Phase, func() string { return common.AdminKill(steps) })
	}
	asking.Close()
}
