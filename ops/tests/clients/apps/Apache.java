import java.nio.file.Path;
import java.util.*;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.DescribeClusterOptions;
import org.apache.kafka.common.Uuid;

/** One node of Apache Kafka, of this program's class path unless `APACHE_KAFKA` is a folder with the jars of another version. */
final class Apache {
    private static final int PORT = Integer.parseInt(System.getenv("PORT"));
    static final String BOOTSTRAP = "127.0.0.1:" + PORT;
    private static final String FOLDER = System.getenv("APACHE_KAFKA");
    private static final Path DATA = Lab.FOLDER.resolve("kafka");

    private Apache() {}

    /** Starts it, and waits until it serves. */
    static void start(Map<String, String> more) throws Exception {
        Map<String, String> options = new HashMap<>(Map.of("process.roles", "broker,controller", "node.id", "1"));
        options.put("listeners", "PLAINTEXT://" + BOOTSTRAP + ",CONTROLLER://127.0.0.1:" + (PORT + 1));
        options.put("advertised.listeners", "PLAINTEXT://" + BOOTSTRAP);
        options.put("controller.listener.names", "CONTROLLER");
        options.put("listener.security.protocol.map", "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT");
        options.put("controller.quorum.voters", "1@127.0.0.1:" + (PORT + 1));
        options.put("log.dirs", DATA.toString());
        for (String topic : List.of("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")) {
            options.put(topic + ".replication.factor", "1");
        }
        options.put("transaction.state.log.min.isr", "1");
        options.put("share.coordinator.state.topic.min.isr", "1");
        options.put("group.initial.rebalance.delay.ms", "0");
        options.putAll(more);
        String file = Lab.settings("kafka.properties", options);
        int code = run("kafka.tools.StorageTool", "format", "-t", Uuid.randomUuid().toString(), "-c", file).waitFor();
        Lab.expect(code == 0, "Apache Kafka's storage could not be formatted");
        run("kafka.Kafka", file);
        Lab.until("Apache Kafka serves", () -> {
            try (var admin = Lab.admin(BOOTSTRAP)) {
                return !admin.describeCluster(new DescribeClusterOptions().timeoutMs(2000)).nodes().get().isEmpty();
            } catch (ExecutionException notYet) {
                return false;
            }
        });
    }

    private static Process run(String main, String... arguments) throws Exception {
        String classes = FOLDER == null ? System.getProperty("java.class.path") : Path.of(FOLDER, "*").toString();
        return Lab.start("kafka", classes, main, arguments);
    }
}
