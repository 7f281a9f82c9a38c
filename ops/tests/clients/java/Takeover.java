import static java.util.stream.Collectors.joining;
import static java.util.stream.Collectors.toList;

import java.nio.file.*;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.config.ConfigResource;

/** Groups, transactions and an administrator while nodes are killed; what is told is judged by the driver. */
final class Takeover {
    static final String TOPIC = Client.PREFIX + Client.PHASE;
    /** Of the group, the transactions or the topics. */
    static final String NAME = System.getenv("NAME");

    static Client.Check of(String phase) {
        return Map.<String, Client.Check>of("group-kill", () -> group(false), "consumer-kill", () -> group(true), "transactions-kill",
                Takeover::transactions, "admin-kill", Takeover::admin).get(phase);
    }

    static boolean signalled(String word) {
        return Files.exists(Path.of(System.getenv("SIGNALS"), word));
    }

    /** A line that the driver judges by. */
    static synchronized void tell(Object... words) {
        System.out.println(Arrays.stream(words).map(Object::toString).collect(joining(" ")));
    }

    /** Tells of what fails, which is tried again. */
    static boolean attempt(String what, Client.Condition body) {
        try {
            return body.holds();
        } catch (Exception error) {
            tell(what, error);
            return false;
        }
    }

    static KafkaConsumer<String, String> member(String group, Map<String, Object> options) {
        KafkaConsumer<String, String> member = Client.consumer(group, options);
        member.subscribe(List.of(TOPIC));
        return member;
    }

    /** Polls for a moment, and tells what was read. */
    static void read(KafkaConsumer<String, String> member, Set<Integer> read) {
        for (ConsumerRecord<String, String> record : member.poll(Duration.ofMillis(10))) {
            int number = Integer.parseInt(record.value().substring(0, 8));
            read.add(number);
            tell("READ", number, record.partition(), record.offset());
        }
    }

    static boolean isCommitted(KafkaConsumer<String, String> member) {
        return attempt("commit", () -> {
            member.commitSync(Duration.ofSeconds(5));
            return true;
        });
    }

    /** Two members share four partitions, until one leaves; nodes are killed. */
    static String group(boolean isNextGeneration) throws Exception {
        if (isNextGeneration && !Client.hasNextGeneration()) {
            throw new Client.Lacking("no group.protocol");
        }
        Map<String, Object> options = isNextGeneration ? Map.of("group.protocol", "consumer") : Map.of("session.timeout.ms", 10000);
        Set<Integer> acked = ConcurrentHashMap.newKeySet();
        Set<Integer> read = new HashSet<>();
        List<KafkaConsumer<String, String>> members = new ArrayList<>(List.of(member(NAME, options), member(NAME, options)));
        Client.until("two members share", () -> {
            members.forEach(member -> read(member, read));
            return members.stream().allMatch(member -> member.assignment().size() == 2);
        });
        tell("READY");
        try (KafkaProducer<String, String> client = Client.producer(Map.of("linger.ms", 5))) {
            for (int next = 0; !signalled("stop"); next++) {
                int number = next;
                client.send(new ProducerRecord<>(TOPIC, Client.value(number)), (placed, error) -> {
                    if (error == null) {
                        acked.add(number);
                        tell("ACKED", number);
                    }
                });
                members.forEach(member -> read(member, read));
                if (number % 20 == 0) {
                    isCommitted(members.get(number / 20 % members.size()));
                }
                if (members.size() == 2 && signalled("leave")) {
                    members.remove(1).close();
                    tell("LEFT");
                }
            }
        }
        KafkaConsumer<String, String> one = members.get(0);
        // A member whose farewell found no coordinator is missed after 45 s.
        Client.until(Client.WITHIN.multipliedBy(2), "one member has and has read all", () -> {
            read(one, read);
            return one.assignment().size() == 4 && read.containsAll(acked);
        });
        Client.until("all is committed", () -> isCommitted(one));
        one.close();
        KafkaConsumer<String, String> after = member(NAME, options);
        Client.Condition again = () -> {
            after.poll(Duration.ofMillis(200)).forEach(record -> tell("AGAIN", record.value().substring(0, 8)));
            return after.assignment().size() == 4;
        };
        Client.until("the group goes on", again);
        again.holds();
        after.close();
        return acked.size() + " records";
    }

    /** Of a record in each of nine partitions, every fifth aborted, while nodes are killed; after an error there is a new producer. */
    static String transactions() throws Exception {
        KafkaProducer<String, String> client = null;
        int number = 0;
        for (String outcome = ""; !(outcome.equals("COMMITTED") && signalled("stop")); number++) {
            outcome = "ABORTED";
            try {
                if (client == null) {
                    client = Client.producer(Map.of("transactional.id", NAME, "max.block.ms", 40000));
                    client.initTransactions();
                }
                client.beginTransaction();
                List<Future<RecordMetadata>> sent = new ArrayList<>();
                for (int partition = 0; partition < 9; partition++) {
                    sent.add(client.send(new ProducerRecord<>(TOPIC, partition, "", Client.value(number * 10 + partition))));
                }
                client.flush();
                for (Future<RecordMetadata> one : sent) {
                    one.get();
                }
                if (number % 5 == 4) {
                    client.abortTransaction();
                } else {
                    outcome = "UNKNOWN";
                    client.commitTransaction();
                    outcome = "COMMITTED";
                }
            } catch (Exception error) {
                tell("transaction", error);
                client.close(Duration.ZERO);
                client = null;
            }
            tell(outcome, number);
            if (number == 4) {
                tell("READY");
            }
        }
        client.close();
        // Each partition has a record of the last one: what comes before it has been read then.
        Set<Integer> read = new HashSet<>();
        List<Integer> last = IntStream.range(number * 10 - 10, number * 10 - 1).boxed().collect(toList());
        try (KafkaConsumer<String, String> reader = member(NAME + "-read", Map.of("isolation.level", "read_committed"))) {
            Client.until("the last transaction", () -> {
                read(reader, read);
                return read.containsAll(last);
            });
        }
        return number + " transactions";
    }

    /** One of an administrator's steps: what is to hold, and what to do for it. Either may fail for a while. */
    static void step(String what, Client.Condition holds, Client.Check act) throws Exception {
        Client.until(what, () -> {
            boolean is = attempt(what, holds);
            if (!is) {
                attempt(what, () -> act.run() != null);
                Thread.sleep(100);
            }
            return is;
        });
    }

    /** Rounds of an administrator's steps while nodes are killed. */
    static String admin() throws Exception {
        long longest = 0;
        int round = 0;
        String group = Client.PREFIX + "group";
        for (boolean isLast = false; !isLast; round++) {
            isLast = signalled("stop");
            String topic = NAME + "-" + round;
            ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
            AlterConfigOp change = new AlterConfigOp(new ConfigEntry("retention.ms", "123456"), AlterConfigOp.OpType.SET);
            Client.Condition exists = () -> Client.admin.listTopics().names().get().contains(topic);
            Map<String, Client.Condition> holds = new LinkedHashMap<>();
            Map<String, Client.Check> acts = new HashMap<>();
            holds.put("create", exists);
            acts.put("create", () -> "" + Client.admin.createTopics(List.of(new NewTopic(topic, 1, (short) 3))).all().get());
            holds.put("describe", () -> Client.partitions(topic) == 1);
            holds.put("alter the config",
                    () -> Client.admin.describeConfigs(List.of(resource)).all().get().get(resource).get("retention.ms").value().equals("123456"));
            acts.put("alter the config", () -> "" + Client.admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get());
            holds.put("list groups", () -> Client.admin.listConsumerGroups().all().get().stream().anyMatch(it -> it.groupId().equals(group)));
            holds.put("describe the group",
                    () -> Client.admin.describeConsumerGroups(List.of(group)).all().get().get(group).state().toString().equals("Empty"));
            holds.put("delete", () -> !exists.holds());
            acts.put("delete", () -> "" + Client.admin.deleteTopics(List.of(topic)).all().get());
            for (Map.Entry<String, Client.Condition> one : holds.entrySet()) {
                long began = System.nanoTime();
                step(one.getKey(), one.getValue(), acts.getOrDefault(one.getKey(), () -> ""));
                longest = Math.max(longest, System.nanoTime() - began);
            }
            if (round == 0) {
                tell("READY");
            }
        }
        return String.format("%d rounds, a step took %.1f s at most", round, longest / 1e9);
    }
}
