import java.io.*;
import java.util.*;
import java.util.regex.Pattern;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.common.utils.Exit;

/** The classes behind kafka-*.sh, as they are, against a topic and a group of this run. */
public final class Tools {
    static final String TOPIC = Lab.PREFIX + "tools";
    static final String GROUP = Lab.PREFIX + "tools-group";
    static final int RECORDS = 100;
    static final PrintStream OUT = System.out;

    interface Main {
        void run(String[] arguments) throws Exception;
    }

    /** The code that a tool ended with first: some take what ends them for another failure. */
    static Integer ended;

    /** What a tool ended with instead of the process. */
    static final class Ended extends RuntimeException {
        Ended(int code) {
            super("exit " + code, null, false, false);
        }
    }

    public static void main(String[] arguments) throws Exception {
        Exit.Procedure end = (code, message) -> {
            ended = ended == null ? code : ended;
            throw new Ended(code);
        };
        Exit.setExitProcedure(end);
        Exit.setHaltProcedure(end);
        Lab.version();
        Lab.check("kafka-topics", Tools::topics);
        Lab.check("kafka-configs", Tools::configs);
        Lab.check("kafka-configs, quotas", Tools::quotas);
        Lab.check("kafka-consumer-groups, kafka-groups", Tools::groups);
        Lab.check("kafka-get-offsets, kafka-delete-records", Tools::offsets);
        Lab.check("kafka-transactions", Tools::transactions);
        Lab.check("kafka-log-dirs, kafka-cluster, kafka-broker-api-versions, kafka-features", Tools::cluster);
        Lab.check("kafka-metadata-quorum", Tools::quorum);
        Lab.check("kafka-leader-election, kafka-reassign-partitions", Tools::placement);
        Lab.check("kafka-console-consumer of internal topics", Tools::internal);
        Lab.check("kafka-acls", Tools::acls);
        Lab.check("kafka-client-metrics", Tools::metrics);
        Lab.check("kafka-producer-perf-test, kafka-consumer-perf-test, kafka-e2e-latency", Tools::performance);
        Lab.check("kafka-streams-application-reset", Tools::reset);
        Lab.exit();
    }

    /** What a tool prints; it must end well. The argument %B is where the cluster is. */
    static String run(String name, Main main, String... arguments) throws Exception {
        ByteArrayOutputStream told = new ByteArrayOutputStream();
        PrintStream stream = new PrintStream(told, true);
        PrintStream errors = System.err;
        List<String> all = new ArrayList<>();
        for (String argument : arguments) {
            all.add(argument.replace("%B", Lab.BOOTSTRAP));
        }
        OUT.println("== " + name + " " + String.join(" ", all));
        System.setOut(stream);
        System.setErr(stream);
        ended = null;
        try {
            scala.Console.withOut(stream, () -> {
                try {
                    main.run(all.toArray(new String[0]));
                } catch (RuntimeException error) {
                    throw error;
                } catch (Exception error) {
                    throw new IllegalStateException(error);
                }
                return null;
            });
        } catch (Ended end) {
            // Its code is kept.
        } finally {
            System.setOut(OUT);
            System.setErr(errors);
        }
        OUT.println(told);
        Lab.expect(ended == null || ended == 0, name + " " + String.join(" ", arguments) + " ended with " + ended + ": " + told);
        return told.toString();
    }

    static void expect(String told, String pattern) {
        Lab.expect(Pattern.compile(pattern).matcher(told).find(), "no " + pattern + " in: " + told);
    }

    static String topic(String... arguments) throws Exception {
        return run("kafka-topics", org.apache.kafka.tools.TopicCommand::main, with(arguments));
    }

    static String group(String... arguments) throws Exception {
        return run("kafka-consumer-groups", org.apache.kafka.tools.consumer.group.ConsumerGroupCommand::main, with(arguments));
    }

    static String config(String... arguments) throws Exception {
        return run("kafka-configs", kafka.admin.ConfigCommand::main, with(arguments));
    }

    static String[] with(String... arguments) {
        List<String> all = new ArrayList<>(List.of("--bootstrap-server", "%B"));
        all.addAll(List.of(arguments));
        return all.toArray(new String[0]);
    }

    static String topics() throws Exception {
        topic("--create", "--topic", TOPIC, "--partitions", "2", "--replication-factor", "3", "--config", "retention.ms=1000000");
        expect(topic("--list"), TOPIC);
        expect(topic("--describe", "--topic", TOPIC), "PartitionCount: 2.*ReplicationFactor: 3.*retention.ms=1000000");
        topic("--alter", "--topic", TOPIC, "--partitions", "4");
        Lab.until("four partitions", () -> topic("--describe", "--topic", TOPIC).contains("PartitionCount: 4"));
        for (String what : List.of("under-replicated", "unavailable", "under-min-isr", "at-min-isr")) {
            Lab.until("none " + what, () -> !topic("--describe", "--topic", TOPIC, "--" + what + "-partitions").contains("Partition: "));
        }
        topic("--create", "--topic", TOPIC + "-gone");
        topic("--delete", "--topic", TOPIC + "-gone");
        Lab.until("the topic is gone", () -> !topic("--list").contains(TOPIC + "-gone"));
        fill();
        return "create, list, describe (also by trouble), alter, delete";
    }

    static void fill() throws Exception {
        try (var producer = Lab.producer(Lab.BOOTSTRAP)) {
            for (int number = 0; number < RECORDS; number++) {
                producer.send(new ProducerRecord<>(TOPIC, number % 4, "k", "record " + number));
            }
            producer.flush();
        }
        Map<String, Object> options = Map.of("bootstrap.servers", Lab.BOOTSTRAP, "group.id", GROUP, "enable.auto.commit", false);
        try (var consumer = new KafkaConsumer<>(options, new StringDeserializer(), new StringDeserializer())) {
            consumer.assign(List.of(new TopicPartition(TOPIC, 0), new TopicPartition(TOPIC, 1)));
            consumer.commitSync(Map.of(new TopicPartition(TOPIC, 0), new OffsetAndMetadata(10),
                    new TopicPartition(TOPIC, 1), new OffsetAndMetadata(5)));
        }
    }

    static String configs() throws Exception {
        config("--entity-type", "topics", "--entity-name", TOPIC, "--alter", "--add-config", "retention.ms=123456,cleanup.policy=[compact,delete]");
        Lab.until("the config is kept", () -> {
            String told = config("--entity-type", "topics", "--entity-name", TOPIC, "--describe");
            return told.contains("retention.ms=123456") && told.contains("cleanup.policy=compact,delete");
        });
        config("--entity-type", "topics", "--entity-name", TOPIC, "--alter", "--delete-config", "cleanup.policy,retention.ms");
        String told = config("--entity-type", "brokers", "--entity-name", "1", "--describe", "--all");
        for (String name : List.of("transaction.max.timeout.ms", "offsets.retention.minutes", "group.max.session.timeout.ms",
                "group.consumer.session.timeout.ms", "auto.create.topics.enable", "message.max.bytes", "log.retention.ms", "num.partitions")) {
            expect(told, name + "=");
        }
        expect(config("--entity-type", "broker-loggers", "--entity-name", "1", "--describe"), "root=");
        String[] group = {"--entity-type", "groups", "--entity-name", GROUP};
        expect(config(and(group, "--describe", "--all")), "consumer.session.timeout.ms=");
        config(and(group, "--alter", "--add-config", "consumer.session.timeout.ms=50000"));
        Lab.until("the config is kept", () -> config(and(group, "--describe")).contains("consumer.session.timeout.ms=50000"));
        config(and(group, "--alter", "--delete-config", "consumer.session.timeout.ms"));
        config("--entity-type", "client-metrics", "--entity-name", "any", "--describe", "--all");
        String[] defaults = {"--entity-type", "brokers", "--entity-default"};
        config(and(defaults, "--alter", "--add-config", "log.retention.ms=600000000"));
        Lab.until("the default is kept", () -> config(and(defaults, "--describe")).contains("log.retention.ms=600000000"));
        expect(config("--entity-type", "topics", "--entity-name", TOPIC, "--describe", "--all"), "[^.]retention.ms=600000000");
        config(and(defaults, "--alter", "--delete-config", "log.retention.ms"));
        Lab.until("the default is gone", () -> !config(and(defaults, "--describe")).contains("log.retention.ms=6"));
        return "topics: describe, add, delete; brokers: describe --all; defaults of all brokers: add, describe, delete";
    }

    static String[] and(String[] arguments, String... more) {
        List<String> all = new ArrayList<>(List.of(arguments));
        all.addAll(List.of(more));
        return all.toArray(new String[0]);
    }

    /** A client that may write 20 kB a second, a second's worth of it at once, takes its time for 100 kB. */
    static String quotas() throws Exception {
        String id = Lab.PREFIX + "slow";
        String[] client = {"--entity-type", "clients", "--entity-name", id};
        config(and(client, "--alter", "--add-config", "producer_byte_rate=20000"));
        Lab.until("the quota is kept", () -> config(and(client, "--describe")).contains("producer_byte_rate=20000"));
        Map<String, Object> options = Map.of("bootstrap.servers", Lab.BOOTSTRAP, "client.id", id, "batch.size", 1000);
        long began = System.nanoTime();
        try (var producer = new KafkaProducer<>(options, new StringSerializer(), new StringSerializer())) {
            for (int number = 0; number < 100; number++) {
                producer.send(new ProducerRecord<>(TOPIC, 3, "k", "x".repeat(1000)));
            }
            producer.flush();
        }
        double seconds = (System.nanoTime() - began) / 1e9;
        Lab.expect(seconds >= 3 && seconds <= 20, "100 kB at 20 kB/s took " + seconds + " s");
        config(and(client, "--alter", "--delete-config", "producer_byte_rate"));
        Lab.until("the quota is gone", () -> !config(and(client, "--describe")).contains("producer_byte_rate"));
        String[] user = {"--entity-type", "users", "--entity-name", id};
        config(and(user, "--alter", "--add-config", "request_percentage=50,controller_mutation_rate=2.5"));
        Lab.until("the quotas are kept", () -> {
            String told = config("--entity-type", "users", "--describe");
            return told.contains("request_percentage=50") && told.contains("controller_mutation_rate=2.5");
        });
        config(and(user, "--alter", "--delete-config", "request_percentage,controller_mutation_rate"));
        String[] address = {"--entity-type", "ips", "--entity-name", "192.0.2.7"};
        config(and(address, "--alter", "--add-config", "connection_creation_rate=10"));
        Lab.until("the quota is kept", () -> config(and(address, "--describe")).contains("connection_creation_rate=10"));
        config(and(address, "--alter", "--delete-config", "connection_creation_rate"));
        return String.format("a client's producer_byte_rate: add, describe, delete; 100 kB at 20 kB/s took %.1f s; quotas of users, of addresses", seconds);
    }

    static String quorum() throws Exception {
        Main tool = org.apache.kafka.tools.MetadataQuorumCommand::main;
        String told = run("kafka-metadata-quorum", tool, with("describe", "--status"));
        expect(told, "LeaderId: +[1-9]");
        expect(told, "MaxFollowerLag: +\\d+");
        told = run("kafka-metadata-quorum", tool, with("describe", "--replication"));
        Lab.expect(told.lines().filter(line -> line.contains("Follower")).count() == 8, "not eight followers: " + told);
        return "describe --status, --replication: nine voters";
    }

    static String groups() throws Exception {
        expect(group("--list"), GROUP);
        expect(group("--list", "--state"), GROUP + " .*(Empty|Dead)");
        expect(group("--describe", "--group", GROUP), TOPIC + " +0 +10 +25 +15");
        expect(group("--describe", "--group", GROUP, "--state"), "Empty");
        group("--describe", "--group", GROUP, "--members", "--verbose");
        expect(group("--describe", "--all-groups"), GROUP);
        for (String how : List.of("--to-earliest", "--to-latest", "--shift-by -3", "--to-datetime 2000-01-01T00:00:00.000", "--by-duration PT1H", "--to-offset 7")) {
            List<String> arguments = new ArrayList<>(List.of("--reset-offsets", "--group", GROUP, "--topic", TOPIC + ":0,1", "--execute"));
            arguments.addAll(List.of(how.split(" ")));
            expect(group(arguments.toArray(new String[0])), TOPIC);
        }
        expect(group("--describe", "--group", GROUP, "--offsets"), TOPIC + " +0 +7 +25 +18");
        group("--delete-offsets", "--group", GROUP, "--topic", TOPIC + ":1");
        expect(run("kafka-groups", org.apache.kafka.tools.GroupsCommand::main, with("--list")), GROUP);
        group("--delete", "--group", GROUP);
        Lab.until("the group is gone", () -> !group("--list").contains(GROUP));
        return "list, describe (offsets, state, members, all), reset six ways, delete offsets, delete";
    }

    static String offsets() throws Exception {
        Main tool = org.apache.kafka.tools.GetOffsetShell::main;
        for (String time : List.of("-1", "-2", "-3", "-4", "0")) {
            expect(run("kafka-get-offsets", tool, with("--topic", TOPIC, "--time", time)), TOPIC + ":0:" + (time.equals("-1") ? "25" : "\\d+"));
        }
        run("kafka-get-offsets", tool, with("--topic", TOPIC, "--time", "-5"));
        String json = "{\"version\":1,\"partitions\":[{\"topic\":\"" + TOPIC + "\",\"partition\":0,\"offset\":9}]}";
        String file = Lab.settings("delete.json", Map.of());
        java.nio.file.Files.writeString(java.nio.file.Path.of(file), json);
        expect(run("kafka-delete-records", org.apache.kafka.tools.DeleteRecordsCommand::main, with("--offset-json-file", file)), "low_watermark: 9");
        expect(run("kafka-get-offsets", tool, with("--topic", TOPIC, "--time", "-2")), TOPIC + ":0:9");
        return "by -1 to -5 and by time; records before 9 deleted";
    }

    static String transaction(String... arguments) throws Exception {
        return run("kafka-transactions", org.apache.kafka.tools.TransactionsCommand::main, with(arguments));
    }

    static String transactions() throws Exception {
        String id = Lab.PREFIX + "tools-transaction";
        Map<String, Object> options = Map.of("bootstrap.servers", Lab.BOOTSTRAP, "transactional.id", id, "transaction.timeout.ms", 600_000);
        try (var producer = new KafkaProducer<>(options, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(TOPIC, 0, "k", "open")).get();
            expect(transaction("list"), id + ".*Ongoing");
            expect(transaction("describe", "--transactional-id", id), "Ongoing.*" + TOPIC + "-0");
            expect(transaction("describe-producers", "--topic", TOPIC, "--partition", "0"), "\\d+\\s+\\d+");
            transaction("find-hanging", "--topic", TOPIC, "--partition", "0");
            transaction("forceTerminateTransaction", "--transactionalId", id);
            Lab.until("it is ended", () -> !transaction("describe", "--transactional-id", id).contains("Ongoing"));
        } catch (org.apache.kafka.common.KafkaException fencedWhenClosing) {
            OUT.println(fencedWhenClosing);
        }
        return "list, describe, describe-producers, find-hanging, force-terminate of an open one";
    }

    static String cluster() throws Exception {
        expect(run("kafka-log-dirs", org.apache.kafka.tools.LogDirsCommand::main, with("--describe", "--topic-list", TOPIC)), TOPIC);
        expect(run("kafka-cluster", org.apache.kafka.tools.ClusterTool::main, "cluster-id", "--bootstrap-server", "%B"), "Cluster ID: ");
        expect(run("kafka-cluster", org.apache.kafka.tools.ClusterTool::main, "list-endpoints", "--bootstrap-server", "%B"), "9 ");
        expect(run("kafka-broker-api-versions", org.apache.kafka.tools.BrokerApiVersionsCommand::main, with()), "Produce\\(0\\)");
        expect(run("kafka-features", org.apache.kafka.tools.FeatureCommand::main, with("describe")), "transaction.version");
        run("kafka-features", org.apache.kafka.tools.FeatureCommand::main, with("upgrade", "--feature", "transaction.version=2"));
        return "describe; an upgrade to what holds";
    }

    static String placement() throws Exception {
        Main election = org.apache.kafka.tools.LeaderElectionCommand::main;
        run("kafka-leader-election", election, with("--election-type", "preferred", "--all-topic-partitions"));
        run("kafka-leader-election", election, with("--election-type", "preferred", "--topic", TOPIC, "--partition", "0"));
        Main reassign = org.apache.kafka.tools.reassign.ReassignPartitionsCommand::main;
        expect(run("kafka-reassign-partitions", reassign, with("--list")), "No partition reassignments found");
        // To where it is already.
        String replicas = topic("--describe", "--topic", TOPIC).lines().filter(line -> line.contains("Partition: 0"))
                .map(line -> line.replaceAll(".*Replicas: ([0-9,]+).*", "$1")).findFirst().orElse("");
        String json = "{\"version\":1,\"partitions\":[{\"topic\":\"" + TOPIC + "\",\"partition\":0,\"replicas\":[" + replicas + "]}]}";
        String file = Lab.settings("reassign.json", Map.of());
        java.nio.file.Files.writeString(java.nio.file.Path.of(file), json);
        for (String what : List.of("--execute", "--verify", "--cancel")) {
            run("kafka-reassign-partitions", reassign, with(what, "--reassignment-json-file", file));
        }
        return "preferred leaders; list; execute, verify and cancel of a move that changes nothing";
    }

    /** Committed offsets, groups and transactions as Kafka's own formatters read them. */
    static String internal() throws Exception {
        String committed = consoled("__consumer_offsets", "OffsetsMessageFormatter");
        expect(committed, "\"group\":\"" + GROUP + "\".*\"topic\":\"" + TOPIC + "\".*\"offset\":10");
        consoled("__consumer_offsets", "GroupMetadataMessageFormatter");
        String id = Lab.PREFIX + "tools-transaction";
        expect(consoled("__transaction_state", "TransactionLogMessageFormatter"), "\"transactionalId\":\"" + id + "\"");
        return "OffsetsMessageFormatter, GroupMetadataMessageFormatter, TransactionLogMessageFormatter";
    }

    static String consoled(String topic, String formatter) throws Exception {
        return run("kafka-console-consumer", org.apache.kafka.tools.consumer.ConsoleConsumer::main,
                with("--topic", topic, "--from-beginning", "--timeout-ms", "10000", "--formatter",
                        "org.apache.kafka.tools.consumer." + formatter));
    }

    static String acls() throws Exception {
        String user = "User:" + Lab.PREFIX + "alice";
        acl("--add", "--allow-principal", user, "--producer", "--topic", TOPIC);
        acl("--add", "--deny-principal", user, "--operation", "Write", "--topic", TOPIC, "--resource-pattern-type", "prefixed");
        expect(acl("--list", "--principal", user), "operation=WRITE, permissionType=ALLOW");
        String matching = acl("--list", "--topic", TOPIC, "--resource-pattern-type", "match");
        expect(matching, "patternType=PREFIXED[^`]*`:\\s+\\(principal=" + user + ", host=\\*, operation=WRITE, permissionType=DENY");
        acl("--remove", "--force", "--topic", TOPIC, "--resource-pattern-type", "any");
        Lab.until("no rules", () -> !acl("--list", "--topic", TOPIC).contains(user));
        return "add, list by principal and by topic, remove: bundles, prefixes, denials";
    }

    static String acl(String... arguments) throws Exception {
        return run("kafka-acls", org.apache.kafka.tools.AclCommand::main, with(arguments));
    }

    static String metrics() throws Exception {
        run("kafka-client-metrics", org.apache.kafka.tools.ClientMetricsCommand::main, with("--list"));
        return "list: none, they are set in the nodes' files";
    }

    static String performance() throws Exception {
        run("kafka-producer-perf-test", org.apache.kafka.tools.ProducerPerformance::main, "--topic", TOPIC + "-perf", "--num-records", "20000",
                "--record-size", "100", "--throughput", "-1", "--command-property", "bootstrap.servers=" + Lab.BOOTSTRAP);
        run("kafka-consumer-perf-test", org.apache.kafka.tools.ConsumerPerformance::main,
                with("--topic", TOPIC + "-perf", "--num-records", "20000"));
        run("kafka-e2e-latency", org.apache.kafka.tools.EndToEndLatency::main, "%B", TOPIC + "-e2e", "500", "all", "100");
        return "20 000 records each, 500 round trips";
    }

    static String reset() throws Exception {
        run("kafka-streams-application-reset", org.apache.kafka.tools.StreamsResetter::main,
                with("--application-id", Lab.PREFIX + "no-app", "--input-topics", TOPIC, "--force"));
        return "offsets of an application's input";
    }
}
