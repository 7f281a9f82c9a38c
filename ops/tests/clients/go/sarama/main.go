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
	return c
}

func create(name string, partitions int) string {
	topic := common.Prefix + name
	detail := &sarama.TopicDetail{NumPartitions: int32(partitions), ReplicationFactor: 3}
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
	made, err := sarama.NewConsumerGroup(brokers, common.Prefix+group, c)
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
	reader := join("read-"+topic, topic, &mutex, c, func(message *sarama.ConsumerMessage) {
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
	one := join("group", topic, mutex, config(), keep)
	until("the first member has all", mutex, func() bool { return one.assigned == 4 })
	two := join("group", topic, mutex, config(), keep)
	until("two members share", mutex, func() bool { return one.assigned == 2 && two.assigned == 2 })
	send(config(), topic, 0, common.GroupRecords)
	until("both read", mutex, func() bool { return len(got) >= common.GroupRecords })
	two.close()
	until("the first member has all again", mutex, func() bool { return one.assigned == 4 })
	one.close()
	common.ExpectAll(got, common.GroupRecords)
	got = nil
	after := join("group", topic, mutex, config(), keep)
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
	reader := join("kill", topic, mutex, config(), func(message *sarama.ConsumerMessage) {
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

func main() {
	common.Version("github.com/IBM/sarama")
	var err error
	admin, err = sarama.NewClusterAdmin(brokers, config())
	common.Must(err)
	if common.IsSteady {
		common.Check("none", func() string { return compression("none", sarama.CompressionNone) })
		common.Check("gzip", func() string { return compression("gzip", sarama.CompressionGZIP) })
		common.Check("snappy", func() string { return compression("snappy", sarama.CompressionSnappy) })
		common.Check("lz4", func() string { return compression("lz4", sarama.CompressionLZ4) })
		common.Check("zstd", func() string { return compression("zstd", sarama.CompressionZSTD) })
		common.Check("group", group)
		fmt.Println("RESULT consumer none")
		common.Check("admin", administer)
		common.Check("transactions", transactions)
	} else {
		common.Check("kill", kill)
	}
	common.Must(admin.Close())
}
