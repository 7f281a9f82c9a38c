// sarama.
package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"meridian/clients/common"
)

var (
	admin   sarama.ClusterAdmin
	brokers = strings.Split(common.Bootstrap, ",")
)

func config() *sarama.Config {
	c := sarama.NewConfig()
	c.Version = sarama.V3_6_0_0
	c.Producer.Idempotent = true
	c.Producer.RequiredAcks = sarama.WaitForAll
	c.Producer.Return.Successes = true
	c.Producer.Retry.Max = 200
	c.Net.MaxOpenRequests = 1
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	c.Metadata.Retry.Max = 20
	if config := common.TLS(); config != nil {
		c.Net.TLS.Enable, c.Net.TLS.Config = true, config
	}
	if mechanism := common.Options["sasl.mechanism"]; mechanism != "" {
		c.Net.SASL.Enable, c.Net.SASL.Handshake = true, true
		c.Net.SASL.Mechanism = sarama.SASLMechanism(mechanism)
		c.Net.SASL.User, c.Net.SASL.Password = common.Options["sasl.username"], common.Options["sasl.password"]
		c.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &scramClient{} }
	}
	return c
}

func create(name string, partitions int) string {
	topic := common.Prefix + name
	detail := &sarama.TopicDetail{NumPartitions: int32(partitions), ReplicationFactor: common.Replicas}
	common.Must(admin.CreateTopic(topic, detail, false))
	common.Until("leaders", func() bool { return partitionCount(topic) == partitions })
	return topic
}

func partitionCount(topic string) int {
	time.Sleep(50 * time.Millisecond) // between two questions
	topics, err := admin.DescribeTopics([]string{topic})
	common.Must(err)
	count := 0
	for _, partition := range topics[0].Partitions {
		if partition.Err == sarama.ErrNoError && partition.Leader >= 0 {
			count++
		}
	}
	return count
}

func messages(topic string, from, to int) (all []*sarama.ProducerMessage) {
	for number := from; number < to; number++ {
		key, value := sarama.StringEncoder(fmt.Sprint(number)), sarama.StringEncoder(common.Value(number))
		all = append(all, &sarama.ProducerMessage{Topic: topic, Key: key, Value: value})
	}
	return all
}

func send(c *sarama.Config, topic string, from, to int) {
	writer, err := sarama.NewSyncProducer(brokers, c)
	common.Must(err)
	defer writer.Close()
	common.Must(writer.SendMessages(messages(topic, from, to)))
}

// member is one of a group; it reads and commits on its own.
type member struct {
	topic    string
	read     func(*sarama.ConsumerMessage)
	mutex    *sync.Mutex
	assigned int
	group    sarama.ConsumerGroup
	stop     context.CancelFunc
	done     chan struct{}
}

func (m *member) Setup(session sarama.ConsumerGroupSession) error {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.assigned = len(session.Claims()[m.topic])
	return nil
}

func (m *member) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		m.mutex.Lock()
		m.read(message)
		m.mutex.Unlock()
		session.MarkMessage(message, "")
	}
	return nil
}

func join(group, topic string, mutex *sync.Mutex, c *sarama.Config, read func(*sarama.ConsumerMessage)) *member {
	made, err := sarama.NewConsumerGroup(brokers, group, c)
	common.Must(err)
	ctx, stop := context.WithCancel(context.Background())
	m := &member{topic: topic, read: read, mutex: mutex, group: made, stop: stop, done: make(chan struct{})}
	go func() {
		defer close(m.done)
		for ctx.Err() == nil {
			if err := made.Consume(ctx, []string{topic}, m); err != nil {
				fmt.Println("consume:", err)
				time.Sleep(100 * time.Millisecond)
			}
		}
	}()
	return m
}

// close leaves the group; what was read is committed first.
func (m *member) close() {
	m.stop()
	<-m.done
	common.Must(m.group.Close())
}

func until(what string, mutex *sync.Mutex, condition func() bool) {
	common.Until(what, func() bool {
		time.Sleep(20 * time.Millisecond)
		mutex.Lock()
		defer mutex.Unlock()
		return condition()
	})
}

func readAll(topic string, count int, c *sarama.Config) (got []string) {
	var mutex sync.Mutex
	reader := join(common.Prefix+"read-"+topic, topic, &mutex, c, func(message *sarama.ConsumerMessage) {
		got = append(got, string(message.Value))
	})
	until(fmt.Sprint(count, " records of ", topic), &mutex, func() bool { return len(got) >= count })
	time.Sleep(300 * time.Millisecond) // more than there should be would come now
	reader.close()
	return got
}

func compression(codec string, compression sarama.CompressionCodec) string {
	topic, c := create(codec, 2), config()
	c.Producer.Compression = compression
	send(c, topic, 0, common.Records)
	common.ExpectAll(readAll(topic, common.Records, config()), common.Records)
	return fmt.Sprint(common.Records, " records")
}

func group() string {
	topic, got, mutex := create("group", 4), []string{}, &sync.Mutex{}
	keep := func(message *sarama.ConsumerMessage) { got = append(got, string(message.Value)) }
	one := join(common.Prefix+"group", topic, mutex, config(), keep)
	until("the first member has all", mutex, func() bool { return one.assigned == 4 })
	two := join(common.Prefix+"group", topic, mutex, config(), keep)
	until("two members share", mutex, func() bool { return one.assigned == 2 && two.assigned == 2 })
	send(config(), topic, 0, common.GroupRecords)
	until("both read", mutex, func() bool { return len(got) >= common.GroupRecords })
	two.close()
	until("the first member has all again", mutex, func() bool { return one.assigned == 4 })
	one.close()
	common.ExpectAll(got, common.GroupRecords)
	got = nil
	after := join(common.Prefix+"group", topic, mutex, config(), keep)
	until("the group goes on", mutex, func() bool { return after.assigned == 4 })
	time.Sleep(300 * time.Millisecond) // what was not committed would come now
	after.close()
	common.Expect(len(got) == 0, fmt.Sprint(len(got), " committed records were read again"))
	return "2 members, 4 partitions"
}

func transactions() string {
	topic, c := create("transactions", 1), config()
	c.Producer.Transaction.ID = common.Prefix + "t"
	c.Producer.Transaction.Retry.Max = 20
	writer, err := sarama.NewSyncProducer(brokers, c)
	common.Must(err)
	defer writer.Close()
	for _, one := range []struct {
		from, to int
		end      func() error
	}{{0, 10, writer.CommitTxn}, {10, 20, writer.AbortTxn}, {10, 15, writer.CommitTxn}} {
		common.Must(writer.BeginTxn())
		common.Must(writer.SendMessages(messages(topic, one.from, one.to)))
		common.Must(one.end())
	}
	committed := config()
	committed.Consumer.IsolationLevel = sarama.ReadCommitted
	common.ExpectAll(readAll(topic, 15, committed), 15)
	return "2 committed, 1 aborted"
}

func administer() string {
	topic, value := create("admin", 1), "123456"
	entries := map[string]sarama.IncrementalAlterConfigsEntry{
		"retention.ms": {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &value},
	}
	common.Must(admin.IncrementalAlterConfig(sarama.TopicResource, topic, entries, false))
	resource := sarama.ConfigResource{Type: sarama.TopicResource, Name: topic, ConfigNames: []string{"retention.ms"}}
	common.Until("the config is kept", func() bool {
		described, err := admin.DescribeConfig(resource)
		common.Must(err)
		return len(described) == 1 && described[0].Value == value
	})
	common.Must(admin.CreatePartitions(topic, 3, nil, false))
	common.Until("there are 3 partitions", func() bool { return partitionCount(topic) == 3 })
	cluster, _, err := admin.DescribeCluster()
	common.Must(err)
	common.Expect(len(cluster) > 0, "the cluster has nodes")
	_, err = admin.ListConsumerGroups()
	common.Must(err)
	common.Must(admin.DeleteTopic(topic))
	common.Until("the topic is gone", func() bool {
		topics, err := admin.ListTopics()
		common.Must(err)
		_, there := topics[topic]
		return !there
	})
	return "topics, partitions, configs, cluster, groups"
}

func kill() string {
	topic, kept, mutex := common.Prefix+"kill", common.NewKept(), &sync.Mutex{}
	reader := join(common.Prefix+"kill", topic, mutex, config(), func(message *sarama.ConsumerMessage) {
		kept.OnRead(message.Partition, message.Offset, message.Value)
	})
	writer, err := sarama.NewSyncProducer(brokers, config())
	common.Must(err)
	number := 0
	for deadline := time.Now().Add(common.Seconds); time.Now().Before(deadline); {
		batch := messages(topic, number, number+5)
		if err := writer.SendMessages(batch); err == nil {
			for one := range 5 {
				kept.OnAck(number + one)
			}
		} else {
			fmt.Println("produce:", err)
		}
		number += 5
		time.Sleep(10 * time.Millisecond)
	}
	common.Must(writer.Close())
	until("all is read", mutex, kept.IsComplete)
	reader.close()
	return kept.Verdict()
}

// queued is a member whose records wait to be polled.
type queued struct {
	*member
	waiting *[]*sarama.ConsumerMessage
}

func (q queued) Poll(told common.OnRead) {
	time.Sleep(10 * time.Millisecond)
	q.mutex.Lock()
	defer q.mutex.Unlock()
	for _, message := range *q.waiting {
		told(common.NumberOf(message.Value), message.Partition, message.Offset)
	}
	*q.waiting = nil
}

// Commit is done by the client every second, and when it closes.
func (q queued) Commit() error { return nil }

func (q queued) Owned() int {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	return q.assigned
}

// Close leaves, which fails while there is no coordinator: then the group misses the member in time.
func (q queued) Close() {
	q.stop()
	<-q.done
	if err := q.group.Close(); err != nil {
		fmt.Println("leave:", err)
	}
}

func queue(group string, c *sarama.Config) common.Member {
	waiting := &[]*sarama.ConsumerMessage{}
	read := func(message *sarama.ConsumerMessage) { *waiting = append(*waiting, message) }
	return queued{join(group, common.Prefix+common.Phase, &sync.Mutex{}, c, read), waiting}
}

func groupKill() string {
	writer, err := sarama.NewAsyncProducer(brokers, config())
	common.Must(err)
	acks := sync.WaitGroup{}
	acks.Go(func() {
		for message := range writer.Successes() {
			message.Metadata.(func())()
		}
	})
	acks.Go(func() {
		for failure := range writer.Errors() {
			fmt.Println("produce:", failure)
		}
	})
	write := func(number int, told func()) {
		value := sarama.StringEncoder(common.Value(number))
		writer.Input() <- &sarama.ProducerMessage{Topic: common.Prefix + common.Phase, Value: value, Metadata: told}
	}
	flush := func() {
		writer.AsyncClose()
		acks.Wait()
	}
	return common.GroupKill(func() common.Member { return queue(common.Name, config()) }, write, flush)
}

// producer with an id.
type producer struct{ sarama.SyncProducer }

func (p producer) Begin()  { common.Must(p.BeginTxn()) }
func (p producer) Commit() { common.Must(p.CommitTxn()) }
func (p producer) Abort()  { common.Must(p.AbortTxn()) }
func (p producer) Close()  { common.Must(p.SyncProducer.Close()) }

func (p producer) Send(first, partitions int) {
	all := []*sarama.ProducerMessage{}
	for to := range partitions {
		value := sarama.StringEncoder(common.Value(first + to))
		topic := common.Prefix + common.Phase
		all = append(all, &sarama.ProducerMessage{Topic: topic, Partition: int32(to), Value: value})
	}
	common.Must(p.SendMessages(all))
}

func transactionsKill() string {
	start := func() common.Producer {
		c := config()
		c.Producer.Transaction.ID = common.Name
		c.Producer.Transaction.Retry.Max = 200
		c.Producer.Partitioner = sarama.NewManualPartitioner
		writer, err := sarama.NewSyncProducer(brokers, c)
		common.Must(err)
		return producer{writer}
	}
	committed := config()
	committed.Consumer.IsolationLevel = sarama.ReadCommitted
	reader := queue(common.Name+"-read", committed)
	defer reader.Close()
	return common.TransactionsKill(start, reader.Poll)
}

func steps(topic string) []common.Step {
	value, group := "123456", common.Prefix+"group"
	resource := sarama.ConfigResource{Type: sarama.TopicResource, Name: topic, ConfigNames: []string{"retention.ms"}}
	exists := func() bool {
		topics, err := admin.ListTopics()
		common.Must(err)
		_, there := topics[topic]
		return there
	}
	return []common.Step{
		{What: "create", Holds: exists, Act: func() {
			common.Must(admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: common.Replicas}, false))
		}},
		{What: "describe", Holds: func() bool { return partitionCount(topic) == 1 }},
		{What: "alter the config", Holds: func() bool {
			described, err := admin.DescribeConfig(resource)
			common.Must(err)
			return len(described) == 1 && described[0].Value == value
		}, Act: func() {
			set := sarama.IncrementalAlterConfigsEntry{Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &value}
			entries := map[string]sarama.IncrementalAlterConfigsEntry{"retention.ms": set}
			common.Must(admin.IncrementalAlterConfig(sarama.TopicResource, topic, entries, false))
		}},
		{What: "list groups", Holds: func() bool {
			groups, err := admin.ListConsumerGroups()
			common.Must(err)
			_, there := groups[group]
			return there
		}},
		{What: "describe the group", Holds: func() bool {
			// A new one: sarama goes on asking the coordinator that a group once had.
			asking, err := sarama.NewClusterAdmin(brokers, config())
			common.Must(err)
			defer asking.Close()
			described, err := asking.DescribeConsumerGroups([]string{group})
			common.Must(err)
			return len(described) == 1 && described[0].State == "Empty"
		}},
		{What: "delete", Holds: func() bool { return !exists() }, Act: func() { common.Must(admin.DeleteTopic(topic)) }},
	}
}

func main() {
	common.Version("github.com/IBM/sarama")
	var err error
	admin, err = sarama.NewClusterAdmin(brokers, config())
	common.Must(err)
	switch common.Phase {
	case "steady":
		common.Check("none", func() string { return compression("none", sarama.CompressionNone) })
		common.Check("gzip", func() string { return compression("gzip", sarama.CompressionGZIP) })
		common.Check("snappy", func() string { return compression("snappy", sarama.CompressionSnappy) })
		common.Check("lz4", func() string { return compression("lz4", sarama.CompressionLZ4) })
		common.Check("zstd", func() string { return compression("zstd", sarama.CompressionZSTD) })
		common.Check("group", group)
		common.Lacking("consumer", "sarama has classic groups only")
		common.Check("admin", administer)
		common.Check("transactions", transactions)
	case "kill":
		common.Check(common.Phase, kill)
	case "group-kill":
		common.Check(common.Phase, groupKill)
	case "consumer-kill":
		common.Lacking(common.Phase, "sarama has classic groups only")
	case "transactions-kill":
		common.Check(common.Phase, transactionsKill)
	case "admin-kill":
		common.Check(common.Phase, func() string { return common.AdminKill(steps) })
	}
	common.Must(admin.Close())
}
