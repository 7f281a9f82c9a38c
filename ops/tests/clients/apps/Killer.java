import java.util.*;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.common.utils.Utils;

/**
 * Kills what it is told to (`kill -9`), one after another by chance, and brings it back, until it is closed.
 *
 * <pre>
 *   calm 2..4 s   pick a target, find its node, kill   down 1..3 s   start again   calm ...
 * </pre>
 */
final class Killer implements AutoCloseable {
    /** Finds what to kill now: a node's number, or a negative one if it killed something itself or found nothing. */
    interface Target {
        int find() throws Exception;
    }

    /** Nothing was there to be killed. */
    static final int NOTHING = -1;
    /** It was killed, and needs no start. */
    static final int DONE = -2;

    private static final String PROGRAM = System.getenv("MERIDIAN");
    private static final String DATA = System.getenv("DATA");
    private final Map<String, Target> targets = new TreeMap<>();
    private final Map<String, AtomicInteger> killed = new TreeMap<>();
    private final Random chance = new Random(Long.parseLong(System.getenv().getOrDefault("SEED", "1")));
    private final Admin admin;
    private volatile boolean isOver;
    private volatile Throwable failure;
    private Thread thread;

    Killer(Admin admin) {
        this.admin = admin;
    }

    Killer target(String name, Target target) {
        targets.put(name, target);
        killed.put(name, new AtomicInteger());
        return this;
    }

    Killer leadersOf(String... topics) {
        return target("leader", () -> {
            String topic = topics[chance.nextInt(topics.length)];
            var partitions = Lab.partitions(admin, topic);
            var leader = partitions.get(chance.nextInt(partitions.size())).leader();
            return leader == null ? NOTHING : leader.id();
        });
    }

    Killer groupCoordinatorOf(String group) {
        return target("group coordinator", () -> leaderOf("__consumer_offsets", group));
    }

    Killer transactionCoordinatorOf(String transactionalId) {
        return target("transaction coordinator", () -> leaderOf("__transaction_state", transactionalId));
    }

    /** The leader of the partition that keeps what has this key, as in Kafka. */
    private int leaderOf(String topic, String key) throws Exception {
        var partitions = Lab.partitions(admin, topic);
        var leader = partitions.get(Utils.abs(key.hashCode()) % partitions.size()).leader();
        return leader == null ? NOTHING : leader.id();
    }

    Killer start() {
        thread = new Thread(this::run, "killer");
        thread.setDaemon(true);
        thread.start();
        return this;
    }

    private void run() {
        List<String> names = new ArrayList<>(targets.keySet());
        try {
            while (pause(2000 + chance.nextInt(2000))) {
                String name = names.get(chance.nextInt(names.size()));
                int node;
                try {
                    node = targets.get(name).find();
                } catch (java.util.concurrent.ExecutionException error) {
                    // The cluster is busy with what was done to it last.
                    continue;
                }
                if (node == NOTHING) {
                    continue;
                }
                killed.get(name).incrementAndGet();
                System.out.println("== kill " + name + (node == DONE ? "" : ", node " + node));
                if (node != DONE) {
                    dev("kill", node);
                    pause(1000 + chance.nextInt(2000));
                    dev("restart", node);
                }
            }
        } catch (Throwable error) {
            failure = error;
        }
    }

    /** Waits; false once it is over. */
    private boolean pause(int millis) throws InterruptedException {
        long until = System.nanoTime() + millis * 1_000_000L;
        while (!isOver && System.nanoTime() < until) {
            Thread.sleep(20);
        }
        return !isOver;
    }

    static void dev(String action, int node) throws Exception {
        var command = List.of(PROGRAM, "dev", action, "--node", "" + node, "--data", DATA);
        int code = new ProcessBuilder(command).inheritIO().start().waitFor();
        Lab.expect(code == 0, "dev " + action + " of node " + node + " ended with " + code);
    }

    int count() {
        return killed.values().stream().mapToInt(AtomicInteger::get).sum();
    }

    /** What was killed how often. */
    String told() {
        StringJoiner told = new StringJoiner(", ");
        killed.forEach((name, count) -> told.add(count + " x " + name));
        return count() + " kills (" + told + ")";
    }

    /** Stops, with all nodes up. */
    @Override
    public void close() throws Exception {
        isOver = true;
        if (thread != null) {
            thread.join();
        }
        if (failure != null) {
            throw new IllegalStateException("the killer failed: " + failure, failure);
        }
    }
}
