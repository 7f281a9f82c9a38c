import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.serialization.*;

/**
 * A link from Apache Kafka while the nodes that pull are killed: each batch must be here as it is there, byte for byte.
 *
 * <pre>
 *   plain         idempotent producers, one for each compression
 *   transactions  of several producers at once, every fifth aborted; one stays open while the copies are compared
 *   compacted     its first half has been compacted before it is mirrored
 *
 *   all is written -> link, held back by its cap -> kill, kill, kill -> no cap -> compare -> commit -> compare
 * </pre>
 * Compared are the batches, what read_committed sees, and what is known of producers.
 */
public final class KafkaSource {
    static final int RECORDS = Integer.parseInt(System.getenv("RECORDS"));
    static final int KILLS = Integer.parseInt(System.getenv("KILLS"));
    static final String PLAIN = Lab.PREFIX + "plain";
    static final String TRANSACTIONS = Lab.PREFIX + "transactions";
    static final String COMPACTED = Lab.PREFIX + "compacted";
    static final List<String> TOPICS = List.of(PLAIN, TRANSACTIONS, COMPACTED);
    static final int PARTITIONS = 4;
    static final int KEYS = 5000;
    /** Several segments in each partition. */
    static final int TO_COMPACT = 100_000;
    static final int PER_TRANSACTION = 100;
    static final String LINK = "kafka";
    /** Between two kills, about, with what they take. */
    static final int KILL_EVERY_S = 6;
    /** Times of records are long ago. */
    static final Map<String, String> FOR_EVER = Map.of("retention.ms", "-1");
    static final Map<String, String> COMPACTION = Map.of("cleanup.policy", "compact", "segment.bytes", "1048576",
            "min.cleanable.dirty.ratio", "0.01");
    static final Duration WITHIN = Duration.ofSeconds(300);

    public static void main(String[] arguments) throws Exception {
        Lab.version();
        Lab.check("a link from Apache Kafka", KafkaSource::run);
        Lab.exit();
    }

    static String run() throws Exception {
        Apache.start(Map.of("log.cleaner.backoff.ms", "500"));
        try (var here = Lab.admin(Lab.BOOTSTRAP); var there = Lab.admin(Apache.BOOTSTRAP)) {
            Lab.create(there, PLAIN, PARTITIONS, FOR_EVER);
            Lab.create(there, TRANSACTIONS, PARTITIONS, FOR_EVER);
            Lab.create(there, COMPACTED, PARTITIONS, COMPACTION);
            writeCompacted(0, TO_COMPACT);
            long left = expectCompaction(there, TO_COMPACT);
            writeCompacted(TO_COMPACT, TO_COMPACT + RECORDS / 10);
            writePlain(RECORDS * 9 / 20);
            writeTransactions(RECORDS * 9 / 20);
            Producer<String, byte[]> open = beginOne();

            long sizeBytes = sizeBytes(there);
            long nodeBytesPerSecond = Math.max(sizeBytes / (TOPICS.size() * PARTITIONS) / Math.max(KILLS * KILL_EVERY_S, 1), 1);
            meridian("link", "create", LINK, "--source", Apache.BOOTSTRAP, "--bytes-per-second", "" + nodeBytesPerSecond);
            for (String topic : TOPICS) {
                meridian("mirror", "create", topic, "--link", LINK);
            }
            String killed = killThosePulling(here, there);
            meridian("link", "alter", LINK, "--bytes-per-second", "0");
            Found found = compare(here, there);
            open.commitTransaction();
            open.close();
            Lab.until("the markers are written", () ->
                    offsets(there, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED).equals(ends(there)));
            found = compare(here, there);
            return found + "; compaction had left " + left + " of " + TO_COMPACT + " records; " + killed;
        }
    }

    static KafkaProducer<String, byte[]> producer(Map<String, Object> more) {
        Map<String, Object> options = new HashMap<>(Map.of("bootstrap.servers", Apache.BOOTSTRAP, "linger.ms", 5));
        options.putAll(more);
        return new KafkaProducer<>(options, new StringSerializer(), new ByteArraySerializer());
    }

    static ProducerRecord<String, byte[]> record(String topic, int number) {
        byte[] value = ("record " + number + " " + "x".repeat(number % 100)).getBytes(StandardCharsets.UTF_8);
        String key = number % 7 == 0 ? null : "key " + number % KEYS;
        var record = new ProducerRecord<>(topic, number % PARTITIONS, 1_700_000_000_000L + number, key, number % 11 == 0 ? null : value);
        if (number % 3 == 0) {
            record.headers().add(new RecordHeader("number", new byte[] {(byte) number})).add(new RecordHeader("none", null));
        }
        return record;
    }

    static void writePlain(int count) {
        List<String> compressions = List.of("none", "gzip", "snappy", "lz4", "zstd");
        for (int kind = 0; kind < compressions.size(); kind++) {
            try (var producer = producer(Map.of("compression.type", compressions.get(kind), "batch.size", 4096 << kind))) {
                for (int number = 0; number < count / compressions.size(); number++) {
                    producer.send(record(PLAIN, number));
                }
            }
        }
    }

    /** Transactions of several producers are open at once, so that their records are mingled. */
    static void writeTransactions(int count) {
        List<KafkaProducer<String, byte[]>> producers = new ArrayList<>();
        for (int index = 0; index < 4; index++) {
            producers.add(producer(Map.of("transactional.id", Lab.PREFIX + index, "compression.type", index % 2 == 0 ? "none" : "lz4")));
            producers.get(index).initTransactions();
        }
        int number = 0;
        for (int turn = 0; number < count; turn++) {
            producers.forEach(Producer::beginTransaction);
            for (int i = 0; i < PER_TRANSACTION * producers.size(); i++) {
                producers.get(i % producers.size()).send(record(TRANSACTIONS, number++));
            }
            for (int index = 0; index < producers.size(); index++) {
                if ((turn + index) % 5 == 0) {
                    producers.get(index).flush();
                    producers.get(index).abortTransaction();
                } else {
                    producers.get(index).commitTransaction();
                }
            }
        }
        producers.forEach(Producer::close);
    }

    static Producer<String, byte[]> beginOne() {
        var producer = producer(Map.of("transactional.id", Lab.PREFIX + "open", "transaction.timeout.ms", 900_000));
        producer.initTransactions();
        producer.beginTransaction();
        for (int number = 0; number < PARTITIONS; number++) {
            producer.send(record(TRANSACTIONS, number));
        }
        producer.flush();
        return producer;
    }

    static void writeCompacted(int from, int to) {
        try (var producer = producer(Map.of())) {
            for (int number = from; number < to; number++) {
                byte[] value = number % 13 == 0 ? null : ("value " + number + "y".repeat(200)).getBytes(StandardCharsets.UTF_8);
                producer.send(new ProducerRecord<>(COMPACTED, number % PARTITIONS, "key " + number % KEYS, value));
            }
        }
    }

    /** Waits until records are gone and no more go; from then on none may. */
    static long expectCompaction(Admin there, int written) throws Exception {
        long[] last = {written};
        int[] sameCount = {0};
        Lab.until(WITHIN, "the log cleaner has ended", () -> {
            Thread.sleep(2000);
            long left = 0;
            for (int partition = 0; partition < PARTITIONS; partition++) {
                try (var batches = batches(there, COMPACTED, partition)) {
                    while (batches.hasNext()) {
                        left += batches.next().countOrNull();
                    }
                }
            }
            sameCount[0] = left == last[0] ? sameCount[0] + 1 : 0;
            last[0] = left;
            return left < written && sameCount[0] >= 3;
        });
        var topic = new ConfigResource(ConfigResource.Type.TOPIC, COMPACTED);
        var late = new AlterConfigOp(new ConfigEntry("min.compaction.lag.ms", "86400000"), AlterConfigOp.OpType.SET);
        there.incrementalAlterConfigs(Map.of(topic, List.of(late))).all().get();
        return last[0];
    }

    static long sizeBytes(Admin there) throws Exception {
        long[] sum = {0};
        there.describeLogDirs(List.of(1)).allDescriptions().get().get(1).values().forEach(folder -> folder.replicaInfos().forEach(
                (partition, info) -> sum[0] += TOPICS.contains(partition.topic()) ? info.size() : 0));
        return sum[0];
    }

    static Map<TopicPartition, Long> offsets(Admin admin, OffsetSpec spec, IsolationLevel level) throws Exception {
        TreeMap<TopicPartition, OffsetSpec> asked = new TreeMap<>(Comparator.comparing(TopicPartition::toString));
        TOPICS.forEach(topic -> {
            for (int partition = 0; partition < PARTITIONS; partition++) {
                asked.put(new TopicPartition(topic, partition), spec);
            }
        });
        Map<TopicPartition, Long> found = new TreeMap<>(asked.comparator());
        admin.listOffsets(asked, new ListOffsetsOptions(level)).all().get().forEach((partition, info) -> found.put(partition, info.offset()));
        return found;
    }

    static Map<TopicPartition, Long> ends(Admin admin) throws Exception {
        return offsets(admin, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED);
    }

    /** Kills leaders of mirrors that are behind, one after another. */
    static String killThosePulling(Admin here, Admin there) throws Exception {
        Random chance = new Random(1);
        Map<TopicPartition, Long> due = ends(there);
        StringJoiner told = new StringJoiner(", ");
        for (int kill = 0; kill < KILLS; kill++) {
            Thread.sleep(1000 + chance.nextInt(2000));
            TopicPartition[] behind = {null};
            Lab.until("a mirror is behind", () -> {
                Map<TopicPartition, Long> reached = ends(here);
                List<TopicPartition> all = due.keySet().stream()
                        .filter(it -> reached.get(it) > 0 && reached.get(it) < due.get(it)).collect(Collectors.toList());
                behind[0] = all.isEmpty() ? null : all.get(chance.nextInt(all.size()));
                return behind[0] != null;
            });
            int node = leader(here, behind[0]).id();
            told.add("node " + node + " with " + sum(ends(here)) + " of " + sum(due));
            System.out.println("PROGRESS kill node " + node + ", which pulls " + behind[0]);
            Killer.dev("kill", node);
            Thread.sleep(500 + chance.nextInt(2000));
            Killer.dev("restart", node);
        }
        return KILLS + " kills of a node that pulls (" + told + " offsets mirrored)";
    }

    static long sum(Map<TopicPartition, Long> offsets) {
        return offsets.values().stream().mapToLong(Long::longValue).sum();
    }

    static Node leader(Admin admin, TopicPartition partition) throws Exception {
        return Lab.partitions(admin, partition.topic()).get(partition.partition()).leader();
    }

    static Batches batches(Admin admin, String topic, int partition) throws Exception {
        var it = new TopicPartition(topic, partition);
        long start = admin.listOffsets(Map.of(it, OffsetSpec.earliest())).all().get().get(it).offset();
        long end = admin.listOffsets(Map.of(it, OffsetSpec.latest())).all().get().get(it).offset();
        return new Batches(leader(admin, it), it, start, end);
    }

    /** What was compared. */
    static final class Found {
        long records;
        long batches;
        long markers;
        long decided;
        long producers;
        final Set<String> compressions = new TreeSet<>();

        void count(MutableRecordBatch batch) {
            batches++;
            markers += batch.isControlBatch() ? 1 : 0;
            records += batch.isControlBatch() ? 0 : batch.countOrNull();
            compressions.add(batch.compressionType().name);
        }

        @Override
        public String toString() {
            return records + " records in " + batches + " batches (" + String.join(", ", compressions) + ") and " + markers
                    + " markers equal byte for byte, " + decided + " records by read_committed, the state of " + producers + " producers";
        }
    }

    static Found compare(Admin here, Admin there) throws Exception {
        Map<TopicPartition, Long> due = ends(there);
        Lab.until(WITHIN, "all is mirrored", () -> {
            System.out.println("PROGRESS " + sum(ends(here)) + " of " + sum(due) + " offsets mirrored");
            return ends(here).equals(due);
        });
        for (IsolationLevel level : IsolationLevel.values()) {
            var told = List.of(offsets(here, OffsetSpec.latest(), level), offsets(there, OffsetSpec.latest(), level));
            Lab.expect(told.get(0).equals(told.get(1)), "ends by " + level + ": here, there " + told);
        }
        Found found = new Found();
        for (String topic : TOPICS) {
            for (int partition = 0; partition < PARTITIONS; partition++) {
                compareBatches(found, here, there, topic, partition);
            }
            compareDecided(found, topic);
        }
        compareProducers(found, here, there);
        return found;
    }

    static void compareBatches(Found found, Admin here, Admin there, String topic, int partition) throws Exception {
        try (var ours = batches(here, topic, partition); var theirs = batches(there, topic, partition)) {
            while (ours.hasNext() && theirs.hasNext()) {
                MutableRecordBatch our = ours.next();
                MutableRecordBatch their = theirs.next();
                Lab.expect(Batches.bytes(our).equals(Batches.bytes(their)), topic + "-" + partition + ": here " + our + ", there " + their);
                found.count(our);
            }
            Lab.expect(ours.hasNext() == theirs.hasNext(), topic + "-" + partition + " goes on at one side only");
        }
    }

    static void compareDecided(Found found, String topic) throws Exception {
        var values = new ByteArrayDeserializer();
        try (var ours = Lab.reader(Lab.BOOTSTRAP, topic, values); var theirs = Lab.reader(Apache.BOOTSTRAP, topic, values)) {
            List<Iterator<String>> sides = List.of(decided(ours), decided(theirs));
            while (sides.get(0).hasNext() && sides.get(1).hasNext()) {
                String our = sides.get(0).next();
                String their = sides.get(1).next();
                Lab.expect(our.equals(their), topic + " by read_committed: here " + our + ", there " + their);
                found.decided++;
            }
            Lab.expect(sides.get(0).hasNext() == sides.get(1).hasNext(), topic + " by read_committed goes on at one side only");
        }
    }

    /** All that a consumer sees, one partition after another, up to where it is decided. */
    static Iterator<String> decided(KafkaConsumer<String, byte[]> reader) {
        return reader.assignment().stream().sorted(Comparator.comparing(TopicPartition::toString)).flatMap(partition -> {
            reader.assign(List.of(partition));
            reader.seekToBeginning(List.of(partition));
            long end = reader.endOffsets(List.of(partition)).get(partition);
            List<String> told = new ArrayList<>();
            while (reader.position(partition) < end) {
                reader.poll(Duration.ofMillis(200)).forEach(it -> told.add(it.partition() + " " + it.offset() + " " + it.timestampType()
                        + " " + it.timestamp() + " " + it.leaderEpoch() + " " + it.key() + " " + Arrays.toString(it.value()) + " " + it.headers()));
            }
            return told.stream();
        }).iterator();
    }

    /** By partition: each producer's epoch, last sequence number and time, and where its open transaction begins. */
    static void compareProducers(Found found, Admin here, Admin there) throws Exception {
        for (TopicPartition partition : ends(there).keySet()) {
            List<Set<List<Object>>> sides = new ArrayList<>();
            for (Admin admin : List.of(here, there)) {
                var states = admin.describeProducers(List.of(partition)).partitionResult(partition).get().activeProducers();
                sides.add(states.stream().map(it -> List.<Object>of(it.producerId(), it.producerEpoch(), it.lastSequence(), it.lastTimestamp(),
                        it.currentTransactionStartOffset())).collect(Collectors.toSet()));
            }
            Lab.expect(sides.get(0).equals(sides.get(1)), partition + ": producers here, there " + sides);
            found.producers += sides.get(0).size();
        }
    }

    static void meridian(String... arguments) throws Exception {
        List<String> command = new ArrayList<>(List.of(System.getenv("MERIDIAN")));
        command.addAll(List.of(arguments));
        command.addAll(List.of("-b", Lab.BOOTSTRAP));
        int code = new ProcessBuilder(command).inheritIO().start().waitFor();
        Lab.expect(code == 0, "meridian " + String.join(" ", arguments) + " ended with " + code);
    }
}
