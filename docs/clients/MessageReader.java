import static java.nio.charset.StandardCharsets.UTF_8;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Collectors;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;

import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Reads and acknowledges the messages of a publisher: {@code MessageReader BOOTSTRAP PREFIX NAME WRITER COUNT}.
 *
 * <p>It prints {@code read NUMBER VALUE} for each message, and ends when COUNT of them are acknowledged. The name is
 * durable: its next run goes on behind them. Messages that Kafka has deleted it does not read; the table has them.
 */
public final class MessageReader implements AutoCloseable {

    private static final Duration POLL = Duration.ofMillis(50), AGAIN = Duration.ofSeconds(3);
    private static final Duration LOOK_BACK = Duration.ofMinutes(10);
    private static final ObjectMapper JSON = new ObjectMapper();

    private final String name, writer, prefix;
    private final KafkaProducer<String, byte[]> producer;
    private final KafkaConsumer<String, byte[]> consumer;

    /** Grows with each start of the name; the parts of the answer to it, by shard and part. */
    private long epoch = System.currentTimeMillis(), lease = 30_000;
    private final Map<String, JsonNode> parts = new HashMap<>();

    /** Of the writer: the first number for this reader, and the last one known to be stored. */
    private long start = 1, written;
    /** The numbers still to be read, each with its session ({@code null}: not known); and what has arrived, by session. */
    private final TreeMap<Long, String> stored = new TreeMap<>();
    private final TreeMap<Long, Map<String, byte[]>> arrived = new TreeMap<>();
    /** What is finished, as runs: the last number by the first. A run of numbers that no message has may be very long. */
    private final TreeMap<Long, Long> finished = new TreeMap<>();

    /** Of the reports: their count, the one that is confirmed, and whether something is not in the last one. */
    private long count, confirmed;
    private boolean news;
    private final Map<String, Long> due = new HashMap<>();

    public static void main(String[] arguments) {
        try (var reader = new MessageReader(arguments[0], arguments[1], arguments[2], arguments[3])) {
            reader.begin();
            for (int wanted = Integer.parseInt(arguments[4]); wanted > 0; reader.step()) {
                for (Long number = reader.next(); number != null && wanted > 0; number = reader.next(), wanted--) {
                    System.out.println("read " + number + " " + new String(reader.value(number), UTF_8));
                    reader.acknowledge(number);
                }
            }
            while (reader.news || reader.confirmed < reader.count) {
                reader.step();
            }
        }
    }

    MessageReader(String bootstrap, String prefix, String name, String writer) {
        this.prefix = prefix;
        this.name = name;
        this.writer = writer;
        producer = new KafkaProducer<>(Map.of(
            ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap), new StringSerializer(), new ByteArraySerializer());
        consumer = new KafkaConsumer<>(Map.of(
            ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap,
            ConsumerConfig.ISOLATION_LEVEL_CONFIG, "read_committed",
            ConsumerConfig.ENABLE_AUTO_COMMIT_CONFIG, false), new StringDeserializer(), new ByteArrayDeserializer());
    }

    /** Start under the name, and go on where its last run has stopped. */
    void begin() {
        List<TopicPartition> answers = partitions("publisher-acks");
        consumer.assign(answers);
        consumer.seekToEnd(answers);
        answers.forEach(consumer::position);
        while (!complete()) {
            if (isDue("start", AGAIN.toMillis())) {
                send(record("reader_start").put("epoch", epoch).put("durable", true)
                    .set("writers", JSON.createArrayNode().add(writer)));
            }
            receive();
        }
        boolean unread = false;
        long asOf = Long.MAX_VALUE;
        for (JsonNode part : parts.values()) {
            asOf = Math.min(asOf, part.path("as_of").asLong());
            lease = Math.min(lease, part.path("lease_ms").asLong(30_000));
            for (JsonNode known : part.path("writers")) {
                if (known.path("writer").asText().equals(writer)) {
                    start = known.path("start").asLong();
                    written = Math.max(written, known.path("written").asLong());
                    known.path("acknowledged").forEach(run -> finish(run.path(0).asLong(), run.path(1).asLong()));
                    known.path("undelivered").forEach(run -> await(run.path(0).asLong(), run.path(1).asLong(), null));
                    known.path("sessions").forEach(run ->
                        stored.subMap(run.path(0).asLong(), true, run.path(1).asLong(), true)
                            .replaceAll((number, unknown) -> text(run.path(2))));
                    unread |= !known.path("undelivered").isEmpty();
                }
            }
        }
        List<TopicPartition> messages = partitions("messages"), reports = partitions("stored"), all = new ArrayList<>();
        List.of(answers, messages, reports).forEach(all::addAll);
        Map<TopicPartition, Long> positions = answers.stream()
            .collect(Collectors.toMap(one -> one, consumer::position));
        consumer.assign(all);
        positions.forEach(consumer::seek);
        seek(messages, unread ? 0 : asOf - LOOK_BACK.toMillis());
        // the clocks of brokers differ a little
        seek(reports, asOf - 1_000);
    }

    /** Return the number of the next message, in order; {@code null} until it is here and known to be stored. */
    Long next() {
        Long number = stored.isEmpty() ? null : stored.firstKey();
        return number != null && value(number) != null ? number : null;
    }

    /** Publishers of one name may write different messages under a number: that of the stored session counts. */
    byte[] value(long number) {
        Map<String, byte[]> values = arrived.getOrDefault(number, Map.of());
        String session = stored.get(number);
        return session != null ? values.get(session) : values.values().stream().findFirst().orElse(null);
    }

    /** The application has finished with a message. */
    void acknowledge(long number) {
        stored.remove(number);
        arrived.remove(number);
        finish(number, number);
        news = true;
    }

    /** Read what has arrived, and report what is due. */
    void step() {
        receive();
        boolean unconfirmed = confirmed < count && isDue("again", AGAIN.toMillis());
        if (news || unconfirmed) {
            report();
        }
        if (isDue("alive", lease / 3)) {
            send(record("reader_alive").put("epoch", epoch));
        }
    }

    /** Send an AppAck. Each has a new count, and all that is acknowledged: a lost one costs only time. */
    private void report() {
        ArrayNode intervals = JSON.createArrayNode();
        finished.forEach((first, last) -> intervals.addObject().put("first", first).put("last", last));
        send(record("app_ack").put("writer", writer).put("epoch", epoch).put("count", ++count).put("start", start)
            .set("intervals", intervals));
        news = false;
        due.put("again", System.currentTimeMillis() + AGAIN.toMillis());
    }

    private void receive() {
        for (ConsumerRecord<String, byte[]> record : consumer.poll(POLL)) {
            if (record.topic().equals(prefix + "messages")) {
                receiveMessage(record);
            } else if (record.topic().equals(prefix + "stored")) {
                receiveStored(read(record.value()));
            } else if (name.equals(record.key())) {
                receiveAnswer(read(record.value()));
            }
        }
    }

    private void receiveMessage(ConsumerRecord<String, byte[]> record) {
        String command = header(record, "command"), seq = header(record, "seq");
        if (!writer.equals(header(record, "client")) || command != null || seq == null) {
            return;
        }
        String session = header(record, "publisher-session");
        long number = Long.parseLong(seq);
        // a copy has the same number; what is stored up to `written`, and not to be read, is done
        if (number > written || stored.containsKey(number)) {
            arrived.computeIfAbsent(number, one -> new LinkedHashMap<>())
                .putIfAbsent(session == null ? "" : session, record.value());
        }
    }

    /** Messages count once they are stored: one that is in Kafka may still be refused. */
    private void receiveStored(JsonNode report) {
        if (!report.path("client").asText().equals(writer)) {
            return;
        }
        long number = Math.max(report.path("first").asLong(), written + 1), last = report.path("last").asLong();
        String session = text(report.path("session"));
        for (JsonNode refused : report.path("refused")) {
            await(number, refused.path(0).asLong() - 1, session);
            number = Math.max(number, refused.path(1).asLong() + 1);
        }
        await(number, last, session);
        written = Math.max(written, last);
        // what was refused is never handed out
        arrived.headMap(written, true).keySet().retainAll(stored.keySet());
    }

    private void receiveAnswer(JsonNode answer) {
        long other = answer.path("epoch").asLong(), shard = answer.path("shard").asLong();
        switch (answer.path("type").asText()) {
            case "app_ack_conf" -> {
                if (other == epoch && answer.path("writer").asText().equals(writer)) {
                    confirmed = Math.max(confirmed, answer.path("count").asLong());
                }
            }
            case "reader_state" -> {
                if (other > epoch && count == 0 && !complete()) {
                    // of an earlier run, whose clock was ahead
                    epoch = other + 1;
                    parts.clear();
                    due.clear();
                } else if (other > epoch) {
                    throw new IllegalStateException("Another reader has started as " + name);
                } else if (other == epoch && !complete()) {
                    // a later answer of a shard replaces the earlier one
                    parts.values().removeIf(part -> part.path("shard").asLong() == shard
                        && part.path("as_of").asLong() != answer.path("as_of").asLong());
                    parts.put(shard + "/" + answer.path("part").asLong(0), answer);
                }
            }
            case "reader_removed" -> {
                // of an earlier epoch is what a settle job says again of a former run
                if (other >= epoch) {
                    throw new IllegalStateException("The reader " + name + " was removed");
                }
            }
            default -> { }
        }
    }

    /** Whether each part of each shard has answered the start. */
    private boolean complete() {
        Map<Long, Long> wanted = parts.values().stream().collect(Collectors.toMap(
            part -> part.path("shard").asLong(), part -> part.path("parts").asLong(1), (one, other) -> other));
        return !parts.isEmpty()
            && wanted.size() == parts.values().iterator().next().path("shards").asLong()
            && wanted.values().stream().mapToLong(Long::longValue).sum() == parts.size();
    }

    private ObjectNode record(String type) {
        return JSON.createObjectNode().put("type", type).put("reader", name);
    }

    /** The key is the name of who reports. */
    private void send(JsonNode value) {
        producer.send(new ProducerRecord<>(prefix + "app-acks", name, value.toString().getBytes(UTF_8)));
    }

    private List<TopicPartition> partitions(String topic) {
        return consumer.partitionsFor(prefix + topic).stream()
            .map(partition -> new TopicPartition(partition.topic(), partition.partition())).toList();
    }

    private void seek(List<TopicPartition> partitions, long time) {
        var wanted = partitions.stream().collect(Collectors.toMap(one -> one, one -> Math.max(0, time)));
        consumer.offsetsForTimes(wanted).forEach((partition, found) -> {
            if (found == null) {
                consumer.seekToEnd(List.of(partition));
            } else {
                consumer.seek(partition, found.offset());
            }
        });
    }

    private boolean isDue(String what, long milliseconds) {
        long now = System.currentTimeMillis();
        boolean found = now >= due.getOrDefault(what, 0L);
        if (found) {
            due.put(what, now + milliseconds);
        }
        return found;
    }

    private void await(long first, long last, String session) {
        for (long number = first; number <= last; number++) {
            stored.put(number, session);
        }
    }

    /** Add a run to those that are finished; runs that touch become one. */
    private void finish(long first, long last) {
        Map.Entry<Long, Long> before = finished.floorEntry(first);
        long begin = before != null && before.getValue() >= first - 1 ? before.getKey() : first, end = last;
        for (var after = finished.ceilingEntry(begin); after != null && after.getKey() <= end + 1;
                after = finished.ceilingEntry(begin)) {
            end = Math.max(end, after.getValue());
            finished.remove(after.getKey());
        }
        finished.put(begin, end);
    }

    private static String header(ConsumerRecord<?, ?> record, String name) {
        Header found = record.headers().lastHeader(name);
        return found == null ? null : new String(found.value(), UTF_8);
    }

    private static String text(JsonNode value) {
        return value.isTextual() ? value.asText() : null;
    }

    private static JsonNode read(byte[] value) {
        try {
            return JSON.readTree(value);
        } catch (java.io.IOException error) {
            return JSON.nullNode();
        }
    }

    @Override
    public void close() {
        producer.close();
        consumer.close();
    }
}
