import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.*;

/** Counts words with a login, with the rights that Kafka's guide to the security of Streams lists. */
final class Streams {
    static final String INPUT = Lab.PREFIX + "lines";
    static final String OUTPUT = Lab.PREFIX + "counts";
    static final String APPLICATION = Lab.PREFIX + "words";
    static final Duration WITHIN = Duration.ofSeconds(60);
    private static int run;

    private Streams() {}

    static List<Secured.Rule> rules() {
        return List.of(Secured.literal(ResourceType.TOPIC, INPUT, AclOperation.READ),
                Secured.literal(ResourceType.TOPIC, OUTPUT, AclOperation.WRITE),
                Secured.prefixed(ResourceType.GROUP, APPLICATION, AclOperation.READ),
                Secured.prefixed(ResourceType.TRANSACTIONAL_ID, APPLICATION, AclOperation.WRITE),
                Secured.prefixed(ResourceType.TOPIC, APPLICATION, AclOperation.ALL));
    }

    static Topology topology() {
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(INPUT)
                .flatMapValues(line -> List.of(line.split(" ")))
                .groupBy((key, word) -> word, Grouped.as("words"))
                .count(Materialized.as("counts"))
                .toStream()
                .to(OUTPUT, Produced.with(Serdes.String(), Serdes.Long()));
        return builder.build();
    }

    static void run(Map<String, Object> connection) throws Exception {
        String word = "word" + run++;
        if (run == 1) {
            Lab.create(Secured.admin, INPUT, 2, Map.of());
            Lab.create(Secured.admin, OUTPUT, 2, Map.of());
        }
        Properties options = new Properties();
        options.putAll(connection);
        // One of its own each time: what one made is there for the next.
        options.put("application.id", APPLICATION + run);
        options.put("processing.guarantee", "exactly_once_v2");
        options.put("commit.interval.ms", "100");
        options.put("statestore.cache.max.bytes", "0");
        options.put("state.dir", Lab.FOLDER.resolve("state-" + run).toString());
        options.put("default.key.serde", Serdes.StringSerde.class.getName());
        options.put("default.value.serde", Serdes.StringSerde.class.getName());
        options.put("consumer.auto.offset.reset", "earliest");
        BlockingQueue<Throwable> failures = new LinkedBlockingQueue<>();
        try (var producer = Secured.producer(Secured.connection(), Map.of());
                KafkaStreams streams = new KafkaStreams(topology(), options)) {
            streams.setUncaughtExceptionHandler(error -> {
                failures.add(error);
                return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
            });
            streams.start();
            producer.send(new ProducerRecord<>(INPUT, "k", word + " " + word)).get();
            awaitCount(word, failures);
        }
    }

    private static void awaitCount(String word, BlockingQueue<Throwable> failures) throws Exception {
        try (var reader = Secured.reader(OUTPUT, "look-" + word, new LongDeserializer())) {
            Map<String, Long> counts = new HashMap<>();
            Lab.until(WITHIN, "the count of " + word, () -> {
                Throwable failure = failures.poll();
                if (failure != null) {
                    throw new ExecutionException(failure);
                }
                for (ConsumerRecord<String, Long> record : reader.poll(Duration.ofMillis(200))) {
                    counts.put(record.key(), record.value());
                }
                return counts.getOrDefault(word, 0L) == 2;
            });
        }
    }
}
