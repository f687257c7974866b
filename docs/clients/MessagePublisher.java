import static java.nio.charset.StandardCharsets.UTF_8;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;

import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Publishes messages and waits until each is in the table: {@code MessagePublisher BOOTSTRAP PREFIX NAME TOPIC VALUE…}.
 *
 * <p>It prints {@code stored FIRST LAST} for each merged acknowledgement, and {@code refused NUMBER REASON}.
 */
public final class MessagePublisher implements AutoCloseable {

    private static final Duration POLL = Duration.ofMillis(100), AGAIN = Duration.ofSeconds(10);
    private static final ObjectMapper JSON = new ObjectMapper();

    private final String name, session = "logon-" + UUID.randomUUID(), messages;
    private final KafkaProducer<String, byte[]> producer;
    private final KafkaConsumer<String, byte[]> consumer;
    /** What is sent and not answered, by number; a publisher that survives crashes keeps this on disk. */
    private final TreeMap<Long, ProducerRecord<String, byte[]>> open = new TreeMap<>();
    private JsonNode loggedOn;
    private long last;

    public static void main(String[] arguments) {
        try (var publisher = new MessagePublisher(arguments[0], arguments[1], arguments[2])) {
            publisher.logOn();
            for (String value : List.of(arguments).subList(4, arguments.length)) {
                publisher.publish(arguments[3], value.getBytes(UTF_8));
            }
            publisher.await();
        }
    }

    MessagePublisher(String bootstrap, String prefix, String name) {
        this.name = name;
        messages = prefix + "messages";
        producer = new KafkaProducer<>(Map.of(
            ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap,
            // with this and idempotence, which is the default, Kafka loses nothing and keeps the order
            ProducerConfig.ACKS_CONFIG, "all",
            ProducerConfig.LINGER_MS_CONFIG, 5), new StringSerializer(), new ByteArraySerializer());
        consumer = new KafkaConsumer<>(Map.of(
            ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap,
            ConsumerConfig.ISOLATION_LEVEL_CONFIG, "read_committed",
            ConsumerConfig.ENABLE_AUTO_COMMIT_CONFIG, false), new StringDeserializer(), new ByteArrayDeserializer());
        var answers = consumer.partitionsFor(prefix + "publisher-acks").stream()
            .map(partition -> new TopicPartition(partition.topic(), partition.partition())).toList();
        consumer.assign(answers);
        consumer.seekToEnd(answers);
        // seeks at once: an answer that arrives before would be missed
        answers.forEach(consumer::position);
    }

    /** Begin a session. Numbers go on behind all that were received under the name. */
    void logOn() {
        // without the header `first`: this publisher has kept nothing of an earlier session
        var logon = record(new byte[0], "command", "logon", "cid", session, "ack", "processed",
            "publish-window", "1000");
        do {
            loggedOn = null;
            producer.send(logon);
            while (loggedOn == null) {
                receive();
            }
            // the service could not process it this time
        } while (loggedOn.path("status").asText().equals("retry"));
        if (loggedOn.path("status").asText().equals("failure")) {
            throw new IllegalStateException("The logon was refused: " + loggedOn.path("reason").asText());
        }
        last = Math.max(loggedOn.path("s").asLong(0), loggedOn.path("highest").asLong(0));
    }

    /** Send a message under the next number. */
    void publish(String topic, byte[] value) {
        last++;
        var record = record(value, "seq", Long.toString(last), "topic", topic, "ack", "persisted");
        open.put(last, record);
        producer.send(record);
    }

    /** Wait until all messages are stored or refused; send again what stays unanswered: copies are recognised. */
    void await() {
        long again = System.nanoTime() + AGAIN.toNanos();
        while (!open.isEmpty()) {
            int before = open.size();
            receive();
            if (open.size() < before) {
                again = System.nanoTime() + AGAIN.toNanos();
            } else if (System.nanoTime() - again > 0) {
                open.values().forEach(producer::send);
                again = System.nanoTime() + AGAIN.toNanos();
            }
        }
    }

    /** All records have the publisher's name as their key, so that they are in one partition, in order. */
    private ProducerRecord<String, byte[]> record(byte[] value, String... headers) {
        var record = new ProducerRecord<>(messages, name, value);
        record.headers().add("client", name.getBytes(UTF_8)).add("publisher-session", session.getBytes(UTF_8));
        for (int at = 0; at < headers.length; at += 2) {
            record.headers().add(headers[at], headers[at + 1].getBytes(UTF_8));
        }
        return record;
    }

    private void receive() {
        for (ConsumerRecord<String, byte[]> record : consumer.poll(POLL)) {
            if (name.equals(record.key())) {
                JsonNode ack = read(record.value());
                // other records of the topic are about readers
                if (ack.path("c").asText().equals("ack")) {
                    take(ack);
                }
            }
        }
    }

    private void take(JsonNode ack) {
        String type = ack.path("a").asText(), reason = ack.path("reason").asText();
        boolean own = ack.path("session").asText(session).equals(session);
        if (type.equals("processed") && ack.path("cid").asText().equals(session)) {
            if (reason.equals("session over")) {
                throw new IllegalStateException("Another publisher has logged on as " + name);
            }
            loggedOn = ack;
        } else if (own && type.equals("persisted") && ack.has("s")) {
            var answered = open.subMap(ack.path("first").asLong(), true, ack.path("s").asLong(), true);
            if (!answered.isEmpty()) {
                // a duplicate was stored before
                boolean stored = ack.path("status").asText("success").equals("success") || reason.equals("duplicate");
                System.out.println(stored ? "stored " + answered.firstKey() + " " + answered.lastKey()
                    : "refused " + answered.firstKey() + " " + reason);
                answered.clear();
            }
        }
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
