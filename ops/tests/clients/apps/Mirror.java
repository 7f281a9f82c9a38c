import java.nio.file.*;
import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * MirrorMaker 2, exactly-once on, from Apache Kafka to Meridian and back, while leaders are killed here and MirrorMaker itself.
 *
 * <pre>
 *   Apache Kafka   there ------> kafka.there   Meridian
 *                  meridian.back <------ back
 * </pre>
 * Each partition of the copies must hold the records of its original: each once, in order. Positions of a group follow.
 */
public final class Mirror {
    static final String THERE = Lab.PREFIX + "there";
    static final String BACK = Lab.PREFIX + "back";
    static final String GROUP = Lab.PREFIX + "followed";
    static final int RECORDS_PER_SECOND = 100;
    static final int PARTITIONS = 3;
    static final int PORT = Integer.parseInt(System.getenv("PORT"));
    static final String KAFKA = Apache.BOOTSTRAP;

    public static void main(String[] arguments) throws Exception {
        Lab.version();
        Lab.check("Apache Kafka to Meridian and back, exactly-once on", Mirror::run);
        Lab.exit();
    }

    static String run() throws Exception {
        Apache.start(Map.of());
        try (var here = Lab.admin(Lab.BOOTSTRAP); var kafka = Lab.admin(KAFKA);
                var toKafka = Lab.producer(KAFKA); var toMeridian = Lab.producer(Lab.BOOTSTRAP)) {
            Lab.create(kafka, THERE, PARTITIONS, Map.of("retention.ms", "172800000"));
            Lab.create(here, BACK, PARTITIONS, Map.of("retention.ms", "172800000"));
            Process[] mirror = {startMirror()};
            Lab.until("both mirrors are there", () -> here.listTopics().names().get().contains("kafka." + THERE)
                    && kafka.listTopics().names().get().contains("meridian." + BACK));
            int[] kills = {0};
            Killer.Target process = () -> {
                if (kills[0]++ > 0) {
                    return Killer.NOTHING;
                }
                Lab.kill(mirror[0]);
                mirror[0] = startMirror();
                return Killer.DONE;
            };
            int count;
            String told;
            try (Killer killer = new Killer(here)) {
                killer.leadersOf(BACK, "kafka." + THERE, "mm2-offsets.kafka.internal", "__transaction_state");
                killer.target("MirrorMaker", process).start();
                count = Lab.write(toKafka, RECORDS_PER_SECOND, Duration.ofSeconds(Lab.DURATION_S), number -> {
                    toMeridian.send(record(BACK, number), (placed, error) -> Lab.expect(error == null, "" + error));
                    return record(THERE, number);
                });
                toMeridian.flush();
                killer.close();
                told = killer.told();
            }
            commitHalf(count);
            expectCopy(Lab.BOOTSTRAP, "kafka." + THERE, count);
            expectCopy(KAFKA, "meridian." + BACK, count);
            expectConfig(kafka, here);
            long position = expectPosition(here, count);
            return count + " records each way: each in its partition once and in order; configs and the group's position followed ("
                    + position + "); " + told;
        }
    }

    static ProducerRecord<String, String> record(String topic, int number) {
        return new ProducerRecord<>(topic, number % PARTITIONS, "" + number, "record " + number);
    }

    static void expectCopy(String bootstrap, String topic, int count) throws Exception {
        int[] next = new int[PARTITIONS];
        int[] got = {0};
        for (int partition = 0; partition < PARTITIONS; partition++) {
            next[partition] = partition;
        }
        try (var reader = Lab.reader(bootstrap, topic, new StringDeserializer())) {
            Lab.Condition more = () -> {
                for (ConsumerRecord<String, String> record : reader.poll(Duration.ofMillis(200))) {
                    String due = "record " + next[record.partition()];
                    Lab.expect(record.value().equals(due), topic + ": " + record.value() + " where " + due + " is due");
                    next[record.partition()] += PARTITIONS;
                    got[0]++;
                }
                return got[0] >= count;
            };
            Lab.until(topic + " has all", more);
            for (int i = 0; i < 5; i++) {
                more.holds();
            }
        }
        Lab.expect(got[0] == count, topic + " has " + got[0] + " of " + count + " records");
    }

    static Map<String, Object> group(String bootstrap) {
        return Map.of("bootstrap.servers", bootstrap, "group.id", GROUP, "enable.auto.commit", false,
                "key.deserializer", StringDeserializer.class, "value.deserializer", StringDeserializer.class);
    }

    /** A group on Apache Kafka has read half of the first partition. */
    static void commitHalf(int count) {
        try (var consumer = new KafkaConsumer<String, String>(group(KAFKA))) {
            TopicPartition partition = new TopicPartition(THERE, 0);
            consumer.assign(List.of(partition));
            consumer.commitSync(Map.of(partition, new OffsetAndMetadata(count / PARTITIONS / 2)));
        }
    }

    /** Its position here: never later, so that nothing is skipped, and not at the beginning. */
    static long expectPosition(Admin here, int count) throws Exception {
        TopicPartition partition = new TopicPartition("kafka." + THERE, 0);
        OffsetAndMetadata[] position = {null};
        Lab.until("the position of the group follows", () -> {
            position[0] = here.listConsumerGroupOffsets(GROUP).partitionsToOffsetAndMetadata().get().get(partition);
            return position[0] != null && position[0].offset() > 0;
        });
        try (var consumer = new KafkaConsumer<String, String>(group(Lab.BOOTSTRAP))) {
            consumer.assign(List.of(partition));
            consumer.seek(partition, position[0].offset());
            String[] first = {null};
            Lab.until("a record after the position", () -> {
                consumer.poll(Duration.ofMillis(200)).forEach(it -> first[0] = first[0] == null ? it.value() : first[0]);
                return first[0] != null;
            });
            int number = Integer.parseInt(first[0].substring("record ".length()));
            Lab.expect(number / PARTITIONS <= count / PARTITIONS / 2, "the group would skip up to " + first[0]);
        }
        return position[0].offset();
    }

    /** What is changed at the source after the copy was made. */
    static void expectConfig(Admin kafka, Admin here) throws Exception {
        var change = new AlterConfigOp(new ConfigEntry("retention.ms", "86400000"), AlterConfigOp.OpType.SET);
        kafka.incrementalAlterConfigs(Map.of(resource(THERE), List.of(change))).all().get();
        var copy = resource("kafka." + THERE);
        Lab.until("the config follows", () ->
                here.describeConfigs(List.of(copy)).all().get().get(copy).get("retention.ms").value().equals("86400000"));
    }

    static ConfigResource resource(String topic) {
        return new ConfigResource(ConfigResource.Type.TOPIC, topic);
    }

    static Process startMirror() throws Exception {
        Map<String, String> options = new HashMap<>(Map.of("clusters", "kafka, meridian"));
        options.put("kafka.bootstrap.servers", KAFKA);
        options.put("meridian.bootstrap.servers", Lab.BOOTSTRAP);
        options.put("kafka->meridian.enabled", "true");
        options.put("kafka->meridian.topics", THERE);
        options.put("kafka->meridian.groups", GROUP);
        options.put("kafka->meridian.sync.group.offsets.enabled", "true");
        options.put("meridian->kafka.enabled", "true");
        options.put("meridian->kafka.topics", BACK);
        options.put("kafka.exactly.once.source.support", "enabled");
        options.put("meridian.exactly.once.source.support", "enabled");
        options.put("dedicated.mode.enable.internal.rest", "true");
        options.put("listeners", "http://127.0.0.1:" + (PORT + 2));
        options.put("replication.factor", "1");
        for (String topic : List.of("checkpoints.topic", "heartbeats.topic", "offset-syncs.topic",
                "offset.storage", "status.storage", "config.storage")) {
            options.put(topic + ".replication.factor", "1");
        }
        for (String what : List.of("refresh.topics", "refresh.groups", "emit.checkpoints", "sync.group.offsets",
                "emit.heartbeats", "sync.topic.configs")) {
            options.put(what + ".interval.seconds", "2");
        }
        options.put("offset.lag.max", "10");
        options.put("consumer.isolation.level", "read_committed");
        options.put("session.timeout.ms", "8000");
        options.put("heartbeat.interval.ms", "1000");
        String file = Lab.settings("mm2.properties", options);
        return Lab.start("mm2", Map.of(), "org.apache.kafka.connect.mirror.MirrorMaker", file);
    }
}
