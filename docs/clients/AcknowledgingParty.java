import static java.nio.charset.StandardCharsets.UTF_8;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.Future;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;

import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Acknowledges requests under a label that it declares: {@code AcknowledgingParty BOOTSTRAP PREFIX GROUP LABEL COUNT}.
 *
 * <p>It prints {@code acknowledged ID PATH VALUE} for each request, and ends after COUNT of them. Several processes
 * of a group share the label and the work; another group cannot have the label meanwhile.
 */
public final class AcknowledgingParty implements AutoCloseable {

    private static final Duration POLL = Duration.ofMillis(50);
    private static final long LEASE = 30_000, LONGEST_LEASE = 60_000, RENEWED = 10_000_000_000L;
    private static final Set<String> BUILT_IN = Set.of("twin-persisted", "live-response", "search-persisted");
    private static final String RANDOM_UUID = "[0-9A-F]{12}4[0-9A-F]{3}[89AB][0-9A-F]{15}";
    private static final Pattern TIMEOUT = Pattern.compile("([0-9]{1,12})(ms|s|m|h|)");
    private static final Map<String, Long> MILLISECONDS = Map.of("ms", 1L, "s", 1_000L, "", 1_000L, "m", 60_000L,
        "h", 3_600_000L);
    private static final ObjectMapper JSON = new ObjectMapper();

    /** A claim on labels: who made it earlier holds them, until the lease ends by the broker's time. */
    private record Claim(Set<String> labels, String group, long rank, long expires) {

        boolean conflicts(Claim other) {
            return group.equals(other.group) ? !labels.equals(other.labels)
                : labels.stream().anyMatch(other.labels::contains);
        }
    }

    private final String prefix, group, label, key = UUID.randomUUID().toString();
    private final KafkaProducer<String, byte[]> producer;
    private final KafkaConsumer<String, byte[]> claims, signals;
    private final TopicPartition declarations;
    private final Map<String, Claim> known = new HashMap<>();
    /** The offset of the last claim, when it was sent, when the next is due, until when the label is held: nanoTime. */
    private long written, sentAt, renewAt = System.nanoTime(), heldUntil = renewAt;

    public static void main(String[] arguments) throws Exception {
        try (var party = new AcknowledgingParty(arguments[0], arguments[1], arguments[2], arguments[3])) {
            party.join();
            party.declare();
            for (int wanted = Integer.parseInt(arguments[4]); wanted > 0;) {
                party.keepLabel();
                wanted -= party.acknowledge();
            }
        }
    }

    AcknowledgingParty(String bootstrap, String prefix, String group, String label) {
        this.prefix = prefix;
        this.group = group;
        this.label = label;
        producer = new KafkaProducer<>(Map.of(
            ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap,
            ProducerConfig.ACKS_CONFIG, "all"), new StringSerializer(), new ByteArraySerializer());
        claims = new KafkaConsumer<>(Map.of(
            ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap,
            ConsumerConfig.ISOLATION_LEVEL_CONFIG, "read_committed",
            ConsumerConfig.ENABLE_AUTO_COMMIT_CONFIG, false), new StringDeserializer(), new ByteArrayDeserializer());
        signals = new KafkaConsumer<>(Map.of(
            ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap,
            ConsumerConfig.GROUP_ID_CONFIG, prefix + group,
            // a group that is new begins with what comes from now on
            ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "latest",
            ConsumerConfig.ISOLATION_LEVEL_CONFIG, "read_committed",
            ConsumerConfig.ENABLE_AUTO_COMMIT_CONFIG, false), new StringDeserializer(), new ByteArrayDeserializer());
        declarations = new TopicPartition(prefix + "declarations", 0);
    }

    // -- the label ----------------------------------------------------------------------------------------------------

    /** Declare the label, and wait until it is known who holds it. */
    void declare() throws Exception {
        // a record without meaning, for the broker's time: all claims that may be live are in the last minute before it
        RecordMetadata now = producer.send(new ProducerRecord<>(declarations.topic(), 0, "clock", null)).get();
        claims.assign(List.of(declarations));
        var found = claims.offsetsForTimes(Map.of(declarations, now.timestamp() - LONGEST_LEASE)).get(declarations);
        claims.seek(declarations, found == null ? now.offset() : found.offset());
        while (!held()) {
            keepLabel();
        }
    }

    /** Renew the claim when it is time, and read the claims of all. */
    void keepLabel() throws Exception {
        if (System.nanoTime() - renewAt >= 0) {
            sentAt = System.nanoTime();
            var claim = JSON.createObjectNode().put("group", group).put("lease_ms", LEASE);
            claim.putArray("labels").add(label);
            var record = new ProducerRecord<>(declarations.topic(), 0, key, claim.toString().getBytes(UTF_8));
            written = producer.send(record).get().offset();
            renewAt = System.nanoTime() + RENEWED;
        }
        for (ConsumerRecord<String, byte[]> record : claims.poll(held() ? Duration.ZERO : POLL)) {
            read(record);
            if (record.offset() == written && !holds(known.get(key), record.timestamp())) {
                throw new IllegalStateException("Others hold the label " + label);
            } else if (record.offset() == written) {
                // by the own clock, from before it was sent: never for longer than all others believe
                heldUntil = sentAt + LEASE * 1_000_000;
            }
        }
    }

    /** Without Kafka the lease ends, and others may get the label: then nothing is acknowledged until it is renewed. */
    private boolean held() {
        return System.nanoTime() - heldUntil < 0;
    }

    private void read(ConsumerRecord<String, byte[]> record) {
        Claim before = known.remove(record.key());
        JsonNode value = parsed(record.value());
        Set<String> labels = new HashSet<>();
        value.path("labels").forEach(one -> labels.add(one.asText()));
        // no value ends a claim, and nobody can claim the labels of ackstream
        if (labels.isEmpty() || labels.stream().anyMatch(BUILT_IN::contains)) {
            return;
        }
        // a claim without a group shares its labels with none
        String of = value.hasNonNull("group") ? value.path("group").asText() : "\0" + record.key();
        boolean renewal = before != null && record.timestamp() < before.expires
            && before.labels.equals(labels) && before.group.equals(of);
        long expires = record.timestamp() + Math.min(value.path("lease_ms").asLong(LEASE), LONGEST_LEASE);
        known.put(record.key(), new Claim(labels, of, renewal ? before.rank : record.offset(), expires));
    }

    private boolean holds(Claim claim, long time) {
        return time < claim.expires && known.values().stream().noneMatch(
            other -> other.rank < claim.rank && time < other.expires && claim.conflicts(other));
    }

    // -- requests -----------------------------------------------------------------------------------------------------

    /** Join the group. Where it begins is committed at once: if this process ends before, nothing is missed. */
    void join() {
        signals.subscribe(List.of(prefix + "signals"), new ConsumerRebalanceListener() {
            @Override
            public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                partitions.forEach(signals::position);
                signals.commitSync();
                // nothing is handled before the label is held
                signals.pause(partitions);
            }

            @Override
            public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                // all that was read is answered and committed
            }
        });
        while (signals.assignment().isEmpty()) {
            signals.poll(POLL);
        }
    }

    /** Acknowledge what has arrived; return how many requests asked for it. */
    int acknowledge() throws Exception {
        if (held()) {
            signals.resume(signals.paused());
        } else {
            signals.pause(signals.assignment());
        }
        List<Future<RecordMetadata>> answers = new ArrayList<>();
        for (ConsumerRecord<String, byte[]> record : signals.poll(POLL)) {
            JsonNode signal = parsed(record.value()), headers = signal.path("headers");
            // NAMESPACE/NAME/things/CHANNEL/…
            String[] topic = signal.path("topic").asText().split("/");
            if (topic.length > 4 && requests(headers)
                && !isOver(record.timestamp(), headers.path("timeout").asText("60s"))) {
                String id = correlationId(record, headers);
                answers.add(producer.send(done(topic, headers, id)));
                System.out.println("acknowledged " + id + " " + signal.path("path").asText() + " "
                    + signal.path("value"));
            }
        }
        // first the answers, then the progress: after a crash a request may be handled again, and none is left out
        for (Future<RecordMetadata> answer : answers) {
            answer.get();
        }
        signals.commitSync();
        return answers.size();
    }

    /** Whether the timeout of a request has passed: its acknowledgement would be late. Without one it is 60 s. */
    static boolean isOver(long timestamp, String timeout) {
        Matcher found = TIMEOUT.matcher(timeout);
        return found.matches() && timestamp + Long.parseLong(found.group(1)) * MILLISECONDS.get(found.group(2))
            < System.currentTimeMillis();
    }

    private boolean requests(JsonNode headers) {
        for (JsonNode requested : headers.path("requested-acks")) {
            if (requested.asText().equals(label)) {
                return true;
            }
        }
        return false;
    }

    /** The application has done what the request asks for. */
    private ProducerRecord<String, byte[]> done(String[] topic, JsonNode headers, String id) {
        // the header may make a command a live one
        String channel = headers.path("channel").asText().equals("live") ? "live" : topic[3];
        var value = JSON.createObjectNode()
            .put("topic", String.join("/", topic[0], topic[1], topic[2], channel, "acks", label));
        value.putObject("headers").put("correlation-id", id).put("response-required", false);
        value.put("path", "/").put("status", 200);
        // keyed by the thing, so that commands and acknowledgements of a thing stay in order
        var record = new ProducerRecord<>(prefix + "acks", topic[0] + ":" + topic[1], value.toString().getBytes(UTF_8));
        record.headers().add("correlation-id", id.getBytes(UTF_8))
            .add("content-type", "application/vnd.eclipse.ditto+json".getBytes(UTF_8));
        return record;
    }

    /** Where a request has its id: in the record header, in the JSON, in Spring's header; else where Kafka has it. */
    private static String correlationId(ConsumerRecord<?, ?> record, JsonNode headers) {
        byte[] own = header(record, "correlation-id"), spring = header(record, "kafka_correlationId");
        if (own.length > 0) {
            return new String(own, UTF_8);
        }
        for (String name : List.of("correlation-id", "Correlation-Id")) {
            if (!headers.path(name).asText().isEmpty()) {
                return headers.path(name).asText();
            }
        }
        // by default the 16 bytes of a random UUID
        String digits = HexFormat.of().withUpperCase().formatHex(spring);
        return spring.length == 0 ? record.topic() + "-" + record.partition() + "-" + record.offset()
            : digits.matches(RANDOM_UUID) ? digits : new String(spring, UTF_8);
    }

    private static byte[] header(ConsumerRecord<?, ?> record, String name) {
        Header found = record.headers().lastHeader(name);
        return found == null || found.value() == null ? new byte[0] : found.value();
    }

    private static JsonNode parsed(byte[] value) {
        try {
            return value == null ? JSON.nullNode() : JSON.readTree(value);
        } catch (java.io.IOException error) {
            return JSON.nullNode();
        }
    }

    /** Give the label back, so that others may have it at once. */
    @Override
    public void close() {
        producer.send(new ProducerRecord<>(declarations.topic(), 0, key, null));
        producer.close();
        claims.close();
        signals.close();
    }
}
