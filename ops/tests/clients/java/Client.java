import static java.util.stream.Collectors.toList;

import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.*;

/** The Java client: uses only what versions 2.8 and 4.x have in common. */
public final class Client {
    static final String BOOTSTRAP = System.getenv("BOOTSTRAP");
    static final String PREFIX = System.getenv("PREFIX");
    static final String PHASE = System.getenv("PHASE");
    static final short REPLICAS = Short.parseShort(System.getenv().getOrDefault("REPLICAS", "3"));
    static final Map<String, Object> CONNECTION = connection(System.getenv().getOrDefault("OPTIONS", ""));
    static final int RECORDS = 2000;
    static final int GROUP_RECORDS = 400;
    static final Duration WITHIN = Duration.ofSeconds(40);
    static Admin admin;

    interface Check {
        String run() throws Exception;
    }

    /** The client has no such thing. */
    static final class Lacking extends RuntimeException {
        Lacking(String words) {
            super(words);
        }
    }

    interface Subscription {
        void of(KafkaConsumer<String, String> consumer, Collection<String> topics) throws Exception;
    }

    interface Condition {
        boolean holds() throws Exception;
    }

    /** How to connect: what is given by librdkafka's names, by those of Java. */
    static Map<String, Object> connection(String lines) {
        Map<String, String> given = new HashMap<>();
        lines.lines().forEach(line -> given.put(line.substring(0, line.indexOf('=')), line.substring(line.indexOf('=') + 1)));
        Map<String, Object> options = new HashMap<>(Map.of("bootstrap.servers", BOOTSTRAP));
        if (given.containsKey("security.protocol")) {
            options.put("security.protocol", given.get("security.protocol"));
        }
        String mechanism = given.get("sasl.mechanism");
        if (mechanism != null) {
            String module = mechanism.equals("PLAIN") ? "plain.PlainLoginModule" : "scram.ScramLoginModule";
            options.put("sasl.mechanism", mechanism);
            options.put("sasl.jaas.config", String.format("org.apache.kafka.common.security.%s required username=\"%s\" password=\"%s\";",
                    module, given.get("sasl.username"), given.get("sasl.password")));
        }
        if (given.containsKey("ssl.ca.location")) {
            options.putAll(Map.of("ssl.truststore.type", "PEM", "ssl.truststore.location", given.get("ssl.ca.location")));
        }
        return options;
    }

    public static void main(String[] arguments) {
        System.out.println("VERSION " + org.apache.kafka.common.utils.AppInfoParser.getVersion());
        admin = Admin.create(CONNECTION);
        if (PHASE.equals("steady")) {
            for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
                check(codec, () -> compression(codec));
            }
            check("group", () -> group("group", Map.of(), (client, topics) -> client.subscribe(topics)));
            check("consumer", Client::nextGeneration);
            check("admin", Client::administer);
            check("transactions", Client::transactions);
        } else {
            check(PHASE, PHASE.equals("kill") ? Client::kill : Takeover.of(PHASE));
        }
        admin.close(Duration.ofSeconds(5));
        System.exit(0);
    }

    static void check(String name, Check body) {
        String told;
        try {
            told = "ok " + body.run();
        } catch (Lacking lacking) {
            told = "none " + lacking.getMessage();
        } catch (Throwable error) {
            error.printStackTrace();
            Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
            told = "fail " + cause;
        }
        System.out.println("RESULT " + name + " " + told.replaceAll("\\s+", " "));
    }

    static void expect(boolean condition, String words) {
        if (!condition) {
            throw new IllegalStateException(words);
        }
    }

    /** Waits for a condition, which does the waiting itself by polling a client. */
    static void until(String what, Condition condition) throws Exception {
        until(WITHIN, what, condition);
    }

    static void until(Duration within, String what, Condition condition) throws Exception {
        long deadline = System.nanoTime() + within.toNanos();
        while (!condition.holds()) {
            expect(System.nanoTime() < deadline, "not within " + within.toSeconds() + " s: " + what);
        }
    }

    static String value(int number) {
        return String.format("%08d ", number) + "abcdefghij".repeat(number % 30);
    }

    static void expectAll(List<String> got, int count) {
        List<String> sent = IntStream.range(0, count).mapToObj(Client::value).sorted().collect(toList());
        expect(got.stream().sorted().collect(toList()).equals(sent), got.size() + " of " + count + " came back as sent");
    }

    static String create(String name, int partitions) throws Exception {
        admin.createTopics(List.of(new NewTopic(PREFIX + name, partitions, REPLICAS))).all().get();
        until("leaders", () -> partitions(PREFIX + name) == partitions);
        return PREFIX + name;
    }

    /** Through a producer: the administrator's way is another in each version. */
    static long partitions(String topic) throws Exception {
        try (KafkaProducer<String, String> client = producer(Map.of())) {
            return client.partitionsFor(topic).stream().filter(it -> it.leader() != null).count();
        }
    }

    static KafkaProducer<String, String> producer(Map<String, Object> more) {
        Map<String, Object> options = new HashMap<>(CONNECTION);
        options.put("acks", "all");
        options.put("enable.idempotence", true);
        options.putAll(more);
        return new KafkaProducer<>(options, new StringSerializer(), new StringSerializer());
    }

    static KafkaConsumer<String, String> consumer(String group, Map<String, Object> more) {
        Map<String, Object> options = new HashMap<>(CONNECTION);
        options.putAll(Map.of("group.id", group, "auto.offset.reset", "earliest"));
        options.put("enable.auto.commit", false);
        options.putAll(more);
        return new KafkaConsumer<>(options, new StringDeserializer(), new StringDeserializer());
    }

    static void send(KafkaProducer<String, String> client, String topic, int from, int to) throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (int number = from; number < to; number++) {
            sent.add(client.send(new ProducerRecord<>(topic, "" + number, value(number))));
        }
        client.flush();
        for (Future<RecordMetadata> one : sent) {
            one.get();
        }
    }

    static boolean poll(KafkaConsumer<String, String> client, List<String> got) {
        client.poll(Duration.ofMillis(200)).forEach(record -> got.add(record.value()));
        return true;
    }

    static List<String> readAll(String topic, int count, Map<String, Object> more) throws Exception {
        List<String> got = new ArrayList<>();
        try (KafkaConsumer<String, String> client = consumer(PREFIX + "read-" + topic, more)) {
            client.subscribe(List.of(topic));
            until(count + " records of " + topic, () -> poll(client, got) && got.size() >= count);
            poll(client, got);
        }
        return got;
    }

    static String compression(String codec) throws Exception {
        String topic = create(codec, 2);
        try (KafkaProducer<String, String> client = producer(Map.of("compression.type", codec, "linger.ms", 20))) {
            send(client, topic, 0, RECORDS);
        }
        expectAll(readAll(topic, RECORDS, Map.of()), RECORDS);
        return RECORDS + " records";
    }

    static boolean shared(List<KafkaConsumer<String, String>> members, List<String> got, Integer... counts) {
        members.forEach(member -> poll(member, got));
        return members.stream().map(member -> member.assignment().size()).collect(toList()).equals(List.of(counts));
    }

    static boolean hasNextGeneration() {
        return ConsumerConfig.configNames().contains("group.protocol");
    }

    /** KIP-848, by a regular expression that the server understands. */
    static String nextGeneration() throws Exception {
        if (!hasNextGeneration()) {
            throw new Lacking("no group.protocol");
        }
        return group("consumer", Map.of("group.protocol", "consumer"), Client::subscribeByPattern) + ", by regular expression";
    }

    /** By reflection: older clients do not have it. */
    static void subscribeByPattern(KafkaConsumer<String, String> consumer, Collection<String> topics) throws Exception {
        Class<?> type = Class.forName("org.apache.kafka.clients.consumer.SubscriptionPattern");
        String text = "^" + topics.iterator().next() + "$";
        KafkaConsumer.class.getMethod("subscribe", type).invoke(consumer, type.getConstructor(String.class).newInstance(text));
    }

    static String group(String name, Map<String, Object> options, Subscription subscription) throws Exception {
        String topic = create(name, 4);
        List<String> got = new ArrayList<>();
        List<KafkaConsumer<String, String>> members = new ArrayList<>();
        members.add(consumer(PREFIX + name, options));
        subscription.of(members.get(0), List.of(topic));
        until("the first member has all", () -> shared(members, got, 4));
        members.add(consumer(PREFIX + name, options));
        subscription.of(members.get(1), List.of(topic));
        until("two members share", () -> shared(members, got, 2, 2));
        try (KafkaProducer<String, String> client = producer(Map.of())) {
            send(client, topic, 0, GROUP_RECORDS);
        }
        until("both read", () -> shared(members, got, 2, 2) && got.size() >= GROUP_RECORDS);
        members.forEach(KafkaConsumer::commitSync);
        members.remove(1).close();
        until("the first member has all again", () -> shared(members, got, 4));
        members.get(0).close();
        expectAll(got, GROUP_RECORDS);
        List<String> more = new ArrayList<>();
        List<KafkaConsumer<String, String>> after = List.of(consumer(PREFIX + name, options));
        subscription.of(after.get(0), List.of(topic));
        until("the group goes on", () -> shared(after, more, 4));
        poll(after.get(0), more);
        after.get(0).close();
        expect(more.isEmpty(), more.size() + " committed records were read again");
        return "2 members, 4 partitions";
    }

    static String transactions() throws Exception {
        String topic = create("transactions", 1);
        Map<String, Object> options = Map.of("transactional.id", PREFIX + "t", "max.block.ms", 30000);
        try (KafkaProducer<String, String> client = producer(options)) {
            client.initTransactions();
            client.beginTransaction();
            send(client, topic, 0, 10);
            client.commitTransaction();
            client.beginTransaction();
            send(client, topic, 10, 20);
            client.abortTransaction();
            client.beginTransaction();
            send(client, topic, 10, 15);
            client.commitTransaction();
        }
        expectAll(readAll(topic, 15, Map.of("isolation.level", "read_committed")), 15);
        return "2 committed, 1 aborted";
    }

    static String administer() throws Exception {
        String topic = create("admin", 1);
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        AlterConfigOp change = new AlterConfigOp(new ConfigEntry("retention.ms", "123456"), AlterConfigOp.OpType.SET);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
        until("the config is kept", () -> {
            Config config = admin.describeConfigs(List.of(resource)).all().get().get(resource);
            return config.get("retention.ms").value().equals("123456");
        });
        admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all().get();
        until("there are 3 partitions", () -> partitions(topic) == 3);
        expect(!admin.describeCluster().nodes().get().isEmpty(), "the cluster has nodes");
        var partition = new org.apache.kafka.common.TopicPartition(topic, 0);
        var offsets = admin.listOffsets(Map.of(partition, OffsetSpec.latest())).all().get();
        expect(offsets.get(partition).offset() == 0, "an empty partition ends at 0");
        admin.listConsumerGroups().all().get();
        admin.deleteTopics(List.of(topic)).all().get();
        until("the topic is gone", () -> !admin.listTopics().names().get().contains(topic));
        return "topics, partitions, configs, offsets, cluster, groups";
    }

    static String kill() throws Exception {
        String topic = PREFIX + "kill";
        Set<Integer> acked = ConcurrentHashMap.newKeySet();
        Map<Integer, Set<String>> places = new HashMap<>();
        Map<String, Object> options = hasNextGeneration() ? Map.of("group.protocol", "consumer") : Map.of();
        try (KafkaConsumer<String, String> reader = consumer(PREFIX + "kill", options);
                KafkaProducer<String, String> client = producer(Map.of("linger.ms", 5))) {
            if (hasNextGeneration()) {
                subscribeByPattern(reader, List.of(topic));
            } else {
                reader.subscribe(List.of(topic));
            }
            Condition read = () -> {
                for (ConsumerRecord<String, String> record : reader.poll(Duration.ofMillis(20))) {
                    int number = Integer.parseInt(record.value().substring(0, 8));
                    places.computeIfAbsent(number, it -> new HashSet<>()).add(record.partition() + "/" + record.offset());
                }
                return true;
            };
            long deadline = System.nanoTime() + Long.parseLong(System.getenv("DURATION")) * 1_000_000_000L;
            int number = 0;
            while (System.nanoTime() < deadline) {
                for (int i = 0; i < 5; i++) {
                    int one = number++;
                    client.send(new ProducerRecord<>(topic, value(one)), (placed, error) -> {
                        if (error == null) {
                            acked.add(one);
                        }
                    });
                }
                read.holds();
            }
            client.flush();
            expect(!acked.isEmpty(), "nothing was acknowledged");
            until("all is read", () -> read.holds() && places.keySet().containsAll(acked));
        }
        long doubled = places.values().stream().filter(it -> it.size() > 1).count();
        expect(doubled == 0, doubled + " records are in the log twice");
        return acked.size() + " records";
    }
}
