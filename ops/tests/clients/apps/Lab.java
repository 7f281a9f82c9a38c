import java.io.File;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;

/** What the applications share: where the cluster is, how a check is told, numbered records, processes that can be killed. */
final class Lab {
    static final String BOOTSTRAP = System.getenv("BOOTSTRAP");
    static final String PREFIX = System.getenv("PREFIX");
    /** Files of this run: emptied at its start. */
    static final Path FOLDER = Path.of(System.getenv("FOLDER"));
    static final int DURATION_S = Integer.parseInt(System.getenv("DURATION"));
    static final Duration WITHIN = Duration.ofSeconds(120);
    private static final List<Process> CHILDREN = Collections.synchronizedList(new ArrayList<>());

    interface Check {
        String run() throws Exception;
    }

    interface Condition {
        boolean holds() throws Exception;
    }

    private Lab() {}

    static void check(String name, Check body) {
        String told;
        try {
            told = "ok " + body.run();
        } catch (Throwable error) {
            error.printStackTrace();
            Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
            told = "fail " + cause;
        }
        System.out.println("RESULT " + name + " " + told.replaceAll("\\s+", " ").replace("|", "/"));
    }

    /** Ends the program and all that it started. */
    static void exit() {
        CHILDREN.forEach(Process::destroyForcibly);
        System.exit(0);
    }

    static void version() {
        System.out.println("VERSION " + org.apache.kafka.common.utils.AppInfoParser.getVersion());
    }

    static void expect(boolean condition, String words) {
        if (!condition) {
            throw new IllegalStateException(words);
        }
    }

    static void until(String what, Condition condition) throws Exception {
        until(WITHIN, what, condition);
    }

    static void until(Duration within, String what, Condition condition) throws Exception {
        long deadline = System.nanoTime() + within.toNanos();
        while (!condition.holds()) {
            expect(System.nanoTime() < deadline, "not within " + within.toSeconds() + " s: " + what);
            Thread.sleep(50);
        }
    }

    static Admin admin(String bootstrap) {
        return Admin.create(Map.of("bootstrap.servers", bootstrap));
    }

    static void create(Admin admin, String topic, int partitions, Map<String, String> configs) throws Exception {
        admin.createTopics(List.of(new NewTopic(topic, Optional.of(partitions), Optional.empty()).configs(configs))).all().get();
        until("leaders of " + topic, () -> {
            try {
                return partitions(admin, topic).stream().allMatch(it -> it.leader() != null);
            } catch (ExecutionException notEverywhereYet) {
                return false;
            }
        });
    }

    static List<org.apache.kafka.common.TopicPartitionInfo> partitions(Admin admin, String topic) throws Exception {
        return admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions();
    }

    static KafkaProducer<String, String> producer(String bootstrap) {
        Map<String, Object> options = new HashMap<>(Map.of("bootstrap.servers", bootstrap, "acks", "all", "linger.ms", 5));
        options.put("delivery.timeout.ms", 600_000);
        return new KafkaProducer<>(options, new StringSerializer(), new StringSerializer());
    }

    /** Sends records at a steady rate until the time is over; all of them are acknowledged when this returns. */
    static int write(KafkaProducer<String, String> producer, int ratePerSecond, Duration time, Sender sender) throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        long begun = System.nanoTime();
        int number = 0;
        while (System.nanoTime() - begun < time.toNanos()) {
            long due = (System.nanoTime() - begun) / 1000 * ratePerSecond / 1_000_000;
            while (number < due) {
                sent.add(producer.send(sender.record(number++)));
            }
            Thread.sleep(10);
        }
        producer.flush();
        for (Future<RecordMetadata> one : sent) {
            one.get();
        }
        return number;
    }

    interface Sender {
        ProducerRecord<String, String> record(int number);
    }

    /** A reader of all partitions of a topic from their beginning, of what is committed. */
    static <V> KafkaConsumer<String, V> reader(String bootstrap, String topic, Deserializer<V> values) throws Exception {
        Map<String, Object> options = Map.of("bootstrap.servers", bootstrap, "isolation.level", "read_committed");
        KafkaConsumer<String, V> reader = new KafkaConsumer<>(options, new StringDeserializer(), values);
        List<TopicPartition> all = reader.partitionsFor(topic).stream()
                .map(it -> new TopicPartition(topic, it.partition())).collect(Collectors.toList());
        reader.assign(all);
        reader.seekToBeginning(all);
        return reader;
    }

    /** Starts a class of this program's class path as a process of its own, that ends with this one. */
    static Process start(String log, Map<String, String> environment, String main, String... arguments) throws Exception {
        return start(log, System.getProperty("java.class.path"), environment, main, arguments);
    }

    /** Starts a class of any class path. */
    static Process start(String log, String classes, String main, String... arguments) throws Exception {
        return start(log, classes, Map.of(), main, arguments);
    }

    private static Process start(String log, String classes, Map<String, String> environment, String main, String... arguments) throws Exception {
        List<String> command = new ArrayList<>(List.of(Path.of(System.getProperty("java.home"), "bin", "java").toString()));
        command.addAll(List.of("-Xmx400m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", classes));
        command.add("-Dlog4j2.configurationFile=" + System.getProperty("log4j2.configurationFile"));
        command.add(main);
        command.addAll(List.of(arguments));
        ProcessBuilder builder = new ProcessBuilder(command).redirectErrorStream(true);
        builder.redirectOutput(ProcessBuilder.Redirect.appendTo(new File(System.getenv("LOG") + "-" + log + ".txt")));
        builder.environment().putAll(environment);
        Process process = builder.start();
        CHILDREN.add(process);
        return process;
    }

    /** As by kill -9. */
    static void kill(Process process) throws Exception {
        process.destroyForcibly().waitFor();
    }

    /** Writes a file of settings. */
    static String settings(String name, Map<String, String> values) throws Exception {
        Path file = FOLDER.resolve(name);
        List<String> lines = values.entrySet().stream().map(it -> it.getKey() + "=" + it.getValue()).sorted().collect(Collectors.toList());
        Files.write(file, lines);
        return file.toString();
    }
}
