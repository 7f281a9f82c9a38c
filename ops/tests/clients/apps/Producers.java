import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.*;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.message.ProduceRequestData;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.SimpleRecord;
import org.apache.kafka.common.requests.*;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * How much longer a partition with many live producers is without a leader than one with none: from the kill of its leader (`kill -9`)
 * to the first acknowledgement. The leaders of both are killed in turn.
 */
public final class Producers {
    static final int COUNT = 100_000;
    /** Kills of each. */
    static final int KILLS = 5;
    /** Requests under way at a time while it is filled. */
    static final int WINDOW = 500;
    static final short VERSION = 9;
    static Admin admin;

    public static void main(String[] arguments) {
        admin = Lab.admin(Lab.BOOTSTRAP);
        Lab.version();
        Lab.check("takeover of a partition with 100 000 live producers", Producers::takeovers);
        Lab.exit();
    }

    static String takeovers() throws Exception {
        String none = Lab.PREFIX + "none";
        String many = Lab.PREFIX + "many";
        Lab.create(admin, none, 1, Map.of());
        Lab.create(admin, many, 1, Map.of());
        long began = System.nanoTime();
        fill(many);
        System.out.printf("PROGRESS filled in %d s%n", (System.nanoTime() - began) / 1_000_000_000);
        Map<String, List<Long>> tookMs = new TreeMap<>(Map.of(none, new ArrayList<>(), many, new ArrayList<>()));
        for (int kill = 0; kill < KILLS; kill++) {
            for (String topic : List.of(none, many)) {
                long ms = takeOver(topic);
                System.out.println("PROGRESS " + topic + ": " + ms + " ms");
                tookMs.get(topic).add(ms);
            }
        }
        Lab.expect(live(many) >= COUNT, "only " + live(many) + " producers live after the takeovers");
        tookMs.values().forEach(Collections::sort);
        long longer = tookMs.get(many).get(KILLS / 2) - tookMs.get(none).get(KILLS / 2);
        Lab.expect(longer < 1000, "it takes " + longer + " ms longer: " + tookMs);
        return String.format("median of %d: %d ms longer; with them %s ms, without %s ms", KILLS, longer, tookMs.get(many), tookMs.get(none));
    }

    static int live(String topic) throws Exception {
        TopicPartition partition = new TopicPartition(topic, 0);
        return admin.describeProducers(List.of(partition)).partitionResult(partition).get().activeProducers().size();
    }

    static Node leader(String topic) throws Exception {
        return Lab.partitions(admin, topic).get(0).leader();
    }

    /** A batch of each producer, over one connection: a client for each would need a thread for each. */
    static void fill(String topic) throws Exception {
        Node leader = leader(topic);
        try (Socket socket = new Socket(leader.host(), leader.port())) {
            socket.setTcpNoDelay(true);
            DataOutputStream out = new DataOutputStream(new java.io.BufferedOutputStream(socket.getOutputStream(), 1 << 16));
            DataInputStream in = new DataInputStream(new java.io.BufferedInputStream(socket.getInputStream()));
            for (int from = 0; from < COUNT; from += WINDOW) {
                for (int number = from; number < from + WINDOW; number++) {
                    ByteBuffer request = produce(topic, number).serializeWithHeader(header(number));
                    out.writeInt(request.remaining());
                    out.write(request.array(), request.arrayOffset() + request.position(), request.remaining());
                }
                out.flush();
                for (int number = from; number < from + WINDOW; number++) {
                    byte[] answer = new byte[in.readInt()];
                    in.readFully(answer);
                    Map<Errors, Integer> errors = AbstractResponse.parseResponse(ByteBuffer.wrap(answer), header(number)).errorCounts();
                    Lab.expect(errors.keySet().equals(Set.of(Errors.NONE)), "producer " + number + ": " + errors);
                }
            }
        }
        Lab.expect(live(topic) == COUNT, live(topic) + " producers live");
    }

    static RequestHeader header(int number) {
        return new RequestHeader(ApiKeys.PRODUCE, VERSION, "producers", number);
    }

    static ProduceRequest produce(String topic, int number) {
        // Far above the ids that the cluster has given to anybody.
        long producerId = (1L << 62) + number;
        SimpleRecord record = new SimpleRecord(System.currentTimeMillis(), null, ("record " + number).getBytes(StandardCharsets.UTF_8));
        MemoryRecords records = MemoryRecords.withIdempotentRecords(Compression.NONE, producerId, (short) 0, 0, record);
        var partition = new ProduceRequestData.PartitionProduceData().setIndex(0).setRecords(records);
        var one = new ProduceRequestData.TopicProduceData().setName(topic).setPartitionData(List.of(partition));
        var all = new ProduceRequestData.TopicProduceDataCollection(List.of(one).iterator());
        var data = new ProduceRequestData().setAcks((short) -1).setTimeoutMs(30_000).setTopicData(all);
        return ProduceRequest.builder(data).build(VERSION);
    }

    /** Kills the leader; gives the milliseconds until a record is acknowledged by the next one. */
    static long takeOver(String topic) throws Exception {
        Lab.until("all copies of " + topic, () -> Lab.partitions(admin, topic).get(0).isr().size() == 3);
        Map<String, Object> options = new HashMap<>(Map.of("bootstrap.servers", Lab.BOOTSTRAP, "acks", "all", "enable.idempotence", false));
        options.putAll(Map.of("retry.backoff.ms", 10, "retry.backoff.max.ms", 20, "reconnect.backoff.ms", 10, "reconnect.backoff.max.ms", 20));
        options.putAll(Map.of("request.timeout.ms", 2000, "linger.ms", 0));
        try (var producer = new KafkaProducer<>(options, new StringSerializer(), new StringSerializer())) {
            producer.send(new ProducerRecord<>(topic, 0, null, "before")).get();
            int node = leader(topic).id();
            Killer.dev("kill", node);
            long began = System.nanoTime();
            producer.send(new ProducerRecord<>(topic, 0, null, "after")).get();
            long tookMs = (System.nanoTime() - began) / 1_000_000;
            Lab.expect(leader(topic).id() != node, "node " + node + " leads though it is dead");
            Killer.dev("restart", node);
            return tookMs;
        }
    }
}
