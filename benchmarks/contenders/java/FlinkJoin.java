import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Comparator;
import java.util.Optional;

import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.PrimitiveArrayTypeInfo;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.ExecutionOptions;
import org.apache.flink.configuration.ExternalizedCheckpointRetention;
import org.apache.flink.configuration.StateBackendOptions;
import org.apache.flink.configuration.StateRecoveryOptions;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.ProducerRecord;

/**
 * The join as a keyed function of Flink in one JVM: state on the heap, written to a directory by checkpoints; deadlines
 * are event-time timers, and the watermark is the time of the partition that is furthest behind.
 *
 * <p>Arguments: brokers, prefix of the topics, consumer group, directory of the checkpoints.
 */
public final class FlinkJoin {

    private static final int PARALLELISM = 2;
    private static final TypeInformation<Tuple3<String, Long, byte[]>> MESSAGE =
            Types.TUPLE(Types.STRING, Types.LONG, PrimitiveArrayTypeInfo.BYTE_PRIMITIVE_ARRAY_TYPE_INFO);
    private static final TypeInformation<Tuple3<String, String, byte[]>> REPLY =
            Types.TUPLE(Types.STRING, Types.STRING, PrimitiveArrayTypeInfo.BYTE_PRIMITIVE_ARRAY_TYPE_INFO);

    /** Reads correlation-id, time stamp and value; a record without a correlation-id only moves the watermark. */
    private static final class Reading implements KafkaRecordDeserializationSchema<Tuple3<String, Long, byte[]>> {

        @Override
        public void deserialize(final ConsumerRecord<byte[], byte[]> message, final Collector<Tuple3<String, Long, byte[]>> out) {
            final String key = Join.correlationId(message.headers());
            out.collect(Tuple3.of(key == null ? "" : key, message.timestamp(), message.value()));
        }

        @Override
        public TypeInformation<Tuple3<String, Long, byte[]>> getProducedType() {
            return MESSAGE;
        }
    }

    /** Writes correlation-id, what completed the request, and the reply. */
    private static final class Writing implements KafkaRecordSerializationSchema<Tuple3<String, String, byte[]>> {

        private final String topic;

        Writing(final String topic) {
            this.topic = topic;
        }

        @Override
        public ProducerRecord<byte[], byte[]> serialize(
                final Tuple3<String, String, byte[]> reply, final KafkaSinkContext context, final Long timestamp) {
            final var record = new ProducerRecord<>(topic, reply.f0.getBytes(StandardCharsets.UTF_8), reply.f2);
            record.headers().add("completed-by", reply.f1.getBytes(StandardCharsets.UTF_8));
            return record;
        }
    }

    private static final class Correlator
            extends KeyedProcessFunction<String, Tuple3<String, Long, byte[]>, Tuple3<String, String, byte[]>> {

        private transient ValueState<byte[]> open;

        @Override
        public void open(final OpenContext context) {
            final var type = PrimitiveArrayTypeInfo.BYTE_PRIMITIVE_ARRAY_TYPE_INFO;
            open = getRuntimeContext().getState(new ValueStateDescriptor<>("open", type));
        }

        @Override
        public void processElement(
                final Tuple3<String, Long, byte[]> message, final Context context, final Collector<Tuple3<String, String, byte[]>> out)
                throws IOException {
            final Join before = Join.read(open.value());
            final long due = before == null ? 0 : before.due;
            final Join found = Join.receive(before, message.f2, message.f1);
            if (due != 0 && (found.complete() || found.due != due)) {
                context.timerService().deleteEventTimeTimer(due);
            }
            if (found.complete()) {
                open.clear();
                out.collect(Tuple3.of(message.f0, "acknowledgements", found.reply(message.f0)));
                return;
            }
            open.update(found.write());
            if (found.due != due) {
                context.timerService().registerEventTimeTimer(found.due);
            }
        }

        @Override
        public void onTimer(final long timestamp, final OnTimerContext context, final Collector<Tuple3<String, String, byte[]>> out)
                throws IOException {
            final Join found = Join.read(open.value());
            if (found != null && found.due <= timestamp) {
                open.clear();
                if (found.requested()) {
                    final String key = context.getCurrentKey();
                    out.collect(Tuple3.of(key, "timeout", found.reply(key)));
                }
            }
        }
    }

    private static Optional<Path> lastCheckpoint(final Path directory) throws IOException {
        if (!Files.isDirectory(directory)) {
            return Optional.empty();
        }
        try (var files = Files.walk(directory)) {
            return files.filter(file -> file.endsWith("_metadata")).max(Comparator.comparing(FlinkJoin::modified)).map(Path::getParent);
        }
    }

    private static long modified(final Path file) {
        try {
            return Files.getLastModifiedTime(file).toMillis();
        } catch (final IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    public static void main(final String[] arguments) throws Exception {
        final String prefix = arguments[1];
        final Path directory = Path.of(arguments[3]);
        final var configuration = new Configuration();
        configuration.set(StateBackendOptions.STATE_BACKEND, "hashmap");
        configuration.set(CheckpointingOptions.CHECKPOINTS_DIRECTORY, directory.toUri().toString());
        configuration.set(CheckpointingOptions.CHECKPOINTING_INTERVAL, Duration.ofSeconds(1));
        configuration.set(
                CheckpointingOptions.EXTERNALIZED_CHECKPOINT_RETENTION, ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION);
        configuration.set(ExecutionOptions.BUFFER_TIMEOUT, Duration.ofMillis(5));
        lastCheckpoint(directory).ifPresent(
                found -> configuration.set(StateRecoveryOptions.SAVEPOINT_PATH, found.toUri().toString()));

        final var environment = StreamExecutionEnvironment.createLocalEnvironment(PARALLELISM, configuration);
        final var source = KafkaSource.<Tuple3<String, Long, byte[]>>builder()
                .setBootstrapServers(arguments[0])
                .setTopics(prefix + "signals", prefix + "acks")
                .setGroupId(arguments[2])
                .setStartingOffsets(OffsetsInitializer.earliest())
                .setDeserializer(new Reading())
                .build();
        final var sink = KafkaSink.<Tuple3<String, String, byte[]>>builder()
                .setBootstrapServers(arguments[0])
                .setRecordSerializer(new Writing(prefix + "replies"))
                .setDeliveryGuarantee(DeliveryGuarantee.AT_LEAST_ONCE)
                .setProperty("linger.ms", "5")
                .build();
        environment.fromSource(source, WatermarkStrategy.forMonotonousTimestamps(), "messages")
                .uid("messages")
                .filter(message -> !message.f0.isEmpty())
                .keyBy(message -> message.f0, Types.STRING)
                .process(new Correlator())
                .returns(REPLY)
                .uid("correlate")
                .sinkTo(sink)
                .uid("replies");
        environment.execute("correlate");
    }
}
