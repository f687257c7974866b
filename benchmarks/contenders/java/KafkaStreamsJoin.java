import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Comparator;
import java.util.PriorityQueue;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;

import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.processor.PunctuationType;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * The join as a processor of Kafka Streams: state in RocksDB with a changelog topic, deadlines by stream time.
 *
 * <p>Arguments: brokers, prefix of the topics, application id, directory, processing guarantee.
 */
public final class KafkaStreamsJoin {

    private static final String OPEN = "open";
    private static final Duration PUNCTUATION = Duration.ofMillis(100);

    private record Due(long at, String key) {}

    /** One for each pair of partitions of signals and acks, whose records Kafka Streams merges by their time stamps. */
    private static final class Correlator extends ContextualProcessor<String, byte[], String, byte[]> {

        private final PriorityQueue<Due> deadlines = new PriorityQueue<>(Comparator.comparingLong(Due::at));
        private KeyValueStore<String, byte[]> open;

        @Override
        public void init(final ProcessorContext<String, byte[]> context) {
            super.init(context);
            open = context.getStateStore(OPEN);
            // the store has been restored by now
            try (var entries = open.all()) {
                entries.forEachRemaining(entry -> deadlines.add(new Due(Join.read(entry.value).due, entry.key)));
            }
            context.schedule(PUNCTUATION, PunctuationType.STREAM_TIME, this::expire);
        }

        @Override
        public void process(final Record<String, byte[]> message) {
            final String key = Join.correlationId(message.headers());
            if (key == null) {
                return;
            }
            final Join before = Join.read(open.get(key));
            final long due = before == null ? 0 : before.due;
            final Join found = Join.receive(before, message.value(), message.timestamp());
            if (found.complete()) {
                open.delete(key);
                reply(key, found, "acknowledgements", message.timestamp());
                return;
            }
            open.put(key, found.write());
            if (found.due != due) {
                deadlines.add(new Due(found.due, key));
            }
        }

        private void expire(final long now) {
            while (!deadlines.isEmpty() && deadlines.peek().at() <= now) {
                final String key = deadlines.remove().key();
                final Join found = Join.read(open.get(key));
                // answered since, or a request whose acknowledgement came first and had another deadline
                if (found != null && found.due <= now) {
                    open.delete(key);
                    if (found.requested()) {
                        reply(key, found, "timeout", now);
                    }
                }
            }
        }

        private void reply(final String key, final Join found, final String completedBy, final long timestamp) {
            final var reply = new Record<>(key, found.reply(key), timestamp);
            context().forward(reply.withHeaders(reply.headers().add("completed-by", completedBy.getBytes(StandardCharsets.UTF_8))));
        }
    }

    public static void main(final String[] arguments) throws InterruptedException {
        final String prefix = arguments[1];
        final var configuration = new Properties();
        configuration.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        configuration.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[2]);
        configuration.put(StreamsConfig.STATE_DIR_CONFIG, arguments[3]);
        configuration.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, arguments[4]);
        configuration.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
        configuration.put(StreamsConfig.producerPrefix(ProducerConfig.LINGER_MS_CONFIG), 5);
        configuration.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        // a program that is started again gets its partitions back at once, not when the session of the killed one ends
        configuration.put(StreamsConfig.mainConsumerPrefix(ConsumerConfig.GROUP_INSTANCE_ID_CONFIG), "only");

        final var topology = new Topology();
        final var text = Serdes.String();
        final var bytes = Serdes.ByteArray();
        topology.addSource("messages", text.deserializer(), bytes.deserializer(), prefix + "signals", prefix + "acks");
        topology.addProcessor("correlate", Correlator::new, "messages");
        topology.addStateStore(
                Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore(OPEN), text, bytes).withCachingEnabled(), "correlate");
        topology.addSink("replies", prefix + "replies", text.serializer(), bytes.serializer(), "correlate");

        final var ended = new CountDownLatch(1);
        final var streams = new KafkaStreams(topology, configuration);
        streams.setStateListener((state, before) -> {
            if (state.hasCompletedShutdown()) {
                ended.countDown();
            }
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(10))));
        streams.start();
        ended.await();
    }
}
