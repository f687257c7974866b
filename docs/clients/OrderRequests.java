import static java.nio.charset.StandardCharsets.UTF_8;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.regex.MatchResult;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;

import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Asks about an order by record headers: {@code OrderRequests BOOTSTRAP PREFIX ask TOPIC KEY VALUE LABEL…}; confirms
 * orders: {@code OrderRequests BOOTSTRAP PREFIX confirm TOPIC GROUP LABEL COUNT}; or finds the reply of the last seconds
 * to an earlier request: {@code OrderRequests BOOTSTRAP PREFIX find ID SECONDS}.
 *
 * <p>It prints the status, what completed the request, and the reply; or {@code confirmed ID VALUE} for each order. The
 * standard error has the correlation-id of a request.
 */
public final class OrderRequests {

    private static final Duration POLL = Duration.ofMillis(50);
    /** How long ackstream waits for confirmations, and how long this program waits for the reply, which comes later. */
    private static final Duration TIMEOUT = Duration.ofSeconds(30), PATIENCE = Duration.ofSeconds(60);
    private static final Pattern LABEL = Pattern.compile("[\\w:-]+");
    private static final Pattern DURATION = Pattern.compile("([0-9]{1,12})(ms|s|m|h|)");
    private static final Map<String, Long> MILLISECONDS = Map.of("ms", 1L, "s", 1_000L, "", 1_000L, "m", 60_000L,
        "h", 3_600_000L);

    private final String bootstrap, prefix;

    public static void main(String[] arguments) throws Exception {
        var program = new OrderRequests(arguments[0], arguments[1]);
        List<String> rest = List.of(arguments).subList(3, arguments.length);
        Map<String, Object> options = Map.of(
            ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0], ProducerConfig.ACKS_CONFIG, "all");
        try (var producer = new KafkaProducer<>(options, new StringSerializer(), new StringSerializer())) {
            if (arguments[2].equals("ask")) {
                program.ask(producer, rest.get(0), rest.get(1), rest.get(2), rest.subList(3, rest.size()));
            } else if (arguments[2].equals("find")) {
                program.find(rest.get(0), Duration.ofSeconds(Long.parseLong(rest.get(1))));
            } else {
                program.confirm(producer, rest.get(0), rest.get(1), rest.get(2), Integer.parseInt(rest.get(3)));
            }
        }
    }

    private OrderRequests(String bootstrap, String prefix) {
        this.bootstrap = bootstrap;
        this.prefix = prefix;
    }

    /** Send an order, and print its reply: all labels are acknowledged, or the timeout has passed. */
    void ask(KafkaProducer<String, String> producer, String topic, String key, String value, List<String> labels)
        throws Exception {
        try (var replies = consumer(Map.of())) {
            var partitions = assign(replies);
            replies.seekToEnd(partitions);
            // seeks at once: a reply that arrives before would be missed
            partitions.forEach(replies::position);
            String id = UUID.randomUUID().toString();
            // with it the reply can be found later
            System.err.println("correlation-id " + id);
            producer.send(record(topic, key, value, "correlation-id", id, "requested-acks", String.join(",", labels),
                "timeout", TIMEOUT.toSeconds() + "s")).get();
            long end = System.nanoTime() + PATIENCE.toNanos();
            while (System.nanoTime() - end < 0) {
                for (ConsumerRecord<String, String> reply : replies.poll(POLL)) {
                    if (id.equals(header(reply, "correlation-id"))) {
                        print(reply);
                        return;
                    }
                }
            }
        }
        throw new IllegalStateException("No reply arrived: check that correlate runs, and reads the topic " + topic);
    }

    /** Print all replies of the last time to a request: copies of one reply have the same reply-id. */
    void find(String id, Duration last) {
        try (var replies = consumer(Map.of())) {
            var partitions = assign(replies);
            long since = System.currentTimeMillis() - last.toMillis();
            var ends = replies.endOffsets(partitions);
            replies.offsetsForTimes(partitions.stream().collect(Collectors.toMap(one -> one, one -> since)))
                .forEach((one, found) -> replies.seek(one, found == null ? ends.get(one) : found.offset()));
            while (partitions.stream().anyMatch(one -> replies.position(one) < ends.get(one))) {
                for (ConsumerRecord<String, String> reply : replies.poll(POLL)) {
                    if (id.equals(reply.key())) {
                        print(reply);
                    }
                }
            }
        }
    }

    /** Read all partitions of the replies, without a group. */
    private List<TopicPartition> assign(KafkaConsumer<String, String> replies) {
        var partitions = replies.partitionsFor(prefix + "replies").stream()
            .map(partition -> new TopicPartition(partition.topic(), partition.partition())).toList();
        replies.assign(partitions);
        return partitions;
    }

    private static void print(ConsumerRecord<String, String> reply) {
        System.out.println(header(reply, "status") + " " + header(reply, "completed-by") + " " + reply.value());
    }

    /** Acknowledge the orders that request a label; processes of a group share them. */
    void confirm(KafkaProducer<String, String> producer, String topic, String group, String label, int count)
        throws Exception {
        try (var orders = consumer(Map.of(
            ConsumerConfig.GROUP_ID_CONFIG, prefix + group, ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest",
            ConsumerConfig.MAX_POLL_RECORDS_CONFIG, 1))) {
            orders.subscribe(List.of(topic));
            for (int left = count; left > 0;) {
                for (ConsumerRecord<String, String> order : orders.poll(POLL)) {
                    // a JSON array, or separated by commas
                    if (!isOver(order.timestamp(), header(order, "timeout")) && LABEL.matcher(
                        header(order, "requested-acks")).results().map(MatchResult::group).anyMatch(label::equals)) {
                        // without an id of its own a request has its coordinates
                        String id = header(order, "correlation-id");
                        id = id.isEmpty() ? order.topic() + "-" + order.partition() + "-" + order.offset() : id;
                        producer.send(record(prefix + "acks", id, order.value(), "correlation-id", id,
                            "label", label, "content-type", "application/json")).get();
                        System.out.println("confirmed " + id + " " + order.value());
                        left--;
                    }
                }
                // first the answer, then the progress: after a crash an order may be confirmed again, none is left out
                orders.commitSync();
            }
        }
    }

    /** Whether the timeout of an order has passed: its confirmation would be late. Without one it is 60 s. */
    static boolean isOver(long timestamp, String timeout) {
        Matcher found = DURATION.matcher(timeout.isEmpty() ? "60s" : timeout);
        return found.matches() && timestamp + Long.parseLong(found.group(1)) * MILLISECONDS.get(found.group(2))
            < System.currentTimeMillis();
    }

    private KafkaConsumer<String, String> consumer(Map<String, Object> further) {
        Map<String, Object> options = new java.util.HashMap<>(Map.of(
            ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap,
            ConsumerConfig.ISOLATION_LEVEL_CONFIG, "read_committed",
            ConsumerConfig.ENABLE_AUTO_COMMIT_CONFIG, false));
        options.putAll(further);
        return new KafkaConsumer<>(options, new StringDeserializer(), new StringDeserializer());
    }

    private static ProducerRecord<String, String> record(String topic, String key, String value, String... headers) {
        var record = new ProducerRecord<>(topic, key, value);
        for (int at = 0; at < headers.length; at += 2) {
            record.headers().add(headers[at], headers[at + 1].getBytes(UTF_8));
        }
        return record;
    }

    private static String header(ConsumerRecord<?, ?> record, String name) {
        Header found = record.headers().lastHeader(name);
        return found == null || found.value() == null ? "" : new String(found.value(), UTF_8);
    }
}
