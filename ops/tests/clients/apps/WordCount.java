import java.time.Duration;
import java.util.*;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.*;

/**
 * Kafka Streams, word count with exactly_once_v2: two instances while leaders and coordinators are killed, and one
 * instance itself. Without a cache each word read gives one count, so the counts of each word must be 1, 2, 3 ...
 * without a gap and without a repetition.
 */
public final class WordCount {
    static final String APPLICATION = Lab.PREFIX + "words";
    static final String INPUT = Lab.PREFIX + "lines";
    static final String OUTPUT = Lab.PREFIX + "counts";
    static final int LINES_PER_SECOND = 150;
    static final int WORD_COUNT = 40;

    public static void main(String[] arguments) throws Exception {
        if (arguments.length > 0) {
            instance(arguments[0]);
            return;
        }
        Lab.version();
        Lab.check("word count, exactly_once_v2", WordCount::run);
        Lab.exit();
    }

    static List<String> words(int line) {
        return List.of("w" + line % WORD_COUNT, "w" + line * 7 % WORD_COUNT, "w" + line / 3 % WORD_COUNT);
    }

    static String run() throws Exception {
        try (var admin = Lab.admin(Lab.BOOTSTRAP); var producer = Lab.producer(Lab.BOOTSTRAP)) {
            Lab.create(admin, INPUT, 6, Map.of());
            Lab.create(admin, OUTPUT, 6, Map.of());
            Process first = Lab.start("instance-1", Map.of(), "WordCount", "1");
            Process[] second = {Lab.start("instance-2", Map.of(), "WordCount", "2")};
            producer.send(new ProducerRecord<>(INPUT, "0", String.join(" ", words(0)))).get();
            var reader = Lab.reader(Lab.BOOTSTRAP, OUTPUT, new LongDeserializer());
            Map<String, Long> counts = new HashMap<>();
            Lab.until("the first counts", () -> read(reader, counts));
            int[] kills = {0};
            Killer.Target instance = () -> {
                if (kills[0]++ > 1) {
                    return Killer.NOTHING;
                }
                Lab.kill(second[0]);
                second[0] = Lab.start("instance-2", Map.of(), "WordCount", "2");
                return Killer.DONE;
            };
            int lines;
            String told;
            try (Killer killer = new Killer(admin)) {
                killer.leadersOf(INPUT, OUTPUT, APPLICATION + "-counts-changelog", APPLICATION + "-words-repartition");
                killer.groupCoordinatorOf(APPLICATION).target("instance", instance).start();
                lines = 1 + Lab.write(producer, LINES_PER_SECOND, Duration.ofSeconds(Lab.DURATION_S), number ->
                        new ProducerRecord<>(INPUT, "" + (number + 1), String.join(" ", words(number + 1))));
                killer.close();
                told = killer.told();
            }
            Map<String, Long> expected = new HashMap<>();
            for (int line = 0; line < lines; line++) {
                words(line).forEach(word -> expected.merge(word, 1L, Long::sum));
            }
            Lab.until("all words are counted", () -> {
                read(reader, counts);
                return sum(counts) >= sum(expected);
            });
            // Whatever comes after is one too many.
            for (int i = 0; i < 10; i++) {
                read(reader, counts);
            }
            Lab.expect(counts.equals(expected), sum(counts) + " words counted, " + sum(expected) + " written");
            Lab.expect(first.isAlive() && second[0].isAlive(), "an instance died of an error");
            return lines + " lines, " + sum(expected) + " counts, each word's 1, 2, 3 ... without gap or repetition; " + told;
        }
    }

    static long sum(Map<String, Long> counts) {
        return counts.values().stream().mapToLong(it -> it).sum();
    }

    static boolean read(KafkaConsumer<String, Long> reader, Map<String, Long> counts) {
        for (ConsumerRecord<String, Long> record : reader.poll(Duration.ofMillis(200))) {
            long before = counts.getOrDefault(record.key(), 0L);
            Lab.expect(record.value() == before + 1, record.key() + " has " + record.value() + " after " + before);
            counts.put(record.key(), record.value());
        }
        return !counts.isEmpty();
    }

    static void instance(String name) throws Exception {
        Properties options = new Properties();
        options.put("application.id", APPLICATION);
        options.put("bootstrap.servers", Lab.BOOTSTRAP);
        options.put("processing.guarantee", "exactly_once_v2");
        options.put("num.stream.threads", "2");
        options.put("commit.interval.ms", "200");
        options.put("statestore.cache.max.bytes", "0");
        options.put("state.dir", Lab.FOLDER.resolve("state-" + name).toString());
        options.put("default.key.serde", Serdes.StringSerde.class.getName());
        options.put("default.value.serde", Serdes.StringSerde.class.getName());
        options.put("consumer.session.timeout.ms", "8000");
        options.put("consumer.heartbeat.interval.ms", "1000");
        options.put("consumer.auto.offset.reset", "earliest");
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(INPUT)
                .flatMapValues(line -> List.of(line.split(" ")))
                .groupBy((key, word) -> word, Grouped.as("words"))
                .count(Materialized.as("counts"))
                .toStream()
                .to(OUTPUT, Produced.with(Serdes.String(), Serdes.Long()));
        KafkaStreams streams = new KafkaStreams(builder.build(), options);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.start();
        new CountDownLatch(1).await();
    }
}
