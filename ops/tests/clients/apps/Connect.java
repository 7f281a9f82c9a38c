import java.net.URI;
import java.net.http.*;
import java.nio.file.*;
import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Kafka Connect, two distributed workers with exactly-once sources: a file is read into a topic and the topic written to a
 * file, while leaders and coordinators are killed, and one worker. Each line must be in the topic once and in order; in
 * the second file it must be at least once, which is all that a file sink promises.
 */
public final class Connect {
    static final String GROUP = Lab.PREFIX + "connect";
    static final String TOPIC = Lab.PREFIX + "connected";
    static final int LINES_PER_SECOND = 100;
    static final int PORT = Integer.parseInt(System.getenv("PORT"));
    static final HttpClient HTTP = HttpClient.newHttpClient();

    public static void main(String[] arguments) throws Exception {
        Lab.version();
        Lab.check("file source (exactly once) and sink, distributed", Connect::run);
        Lab.exit();
    }

    static String run() throws Exception {
        Path input = Lab.FOLDER.resolve("input.txt");
        Path output = Lab.FOLDER.resolve("output.txt");
        Files.createFile(input);
        try (var admin = Lab.admin(Lab.BOOTSTRAP)) {
            Lab.create(admin, TOPIC, 1, Map.of());
            Process[] workers = {worker(0), worker(1)};
            Lab.until("the workers serve", () -> isServing(0) && isServing(1));
            connector("source", Map.of("connector.class", "org.apache.kafka.connect.file.FileStreamSourceConnector",
                    "tasks.max", "1", "file", input.toString(), "topic", TOPIC, "exactly.once.support", "required"));
            connector("sink", Map.of("connector.class", "org.apache.kafka.connect.file.FileStreamSinkConnector",
                    "tasks.max", "1", "file", output.toString(), "topics", TOPIC));
            Lab.until("the connectors run", () -> isRunning("source") && isRunning("sink"));
            int[] kills = {0};
            Killer.Target worker = () -> {
                if (kills[0]++ > 0) {
                    return Killer.NOTHING;
                }
                Lab.kill(workers[1]);
                workers[1] = worker(1);
                return Killer.DONE;
            };
            int lines;
            String told;
            try (Killer killer = new Killer(admin)) {
                killer.leadersOf(TOPIC, GROUP + "-configs", GROUP + "-offsets", GROUP + "-status");
                killer.groupCoordinatorOf(GROUP).target("worker", worker).start();
                lines = append(input);
                killer.close();
                told = killer.told();
            }
            expectTopic(lines);
            int doubled = expectFile(output, lines);
            for (String topic : List.of("-configs", "-offsets", "-status")) {
                var policy = policy(admin, GROUP + topic);
                Lab.expect(policy.equals("compact"), GROUP + topic + " has cleanup.policy=" + policy);
            }
            return lines + " lines: each in the topic once and in order, all in the sink's file (" + doubled
                    + " of them again after a rebalance, which it may); internal topics compacted; " + told;
        }
    }

    static String policy(org.apache.kafka.clients.admin.Admin admin, String topic) throws Exception {
        var resource = new org.apache.kafka.common.config.ConfigResource(org.apache.kafka.common.config.ConfigResource.Type.TOPIC, topic);
        return admin.describeConfigs(List.of(resource)).all().get().get(resource).get("cleanup.policy").value();
    }

    static String line(int number) {
        return String.format("line %08d", number);
    }

    static int append(Path file) throws Exception {
        long begun = System.nanoTime();
        int number = 0;
        while (System.nanoTime() - begun < Lab.DURATION_S * 1_000_000_000L) {
            StringBuilder text = new StringBuilder();
            for (int i = 0; i < LINES_PER_SECOND / 10; i++) {
                text.append(line(number++)).append('\n');
            }
            Files.writeString(file, text, StandardOpenOption.APPEND);
            Thread.sleep(100);
        }
        return number;
    }

    static void expectTopic(int lines) throws Exception {
        int[] next = {0};
        try (var reader = Lab.reader(Lab.BOOTSTRAP, TOPIC, new StringDeserializer())) {
            Lab.Condition more = () -> {
                for (ConsumerRecord<String, String> record : reader.poll(Duration.ofMillis(200))) {
                    Lab.expect(record.value().equals(line(next[0])), record.value() + " where " + line(next[0]) + " is due");
                    next[0]++;
                }
                return next[0] >= lines;
            };
            Lab.until("all lines are in the topic", more);
            for (int i = 0; i < 5; i++) {
                more.holds();
            }
        }
        Lab.expect(next[0] == lines, next[0] + " of " + lines + " lines in the topic");
    }

    static int expectFile(Path file, int lines) throws Exception {
        Set<String> expected = new HashSet<>();
        for (int number = 0; number < lines; number++) {
            expected.add(line(number));
        }
        Lab.until("all lines are in the sink's file", () -> new HashSet<>(Files.readAllLines(file)).containsAll(expected));
        return Files.readAllLines(file).size() - lines;
    }

    static Process worker(int index) throws Exception {
        Map<String, String> options = new HashMap<>(Map.of("bootstrap.servers", Lab.BOOTSTRAP, "group.id", GROUP));
        for (String kind : List.of("config", "offset", "status")) {
            options.put(kind + ".storage.topic", GROUP + "-" + kind + (kind.equals("status") ? "" : "s"));
            options.put(kind + ".storage.replication.factor", "3");
        }
        options.put("offset.storage.partitions", "5");
        options.put("exactly.once.source.support", "enabled");
        options.put("key.converter", "org.apache.kafka.connect.storage.StringConverter");
        options.put("value.converter", "org.apache.kafka.connect.storage.StringConverter");
        options.put("listeners", "http://127.0.0.1:" + (PORT + index));
        options.put("offset.flush.interval.ms", "1000");
        options.put("consumer.isolation.level", "read_committed");
        options.put("consumer.auto.offset.reset", "earliest");
        options.put("session.timeout.ms", "8000");
        options.put("heartbeat.interval.ms", "1000");
        options.put("scheduled.rebalance.max.delay.ms", "1000");
        String file = Lab.settings("worker-" + index + ".properties", options);
        return Lab.start("worker-" + index, Map.of(), "org.apache.kafka.connect.cli.ConnectDistributed", file);
    }

    static HttpResponse<String> request(int worker, String method, String path, String body) throws Exception {
        URI uri = URI.create("http://127.0.0.1:" + (PORT + worker) + "/" + path);
        HttpRequest request = HttpRequest.newBuilder(uri).header("Content-Type", "application/json").timeout(Duration.ofSeconds(60))
                .method(method, HttpRequest.BodyPublishers.ofString(body)).build();
        return HTTP.send(request, HttpResponse.BodyHandlers.ofString());
    }

    static boolean isServing(int worker) throws Exception {
        try {
            return request(worker, "GET", "", "").statusCode() == 200;
        } catch (java.io.IOException notYet) {
            return false;
        }
    }

    static void connector(String name, Map<String, String> options) throws Exception {
        StringJoiner json = new StringJoiner(",", "{", "}");
        options.forEach((key, value) -> json.add("\"" + key + "\":\"" + value + "\""));
        Lab.until("the connector " + name + " is accepted", () -> {
            HttpResponse<String> answer = request(0, "PUT", "connectors/" + name + "/config", json.toString());
            // While the workers rebalance they say 409.
            Lab.expect(answer.statusCode() / 100 == 2 || answer.statusCode() == 409 || answer.statusCode() == 500, answer.body());
            return answer.statusCode() / 100 == 2;
        });
    }

    static boolean isRunning(String name) throws Exception {
        String status = request(0, "GET", "connectors/" + name + "/status", "").body();
        return status.contains("\"tasks\":[{") && !status.replace("\"state\":\"RUNNING\"", "").contains("\"state\"");
    }
}
