import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.CountDownLatch;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;

import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.kafka.annotation.EnableKafka;
import org.springframework.kafka.annotation.KafkaListener;
import org.springframework.kafka.config.ConcurrentKafkaListenerContainerFactory;
import org.springframework.kafka.core.DefaultKafkaConsumerFactory;
import org.springframework.kafka.core.DefaultKafkaProducerFactory;
import org.springframework.kafka.core.KafkaTemplate;
import org.springframework.kafka.listener.DefaultErrorHandler;
import org.springframework.util.backoff.FixedBackOff;

/**
 * Confirms orders in a listener: {@code SpringParty BOOTSTRAP PREFIX confirm TOPIC GROUP LABEL COUNT}.
 *
 * <p>It prints {@code confirmed TOPIC-PARTITION-OFFSET VALUE} for each order, and ends after COUNT or a few more.
 */
public class SpringParty {

    private static final Pattern LABEL = Pattern.compile("[\\w:-]+");
    private static final Pattern TIMEOUT = Pattern.compile("([0-9]{1,12})(ms|s|m|h|)");
    private static final Map<String, Long> MILLISECONDS = Map.of("ms", 1L, "s", 1_000L, "", 1_000L, "m", 60_000L,
        "h", 3_600_000L);

    private final KafkaTemplate<String, String> template;
    private final String acks, label;
    private final CountDownLatch left;

    public static void main(String[] arguments) throws Exception {
        var names = List.of("bootstrap", "prefix", "action", "topic", "group", "label", "count");
        for (int at = 0; at < names.size(); at++) {
            System.setProperty("party." + names.get(at), arguments[at]);
        }
        try (var context = new AnnotationConfigApplicationContext(Beans.class)) {
            context.getBean(SpringParty.class).left.await();
        }
    }

    SpringParty(KafkaTemplate<String, String> template) {
        this.template = template;
        acks = System.getProperty("party.prefix") + "acks";
        label = System.getProperty("party.label");
        left = new CountDownLatch(Integer.getInteger("party.count"));
    }

    @KafkaListener(topics = "${party.topic}", groupId = "${party.prefix}${party.group}")
    public void confirm(ConsumerRecord<String, String> order) throws Exception {
        if (isOver(order.timestamp(), header(order, "timeout"))
            || LABEL.matcher(header(order, "requested-acks")).results().noneMatch(one -> one.group().equals(label))) {
            return;
        }
        var ack = new ProducerRecord<>(acks, order.key(), order.value());
        Stream.of("correlation-id", "kafka_correlationId").map(order.headers()::lastHeader).filter(Objects::nonNull)
            .forEach(ack.headers()::add);
        // without an id of its own a request has its coordinates
        String coordinates = order.topic() + "-" + order.partition() + "-" + order.offset();
        if (ack.headers().toArray().length == 0) {
            ack.headers().add("correlation-id", coordinates.getBytes(UTF_8));
        }
        ack.headers().add("label", label.getBytes(UTF_8)).add("content-type", "application/json".getBytes(UTF_8));
        // Spring commits the offset after this method: by then Kafka has stored the acknowledgement
        template.send(ack).get();
        System.out.println("confirmed " + coordinates + " " + order.value());
        left.countDown();
    }

    /** Whether the timeout of an order has passed: its confirmation would be late. Without one it is 60 s. */
    static boolean isOver(long timestamp, String timeout) {
        Matcher found = TIMEOUT.matcher(timeout.isEmpty() ? "60s" : timeout);
        return found.matches() && timestamp + Long.parseLong(found.group(1)) * MILLISECONDS.get(found.group(2))
            < System.currentTimeMillis();
    }

    private static String header(ConsumerRecord<?, ?> record, String name) {
        Header found = record.headers().lastHeader(name);
        return found == null || found.value() == null ? "" : new String(found.value(), UTF_8);
    }

    /** Spring Boot has these beans already, except the error handler. */
    @Configuration(proxyBeanMethods = false)
    @EnableKafka
    static class Beans {

        private final String bootstrap = System.getProperty("party.bootstrap");

        @Bean
        SpringParty party(KafkaTemplate<String, String> template) {
            return new SpringParty(template);
        }

        @Bean
        KafkaTemplate<String, String> template() {
            return new KafkaTemplate<>(new DefaultKafkaProducerFactory<>(Map.of(
                ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap,
                ProducerConfig.KEY_SERIALIZER_CLASS_CONFIG, StringSerializer.class,
                ProducerConfig.VALUE_SERIALIZER_CLASS_CONFIG, StringSerializer.class)));
        }

        @Bean
        ConcurrentKafkaListenerContainerFactory<String, String> kafkaListenerContainerFactory(
            DefaultErrorHandler confirming) {
            var factory = new ConcurrentKafkaListenerContainerFactory<String, String>();
            factory.setConsumerFactory(new DefaultKafkaConsumerFactory<>(Map.of(
                ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap,
                ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest",
                ConsumerConfig.ISOLATION_LEVEL_CONFIG, "read_committed",
                ConsumerConfig.KEY_DESERIALIZER_CLASS_CONFIG, StringDeserializer.class,
                ConsumerConfig.VALUE_DESERIALIZER_CLASS_CONFIG, StringDeserializer.class)));
            factory.setCommonErrorHandler(confirming);
            return factory;
        }

        @Bean
        DefaultErrorHandler confirming() {
            // Spring's default gives up after ten attempts, and commits: the order would never be confirmed
            return new DefaultErrorHandler(new FixedBackOff(1_000, FixedBackOff.UNLIMITED_ATTEMPTS));
        }
    }
}
