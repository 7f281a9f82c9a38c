import java.net.URI;
import java.net.http.*;
import java.nio.file.*;
import java.time.Duration;
import java.util.*;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.serialization.StringDeserializer;

/** A file that Kafka Connect writes into a topic, distributed, with a login and the rights that its documents list. */
final class FileSource {
    static final String GROUP = Lab.PREFIX + "connect";
    static final String TOPIC = Lab.PREFIX + "from-a-file";
    static final Duration WITHIN = Duration.ofSeconds(60);
    private static final int PORT = Integer.parseInt(System.getenv("PORT"));
    private static final HttpClient HTTP = HttpClient.newHttpClient();
    private static int run;

    private FileSource() {}

    /** A worker's group and its three topics, which it makes itself, and the topic that is written. */
    static List<Secured.Rule> rules() {
        return List.of(Secured.literal(ResourceType.TOPIC, TOPIC, AclOperation.WRITE),
                Secured.prefixed(ResourceType.GROUP, GROUP, AclOperation.READ),
                Secured.prefixed(ResourceType.TOPIC, GROUP, AclOperation.CREATE),
                Secured.prefixed(ResourceType.TOPIC, GROUP, AclOperation.READ),
                Secured.prefixed(ResourceType.TOPIC, GROUP, AclOperation.WRITE));
    }

    static void run(Map<String, Object> connection) throws Exception {
        String line = "line of run " + run++;
        if (run == 1) {
            Lab.create(Secured.admin, TOPIC, 1, Map.of());
        }
        Path input = Files.writeString(Lab.FOLDER.resolve("input-" + run + ".txt"), line + "\n");
        String name = "worker-" + run;
        Path log = Path.of(System.getenv("LOG") + "-" + name + ".txt");
        Process worker = Lab.start(name, Map.of(), "org.apache.kafka.connect.cli.ConnectDistributed",
                Lab.settings(name + ".properties", options(connection)));
        try (var reader = Secured.reader(TOPIC, "look-" + run, new StringDeserializer())) {
            boolean[] accepted = {false};
            Lab.until(WITHIN, "the line is in the topic", () -> {
                refused(log).ifPresent(said -> Lab.expect(false, said));
                Lab.expect(worker.isAlive(), "the worker ended");
                accepted[0] = accepted[0] || isAccepted(input);
                for (var record : reader.poll(Duration.ofMillis(200))) {
                    if (record.value().equals(line)) {
                        return true;
                    }
                }
                return false;
            });
        } finally {
            Lab.kill(worker);
        }
    }

    /** What a worker's log says of a right that is missing. */
    private static Optional<String> refused(Path log) throws Exception {
        try (var lines = Files.lines(log)) {
            return lines.filter(line -> line.contains("AuthorizationException")).findFirst();
        }
    }

    private static boolean isAccepted(Path input) throws Exception {
        String json = String.format("{\"connector.class\":\"org.apache.kafka.connect.file.FileStreamSourceConnector\",\"tasks.max\":\"1\","
                + "\"file\":\"%s\",\"topic\":\"%s\"}", input, TOPIC);
        HttpRequest request = HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + PORT + "/connectors/source/config"))
                .header("Content-Type", "application/json").timeout(Duration.ofSeconds(5))
                .PUT(HttpRequest.BodyPublishers.ofString(json)).build();
        try {
            return HTTP.send(request, HttpResponse.BodyHandlers.ofString()).statusCode() / 100 == 2;
        } catch (java.io.IOException notYet) {
            return false;
        }
    }

    private static Map<String, String> options(Map<String, Object> connection) {
        Map<String, String> options = new HashMap<>();
        for (String client : List.of("", "producer.", "consumer.", "admin.")) {
            connection.forEach((key, value) -> options.put(client + key, value.toString()));
        }
        options.put("group.id", GROUP + run);
        for (String kind : List.of("config", "offset", "status")) {
            options.put(kind + ".storage.topic", GROUP + run + "-" + kind + (kind.equals("status") ? "" : "s"));
            options.put(kind + ".storage.replication.factor", "1");
        }
        options.put("offset.storage.partitions", "2");
        options.put("status.storage.partitions", "1");
        options.put("key.converter", "org.apache.kafka.connect.storage.StringConverter");
        options.put("value.converter", "org.apache.kafka.connect.storage.StringConverter");
        options.put("listeners", "http://127.0.0.1:" + PORT);
        options.put("offset.flush.interval.ms", "1000");
        return options;
    }
}
