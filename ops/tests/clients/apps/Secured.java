import java.nio.file.*;
import java.time.Duration;
import java.util.*;
import java.util.function.Supplier;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.acl.*;
import org.apache.kafka.common.resource.*;
import org.apache.kafka.common.serialization.*;

/**
 * Kafka's tools with a login over TLS, and what works with no more rights than its documents list: once with all of these
 * rules, and once without one of them, which must fail. Access rules are enforced.
 */
public final class Secured {
    static final String TOPIC = Lab.PREFIX + "orders";
    static final String PASSWORD = "a-secret-password";
    static final int RECORDS = 20;
    static final Duration SOON = Duration.ofSeconds(20);
    static final Properties ADMIN = given(System.getenv("OPTIONS"));
    static final Admin admin = Admin.create(connection());

    /** An access rule, and what it is for. */
    record Rule(ResourceType type, String name, PatternType pattern, AclOperation operation) {
        AclBinding of(String user) {
            AccessControlEntry entry = new AccessControlEntry("User:" + user, "*", operation, AclPermissionType.ALLOW);
            return new AclBinding(new ResourcePattern(type, name, pattern), entry);
        }
    }

    /** What a user does; it fails if a right is missing. */
    interface Work {
        void run(Map<String, Object> connection) throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        Lab.version();
        Lab.check("kafka-configs: users are made, get another password, described, deleted", Secured::users);
        Lab.check("kafka-acls: rules are made, listed, removed", Secured::rules);
        Lab.create(admin, TOPIC, 2, Map.of());
        Lab.check("kafka-console-producer and kafka-console-consumer", Secured::console);
        Lab.check("kafka-delegation-tokens", Tokens::tool);
        Lab.check("an administrator's delegation tokens", Tokens::administrator);
        Lab.check("a producer by OAUTHBEARER, whose tokens end", Bearer::produces);
        leastRights("producer", producerRules(), Secured::produce);
        leastRights("transactional producer", transactionRules(), Secured::transact);
        leastRights("consumer of a group", consumerRules(), Secured::consume);
        leastRights("consumer of a group by pattern, KIP-848", patternRules(), Secured::consumeByPattern);
        leastRights("administrator of topics", topicRules(), Secured::administerTopics);
        leastRights("administrator of groups", groupRules(), Secured::administerGroups);
        leastRights("administrator of users and rules", clusterRules(), Secured::administerCluster);
        leastRights("Streams, exactly_once_v2", Streams.rules(), Streams::run);
        leastRights("Connect, file source", FileSource.rules(), FileSource::run);
        Lab.exit();
    }

    static Properties given(String lines) {
        Properties given = new Properties();
        lines.lines().forEach(line -> given.put(line.substring(0, line.indexOf('=')), line.substring(line.indexOf('=') + 1)));
        return given;
    }

    static Map<String, Object> connection(String user, String password) {
        String login = String.format("org.apache.kafka.common.security.scram.ScramLoginModule required username=\"%s\" password=\"%s\";",
                user, password);
        return new HashMap<>(Map.of("bootstrap.servers", Lab.BOOTSTRAP, "security.protocol", ADMIN.getProperty("security.protocol"),
                "sasl.mechanism", ADMIN.getProperty("sasl.mechanism"), "sasl.jaas.config", login,
                "ssl.truststore.type", "PEM", "ssl.truststore.location", ADMIN.getProperty("ssl.ca.location")));
    }

    static Map<String, Object> connection() {
        return connection(ADMIN.getProperty("sasl.username"), ADMIN.getProperty("sasl.password"));
    }

    /** A reader of what is committed in a topic, who may do everything. */
    static <V> KafkaConsumer<String, V> reader(String topic, String group, Deserializer<V> values) {
        Map<String, Object> options = new HashMap<>(connection());
        options.putAll(Map.of("isolation.level", "read_committed", "group.id", Lab.PREFIX + group, "auto.offset.reset", "earliest"));
        KafkaConsumer<String, V> reader = new KafkaConsumer<>(options, new StringDeserializer(), values);
        reader.subscribe(List.of(topic));
        return reader;
    }

    /** The file of `--command-config`. */
    static String file(String user, String password) throws Exception {
        Map<String, String> lines = new HashMap<>();
        connection(user, password).forEach((name, value) -> lines.put(name, value.toString()));
        return Lab.settings(user + ".properties", lines);
    }

    static String[] as(String user, String password, String... arguments) throws Exception {
        return Tools.and(Tools.with("--command-config", file(user, password)), arguments);
    }

    static String[] asAdmin(String... arguments) throws Exception {
        return as(ADMIN.getProperty("sasl.username"), ADMIN.getProperty("sasl.password"), arguments);
    }

    static String config(String... arguments) throws Exception {
        return Tools.run("kafka-configs", kafka.admin.ConfigCommand::main, asAdmin(arguments));
    }

    static String acl(String... arguments) throws Exception {
        return Tools.run("kafka-acls", org.apache.kafka.tools.AclCommand::main, asAdmin(arguments));
    }

    static String user(String name, String password) throws Exception {
        config("--entity-type", "users", "--entity-name", name, "--alter", "--add-config", "SCRAM-SHA-512=[iterations=4096,password=" + password + "]");
        return name;
    }

    static boolean logsIn(String name, String password) throws Exception {
        try (Admin client = Admin.create(connection(name, password))) {
            client.describeCluster().nodes().get();
            return true;
        } catch (java.util.concurrent.ExecutionException error) {
            Lab.expect(error.getCause() instanceof org.apache.kafka.common.errors.SaslAuthenticationException, "" + error.getCause());
            return false;
        }
    }

    static String users() throws Exception {
        String name = Lab.PREFIX + "bob";
        String[] bob = {"--entity-type", "users", "--entity-name", name};
        Lab.expect(!logsIn(name, PASSWORD), "who is not there gets in");
        config(Tools.and(bob, "--alter", "--add-config", "SCRAM-SHA-256=[iterations=8192,password=x],SCRAM-SHA-512=[password=" + PASSWORD + "]"));
        String told = config(Tools.and(bob, "--describe"));
        Tools.expect(told, "SCRAM-SHA-256=iterations=8192");
        Tools.expect(told, "SCRAM-SHA-512=iterations=\\d+");
        Tools.expect(config("--entity-type", "users", "--describe"), name);
        Lab.until("the user gets in", () -> logsIn(name, PASSWORD));
        Lab.expect(!logsIn(name, "x"), "the password of another mechanism gets in");
        user(name, "another");
        Lab.until("the old password is refused", () -> !logsIn(name, PASSWORD));
        Lab.expect(logsIn(name, "another"), "the new password is refused");
        config(Tools.and(bob, "--alter", "--delete-config", "SCRAM-SHA-512"));
        Lab.until("who is deleted is refused", () -> !logsIn(name, "another"));
        Tools.expect(config(Tools.and(bob, "--describe")), "SCRAM-SHA-256=iterations=8192");
        config(Tools.and(bob, "--alter", "--delete-config", "SCRAM-SHA-256"));
        Lab.expect(!config("--entity-type", "users", "--describe").contains(name), "a user that was deleted is described");
        return "both mechanisms";
    }

    static String rules() throws Exception {
        String who = "User:" + Lab.PREFIX + "carol";
        acl("--add", "--allow-principal", who, "--consumer", "--topic", TOPIC, "--group", Lab.PREFIX, "--resource-pattern-type", "prefixed");
        acl("--add", "--allow-principal", who, "--operation", "IdempotentWrite", "--cluster");
        acl("--add", "--deny-principal", who, "--deny-host", "192.0.2.7", "--operation", "Write", "--topic", "*");
        acl("--add", "--allow-principal", who, "--operation", "Describe", "--transactional-id", "*");
        acl("--add", "--allow-principal", who, "--operation", "All", "--delegation-token", "t");
        acl("--add", "--allow-principal", who, "--operation", "CreateTokens", "--user-principal", "User:dan");
        String told = acl("--list", "--principal", who);
        for (String part : List.of("resourceType=GROUP, name=" + Lab.PREFIX, "resourceType=CLUSTER, name=kafka-cluster",
                "host=192.0.2.7, operation=WRITE, permissionType=DENY", "resourceType=TRANSACTIONAL_ID, name=\\*",
                "resourceType=DELEGATION_TOKEN", "resourceType=USER, name=User:dan")) {
            Tools.expect(told, part);
        }
        Tools.expect(acl("--list", "--topic", TOPIC + "-more", "--resource-pattern-type", "match"), "patternType=PREFIXED");
        acl("--remove", "--force", "--allow-principal", who, "--operation", "IdempotentWrite", "--cluster");
        Lab.expect(!acl("--list", "--principal", who).contains("CLUSTER"), "a rule that was removed is listed");
        for (String[] what : new String[][] {{"--topic", TOPIC}, {"--topic", "*"}, {"--group", Lab.PREFIX}, {"--transactional-id", "*"},
                {"--delegation-token", "t"}, {"--user-principal", "User:dan"}}) {
            acl(Tools.and(what, "--remove", "--force", "--resource-pattern-type", "any"));
        }
        Lab.expect(!acl("--list").contains(who), "rules that were removed are listed");
        return "every type of resource, prefixes, denials, hosts";
    }

    static String console() throws Exception {
        String name = user(Lab.PREFIX + "dora", PASSWORD);
        acl("--add", "--allow-principal", "User:" + name, "--producer", "--topic", TOPIC);
        acl("--add", "--allow-principal", "User:" + name, "--consumer", "--topic", TOPIC, "--group", Lab.PREFIX + "console");
        StringBuilder lines = new StringBuilder();
        for (int number = 0; number < RECORDS; number++) {
            lines.append("record ").append(number).append('\n');
        }
        process(lines.toString(), "org.apache.kafka.tools.ConsoleProducer", as(name, PASSWORD, "--topic", TOPIC));
        String told = process("", "org.apache.kafka.tools.consumer.ConsoleConsumer",
                as(name, PASSWORD, "--topic", TOPIC, "--group", Lab.PREFIX + "console", "--from-beginning", "--timeout-ms", "15000",
                        "--max-messages", "" + RECORDS));
        for (int number = 0; number < RECORDS; number++) {
            Tools.expect(told, "record " + number + "\\b");
        }
        return RECORDS + " records, with --command-config";
    }

    /** What a tool prints that takes the process that it runs in for its own; it must end well. */
    static String process(String input, String main, String... arguments) throws Exception {
        Path lines = Files.writeString(Lab.FOLDER.resolve("input.txt"), input);
        List<String> command = new ArrayList<>(List.of("java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", System.getProperty("java.class.path"),
                "-Dlog4j2.configurationFile=" + System.getProperty("log4j2.configurationFile"), main));
        for (String argument : arguments) {
            command.add(argument.replace("%B", Lab.BOOTSTRAP));
        }
        Process process = new ProcessBuilder(command).redirectErrorStream(true).redirectInput(lines.toFile()).start();
        String told = new String(process.getInputStream().readAllBytes());
        Tools.OUT.println("== " + main + "\n" + told);
        Lab.expect(process.waitFor() == 0, main + " ended with " + process.exitValue() + ": " + told);
        return told;
    }

    /** Does something as a new user with these rules, and then as another without one of them, for each of them. */
    static void leastRights(String what, List<Rule> rules, Work work) {
        Supplier<String> name = () -> Lab.PREFIX + what.replaceAll("[^a-zA-Z]", "") + "-" + System.nanoTime();
        Lab.check(what + " with the rules that it needs", () -> {
            work.run(connection(allowed(name.get(), rules), PASSWORD));
            return rules.size() + " rules";
        });
        for (Rule missing : rules) {
            String title = String.format("%s without %s of %s is refused", what, missing.operation, missing.type);
            Lab.check(title, () -> {
                List<Rule> rest = rules.stream().filter(rule -> rule != missing).toList();
                Map<String, Object> connection = connection(allowed(name.get(), rest), PASSWORD);
                try {
                    work.run(connection);
                } catch (Exception error) {
                    for (Throwable cause = error; cause != null; cause = cause.getCause()) {
                        if (cause instanceof org.apache.kafka.common.errors.AuthorizationException || ("" + cause.getMessage()).contains("uthoriz")) {
                            return "" + cause.getMessage();
                        }
                    }
                    throw error;
                }
                throw new IllegalStateException("it was done");
            });
        }
    }

    static String allowed(String user, List<Rule> rules) throws Exception {
        user(user, PASSWORD);
        admin.createAcls(rules.stream().map(rule -> rule.of(user)).toList()).all().get();
        return user;
    }

    static Rule literal(ResourceType type, String name, AclOperation operation) {
        return new Rule(type, name, PatternType.LITERAL, operation);
    }

    static Rule prefixed(ResourceType type, String name, AclOperation operation) {
        return new Rule(type, name, PatternType.PREFIXED, operation);
    }

    static List<Rule> producerRules() {
        return List.of(literal(ResourceType.TOPIC, TOPIC, AclOperation.WRITE));
    }

    static List<Rule> transactionRules() {
        return List.of(literal(ResourceType.TOPIC, TOPIC, AclOperation.WRITE),
                literal(ResourceType.TRANSACTIONAL_ID, Lab.PREFIX + "t", AclOperation.WRITE));
    }

    static List<Rule> consumerRules() {
        return List.of(literal(ResourceType.TOPIC, TOPIC, AclOperation.READ),
                literal(ResourceType.GROUP, Lab.PREFIX + "group", AclOperation.READ));
    }

    static KafkaProducer<String, String> producer(Map<String, Object> connection, Map<String, Object> more) {
        Map<String, Object> options = new HashMap<>(connection);
        options.putAll(Map.of("acks", "all", "max.block.ms", 10_000, "delivery.timeout.ms", 15_000, "request.timeout.ms", 10_000));
        options.putAll(more);
        return new KafkaProducer<>(options, new StringSerializer(), new StringSerializer());
    }

    static void produce(Map<String, Object> connection) throws Exception {
        try (var producer = producer(connection, Map.of())) {
            for (int number = 0; number < RECORDS; number++) {
                producer.send(new ProducerRecord<>(TOPIC, "record " + number)).get();
            }
        }
    }

    static void transact(Map<String, Object> connection) throws Exception {
        try (var producer = producer(connection, Map.of("transactional.id", Lab.PREFIX + "t"))) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(TOPIC, "in a transaction")).get();
            producer.commitTransaction();
        }
    }

    static void consume(Map<String, Object> connection) throws Exception {
        Map<String, Object> options = new HashMap<>(connection);
        options.putAll(Map.of("group.id", Lab.PREFIX + "group", "auto.offset.reset", "earliest"));
        for (String protocol : List.of("classic", "consumer")) {
            options.put("group.protocol", protocol);
            try (var consumer = new KafkaConsumer<>(options, new StringDeserializer(), new StringDeserializer())) {
                consumer.subscribe(List.of(TOPIC));
                Lab.until(SOON, "partitions", () -> consumer.poll(Duration.ofMillis(200)) != null && consumer.assignment().size() == 2);
                Map<TopicPartition, OffsetAndMetadata> read = new HashMap<>();
                consumer.assignment().forEach(it -> read.put(it, new OffsetAndMetadata(1)));
                consumer.commitSync(read);
            }
        }
    }

    static List<Rule> patternRules() {
        return List.of(literal(ResourceType.TOPIC, TOPIC, AclOperation.READ),
                literal(ResourceType.GROUP, Lab.PREFIX + "pattern", AclOperation.READ));
    }

    /** Of what the pattern fits a member gets what it may describe; without a right it gets nothing, and nobody says so. */
    static void consumeByPattern(Map<String, Object> connection) throws Exception {
        Map<String, Object> options = new HashMap<>(connection);
        options.putAll(Map.of("group.id", Lab.PREFIX + "pattern", "group.protocol", "consumer", "auto.offset.reset", "earliest"));
        try (var consumer = new KafkaConsumer<>(options, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(new SubscriptionPattern(Lab.PREFIX + ".*"));
            try {
                Lab.until(Duration.ofSeconds(15), "partitions", () -> consumer.poll(Duration.ofMillis(200)) != null && consumer.assignment().size() == 2);
            } catch (IllegalStateException nothing) {
                throw new org.apache.kafka.common.errors.TopicAuthorizationException("no partitions");
            }
            Lab.expect(consumer.assignment().stream().allMatch(it -> it.topic().equals(TOPIC)), "" + consumer.assignment());
        }
    }

    static List<Rule> topicRules() {
        String name = Lab.PREFIX + "administered";
        return List.of(literal(ResourceType.TOPIC, name, AclOperation.CREATE), literal(ResourceType.TOPIC, name, AclOperation.ALTER),
                literal(ResourceType.TOPIC, name, AclOperation.ALTER_CONFIGS), literal(ResourceType.TOPIC, name, AclOperation.DELETE));
    }

    /** Who may alter configs may see them too. */
    static void administerTopics(Map<String, Object> connection) throws Exception {
        String name = Lab.PREFIX + "administered";
        var resource = new org.apache.kafka.common.config.ConfigResource(org.apache.kafka.common.config.ConfigResource.Type.TOPIC, name);
        var change = new AlterConfigOp(new ConfigEntry("retention.ms", "123456"), AlterConfigOp.OpType.SET);
        try (Admin client = Admin.create(connection)) {
            client.createTopics(List.of(new NewTopic(name, 1, (short) 1))).all().get();
            client.createPartitions(Map.of(name, NewPartitions.increaseTo(2))).all().get();
            client.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
            client.describeConfigs(List.of(resource)).all().get();
            client.deleteTopics(List.of(name)).all().get();
        } finally {
            if (admin.listTopics().names().get().contains(name)) {
                admin.deleteTopics(List.of(name)).all().get();
            }
        }
    }

    static List<Rule> groupRules() {
        return List.of(literal(ResourceType.GROUP, Lab.PREFIX + "group", AclOperation.DESCRIBE),
                literal(ResourceType.TOPIC, TOPIC, AclOperation.DESCRIBE));
    }

    static void administerGroups(Map<String, Object> connection) throws Exception {
        String group = Lab.PREFIX + "group";
        try (Admin client = Admin.create(connection)) {
            client.describeConsumerGroups(List.of(group)).all().get();
            Lab.expect(client.listGroups().all().get().stream().anyMatch(it -> it.groupId().equals(group)), "the group is not listed");
            var offsets = client.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
            if (offsets.size() != 2) {
                throw new org.apache.kafka.common.errors.TopicAuthorizationException(offsets.size() + " of 2 offsets");
            }
        }
    }

    static List<Rule> clusterRules() {
        return List.of(literal(ResourceType.CLUSTER, "kafka-cluster", AclOperation.ALTER));
    }

    static void administerCluster(Map<String, Object> connection) throws Exception {
        var rule = literal(ResourceType.TOPIC, "a-topic", AclOperation.READ).of("somebody");
        String name = Lab.PREFIX + "somebody";
        try (Admin client = Admin.create(connection)) {
            client.createAcls(List.of(rule)).all().get();
            Lab.expect(client.describeAcls(rule.toFilter()).values().get().size() == 1, "the rule is not there");
            client.deleteAcls(List.of(rule.toFilter())).all().get();
            var info = new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096);
            client.alterUserScramCredentials(List.of(new UserScramCredentialUpsertion(name, info, PASSWORD))).all().get();
            client.describeUserScramCredentials(List.of(name)).all().get();
            client.alterUserScramCredentials(List.of(new UserScramCredentialDeletion(name, ScramMechanism.SCRAM_SHA_256))).all().get();
        }
    }
}
