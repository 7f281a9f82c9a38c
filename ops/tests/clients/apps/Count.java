import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.*;

/**
 * Records of idempotent, transactional and source-id producers, counted one by one, while leaders, coordinators and nodes are
 * killed, and the transactional and source-id producers themselves (processes of their own).
 *
 * <pre>
 *   idempotent      lives through the run                        topic plain
 *   transactional   its position is committed with its records,  topic txn       every tenth transaction is aborted first
 *                   and is where it goes on after a kill
 *   source          goes on from a file that is behind           topic source    meridian.dedup=source
 * </pre>
 * Each producer numbers its records from 0; a reader of what is committed must see each number once, those of a partition
 * in order, and of each transaction all or nothing. It takes a bit of memory for each record.
 *
 * Records are spread over the kills: a producer waits while it is ahead of them.
 */
public final class Count {
    static final long RECORDS = Long.parseLong(System.getenv("RECORDS"));
    static final int KILLS = Integer.parseInt(System.getenv("KILLS"));
    /** Between two kills, about, with what they take: paces the producers, which write no faster than that in any case. */
    static final double KILL_EVERY_S = Double.parseDouble(System.getenv().getOrDefault("KILL_EVERY", "6"));
    static final int PRODUCERS_OF_A_KIND = 2;
    static final List<String> KINDS = List.of("plain", "txn", "source");
    static final int PER_PRODUCER = (int) (RECORDS / KINDS.size() / PRODUCERS_OF_A_KIND);
    static final int PARTITIONS = 12;
    static final int PER_TRANSACTION = 480;
    static final int PER_CHECKPOINT = 6000;
    /** So many in a row go to one partition, and may share a batch. */
    static final int PER_RUN = 20;
    static final int SIZE_BYTES = 64;
    /** How many kills the producers may be ahead of. */
    static final int KILLS_AHEAD = 1;
    static final long TOLD_EVERY_MS = 10_000;
    /** Complaints that are kept. */
    static final int WRONG_MAX = 1000;

    static int partition(int number) {
        return number / PER_RUN % PARTITIONS;
    }

    /** Where producers find how many kills there were. */
    static Path kills() {
        return Lab.FOLDER.resolve("kills");
    }

    static void replace(Path file, String text) throws Exception {
        Path written = Files.writeString(file.resolveSibling(file.getFileName() + ".new"), text);
        Files.move(written, file, StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
    }

    static int number(Path file) throws Exception {
        return Files.exists(file) ? Integer.parseInt(Files.readString(file)) : 0;
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments.length > 0) {
            // Whoever is to count has ended: nothing is left to be done.
            ProcessHandle.current().parent().ifPresent(it -> it.onExit().thenRun(() -> Runtime.getRuntime().halt(3)));
            new Writer(arguments[0], Integer.parseInt(arguments[1])).run();
            System.exit(0);
        }
        Lab.version();
        Lab.check("records counted one by one", Count::run);
        Lab.exit();
    }

    static String topic(String kind) {
        return Lab.PREFIX + kind;
    }

    static String name(String kind, int index) {
        return Lab.PREFIX + kind + "-" + index;
    }

    static String run() throws Exception {
        try (Admin admin = Lab.admin(Lab.BOOTSTRAP)) {
            Lab.create(admin, topic("plain"), PARTITIONS, Map.of());
            Lab.create(admin, topic("txn"), PARTITIONS, Map.of());
            Lab.create(admin, topic("source"), PARTITIONS, Map.of("meridian.dedup", "source"));
            Lab.create(admin, topic("position"), 1, Map.of());
            Tally tally = new Tally();
            tally.start();
            Map<String, Process> writers = new TreeMap<>();
            for (String kind : KINDS) {
                for (int index = 0; index < PRODUCERS_OF_A_KIND; index++) {
                    writers.put(kind + " " + index, writer(kind, index));
                }
            }
            int restarts = 0;
            String told;
            try (Killer killer = new Killer(admin)) {
                killer.leadersOf(topic("plain"), topic("txn"), topic("source"));
                killer.groupCoordinatorOf(name("txn", 0)).transactionCoordinatorOf(name("txn", 0));
                Random chance = new Random(7);
                killer.target("rack", () -> 1 + chance.nextInt(9));
                killer.target("producer", () -> killWriter(writers, chance));
                killer.start();
                long toldAt = System.nanoTime();
                while (killer.count() < KILLS || writers.values().stream().anyMatch(it -> it.isAlive() || it.exitValue() != 0)) {
                    restarts += restart(writers);
                    tally.expectAlive();
                    replace(kills(), "" + killer.count());
                    if (System.nanoTime() - toldAt > TOLD_EVERY_MS * 1_000_000) {
                        toldAt = System.nanoTime();
                        System.out.println("PROGRESS " + tally.told() + " of " + RECORDS + "; " + killer.told());
                    }
                    Thread.sleep(100);
                }
                killer.close();
                told = killer.told();
            }
            String counted = tally.finish();
            return counted + "; " + told + "; " + restarts + " producers started again";
        }
    }

    static int killWriter(Map<String, Process> writers, Random chance) throws Exception {
        List<String> alive = new ArrayList<>();
        writers.forEach((name, process) -> {
            if (!name.startsWith("plain") && process.isAlive()) {
                alive.add(name);
            }
        });
        if (alive.isEmpty()) {
            return Killer.NOTHING;
        }
        // The other thread starts it again.
        Lab.kill(writers.get(alive.get(chance.nextInt(alive.size()))));
        return Killer.DONE;
    }

    static int restart(Map<String, Process> writers) throws Exception {
        int restarts = 0;
        for (Map.Entry<String, Process> entry : writers.entrySet()) {
            Process process = entry.getValue();
            if (!process.isAlive() && process.exitValue() != 0) {
                String[] name = entry.getKey().split(" ");
                Lab.expect(!name[0].equals("plain"), "an idempotent producer gave up; see its log");
                entry.setValue(writer(name[0], Integer.parseInt(name[1])));
                restarts++;
            }
        }
        return restarts;
    }

    static Process writer(String kind, int index) throws Exception {
        return Lab.start(kind + "-" + index, Map.of(), "Count", kind, "" + index);
    }

    /** One producer: a process. */
    static final class Writer {
        final String kind;
        final int index;
        final KafkaProducer<byte[], byte[]> producer;
        final AtomicReference<Exception> failure = new AtomicReference<>();
        final long begun = System.nanoTime();
        final double perSecond = PER_PRODUCER / (KILLS * KILL_EVERY_S);

        Writer(String kind, int index) {
            this.kind = kind;
            this.index = index;
            Map<String, Object> options = new HashMap<>(Map.of("bootstrap.servers", Lab.BOOTSTRAP, "acks", "all", "linger.ms", 20));
            options.put("delivery.timeout.ms", 300_000);
            if (kind.equals("txn")) {
                options.put("transactional.id", name(kind, index));
                options.put("transaction.timeout.ms", 60_000);
                options.put("max.block.ms", 120_000);
            }
            producer = new KafkaProducer<>(options, new ByteArraySerializer(), new ByteArraySerializer());
        }

        void run() throws Exception {
            if (kind.equals("txn")) {
                transactions();
            } else {
                stream();
            }
            producer.close();
            expectNoFailure();
        }

        void expectNoFailure() throws Exception {
            if (failure.get() != null) {
                throw failure.get();
            }
        }

        void send(int number, boolean isToBeAborted) {
            byte[] value = new byte[SIZE_BYTES];
            ByteBuffer.wrap(value).putInt(index).putInt(number).putInt(isToBeAborted ? 1 : 0);
            var record = new ProducerRecord<byte[], byte[]>(topic(kind), partition(number), null, value);
            if (kind.equals("source")) {
                record.headers().add(new RecordHeader("meridian-producer-id", name(kind, index).getBytes(StandardCharsets.UTF_8)));
                record.headers().add(new RecordHeader("meridian-seqno", ("" + number).getBytes(StandardCharsets.UTF_8)));
            }
            producer.send(record, (placed, error) -> {
                if (error != null) {
                    failure.compareAndSet(null, error);
                }
            });
        }

        /** Waits until a number is due: by time, counted from where this process began, and by the kills. */
        void pace(int number, int from) throws Exception {
            long due = begun + (long) ((number - from) / perSecond * 1e9);
            long rest = due - System.nanoTime();
            if (rest > 0) {
                Thread.sleep(rest / 1_000_000);
            }
            while ((long) number * KILLS > (long) PER_PRODUCER * (number(kills()) + KILLS_AHEAD)) {
                Thread.sleep(50);
            }
        }

        void stream() throws Exception {
            Path checkpoint = Lab.FOLDER.resolve(kind + "-" + index);
            int from = number(checkpoint);
            for (int number = from; number < PER_PRODUCER; number++) {
                send(number, false);
                if (number % 100 == 0) {
                    pace(number, from);
                    expectNoFailure();
                }
                if (number % PER_CHECKPOINT == 0 && number > from) {
                    producer.flush();
                    expectNoFailure();
                    replace(checkpoint, "" + number);
                }
            }
        }

        void transactions() throws Exception {
            producer.initTransactions();
            TopicPartition position = new TopicPartition(topic("position"), 0);
            String group = name(kind, index);
            int from;
            try (Admin admin = Lab.admin(Lab.BOOTSTRAP)) {
                var options = new org.apache.kafka.clients.admin.ListConsumerGroupOffsetsOptions().requireStable(true);
                var committed = admin.listConsumerGroupOffsets(group, options).partitionsToOffsetAndMetadata().get().get(position);
                from = committed == null ? 0 : (int) committed.offset();
            }
            System.out.println("from " + from);
            for (int next = from; next < PER_PRODUCER; ) {
                int end = Math.min(next + PER_TRANSACTION, PER_PRODUCER);
                boolean isToBeAborted = next / PER_TRANSACTION % 10 == 9;
                if (isToBeAborted) {
                    transaction(next, end, true, position, group);
                }
                transaction(next, end, false, position, group);
                next = end;
                pace(next, from);
            }
        }

        /** One transaction; what is not fatal is tried again. */
        void transaction(int from, int to, boolean isToBeAborted, TopicPartition position, String group) throws Exception {
            while (true) {
                failure.set(null);
                try {
                    producer.beginTransaction();
                    for (int number = from; number < to; number++) {
                        send(number, isToBeAborted);
                    }
                    if (isToBeAborted) {
                        producer.flush();
                        producer.abortTransaction();
                        return;
                    }
                    producer.sendOffsetsToTransaction(Map.of(position, new OffsetAndMetadata(to)), new ConsumerGroupMetadata(group));
                    commit();
                    return;
                } catch (ProducerFencedException | OutOfOrderSequenceException | AuthorizationException | IllegalStateException fatal) {
                    throw fatal;
                } catch (KafkaException error) {
                    System.out.println("transaction of " + from + ": " + error);
                    producer.abortTransaction();
                }
            }
        }

        /** Whether a commit that was not answered took place is known by asking again. */
        void commit() {
            while (true) {
                try {
                    producer.commitTransaction();
                    return;
                } catch (TimeoutException again) {
                    System.out.println("commit: " + again);
                }
            }
        }
    }

    /** Reads everything while it is written, and counts. */
    static final class Tally extends Thread {
        private final Map<String, BitSet[]> seen = new HashMap<>();
        private final Map<String, int[][]> last = new HashMap<>();
        private final List<String> wrong = Collections.synchronizedList(new ArrayList<>());
        private volatile int wrongCount;
        private volatile boolean isOver;
        private volatile Throwable failure;
        private volatile long count;
        private volatile long doubled;

        Tally() {
            super("tally");
            setDaemon(true);
            for (String kind : KINDS) {
                seen.put(topic(kind), new BitSet[PRODUCERS_OF_A_KIND]);
                last.put(topic(kind), new int[PRODUCERS_OF_A_KIND][PARTITIONS]);
                for (int index = 0; index < PRODUCERS_OF_A_KIND; index++) {
                    seen.get(topic(kind))[index] = new BitSet(PER_PRODUCER);
                    Arrays.fill(last.get(topic(kind))[index], -1);
                }
            }
        }

        @Override
        public void run() {
            Map<String, Object> options = Map.of("bootstrap.servers", Lab.BOOTSTRAP, "isolation.level", "read_committed");
            try (var reader = new KafkaConsumer<>(options, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
                List<TopicPartition> all = new ArrayList<>();
                KINDS.forEach(kind -> {
                    for (int partition = 0; partition < PARTITIONS; partition++) {
                        all.add(new TopicPartition(topic(kind), partition));
                    }
                });
                reader.assign(all);
                reader.seekToBeginning(all);
                while (!isOver || !isAtEnd(reader, all)) {
                    reader.poll(Duration.ofMillis(200)).forEach(this::take);
                }
            } catch (Throwable error) {
                failure = error;
            }
        }

        static boolean isAtEnd(Consumer<byte[], byte[]> reader, List<TopicPartition> all) {
            Map<TopicPartition, Long> ends = reader.endOffsets(all);
            return all.stream().allMatch(it -> reader.position(it) >= ends.get(it));
        }

        void take(ConsumerRecord<byte[], byte[]> record) {
            ByteBuffer value = ByteBuffer.wrap(record.value());
            int index = value.getInt();
            int number = value.getInt();
            if (value.getInt() != 0) {
                complain(record, index, number, "was aborted");
                return;
            }
            count++;
            BitSet bits = seen.get(record.topic())[index];
            if (bits.get(number)) {
                doubled++;
                complain(record, index, number, "doubled");
            }
            bits.set(number);
            int[] before = last.get(record.topic())[index];
            if (number <= before[record.partition()]) {
                complain(record, index, number, "after " + before[record.partition()]);
            }
            before[record.partition()] = number;
        }

        private void complain(ConsumerRecord<byte[], byte[]> record, int index, int number, String what) {
            wrongCount++;
            if (wrong.size() < WRONG_MAX) {
                wrong.add(record.topic() + "-" + record.partition() + "@" + record.offset() + ": " + number + " of producer " + index + " " + what);
            }
        }

        String told() {
            return count + " records read, " + doubled + " doubled, " + wrongCount + " complaints";
        }

        void expectAlive() {
            if (failure != null) {
                throw new IllegalStateException("the reader failed: " + failure, failure);
            }
        }

        String finish() throws Exception {
            isOver = true;
            join(600_000);
            expectAlive();
            Lab.expect(!isAlive(), "the reader did not come to the end");
            long lost = 0;
            long torn = 0;
            for (String kind : KINDS) {
                for (BitSet bits : seen.get(topic(kind))) {
                    lost += PER_PRODUCER - bits.cardinality();
                    for (int from = 0; kind.equals("txn") && from < PER_PRODUCER; from += PER_TRANSACTION) {
                        int to = Math.min(from + PER_TRANSACTION, PER_PRODUCER);
                        int there = bits.get(from, to).cardinality();
                        torn += there > 0 && there < to - from ? 1 : 0;
                    }
                }
            }
            String told = count + " records: " + lost + " lost, " + doubled + " doubled, " + torn + " transactions torn";
            wrong.stream().limit(20).forEach(System.out::println);
            Lab.expect(lost == 0 && torn == 0 && wrong.isEmpty(), told + ", " + wrongCount + " complaints: "
                    + (wrong.isEmpty() ? "" : wrong.get(0)));
            return told;
        }
    }
}
