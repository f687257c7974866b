import java.time.Duration;
import java.util.Map;
import java.util.UUID;

import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.springframework.kafka.core.DefaultKafkaConsumerFactory;
import org.springframework.kafka.core.DefaultKafkaProducerFactory;
import org.springframework.kafka.listener.ContainerProperties;
import org.springframework.kafka.listener.KafkaMessageListenerContainer;
import org.springframework.kafka.requestreply.ReplyingKafkaTemplate;

/** Sends a command and prints who has acknowledged it: {@code SpringRequester BOOTSTRAP PREFIX THING POWER LABEL…}. */
public final class SpringRequester {

    /** How long ackstream waits for acknowledgements, and how much later its answer may be here. */
    private static final Duration TIMEOUT = Duration.ofSeconds(10), ANSWERED = Duration.ofSeconds(20);

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0], prefix = arguments[1], thing = arguments[2], power = arguments[3];
        String labels = '"' + String.join("\", \"", java.util.Arrays.copyOfRange(arguments, 4, arguments.length)) + '"';

        try (var template = new Template(bootstrap, prefix + "replies")) {
            String command = """
                {"topic": "%s/things/twin/commands/modify", "path": "/attributes/power", "value": "%s",
                 "headers": {"requested-acks": [%s], "timeout": "%ds"}}
                """.formatted(thing.replaceFirst(":", "/"), power, labels, TIMEOUT.toSeconds());
            // keyed by its thing: commands and acknowledgements of a thing stay in order
            var request = new ProducerRecord<>(prefix + "signals", thing, command);
            ConsumerRecord<String, String> reply = template.sendAndReceive(request).get();
            System.out.println(header(reply, "status") + " " + header(reply, "completed-by") + " " + reply.value());
        }
    }

    private static String header(ConsumerRecord<?, ?> record, String name) {
        Header found = record.headers().lastHeader(name);
        return found == null ? null : new String(found.value());
    }

    /** Spring's template, started; with Spring Boot it is a bean of the same parts. */
    private static final class Template extends ReplyingKafkaTemplate<String, String, String> implements AutoCloseable {

        Template(String bootstrap, String replies) throws InterruptedException {
            super(new DefaultKafkaProducerFactory<>(Map.of(
                ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap,
                ProducerConfig.KEY_SERIALIZER_CLASS_CONFIG, StringSerializer.class,
                ProducerConfig.VALUE_SERIALIZER_CLASS_CONFIG, StringSerializer.class)), container(bootstrap, replies));
            // the replies of all requesters are on the topic: those of others are no errors
            setSharedReplyTopic(true);
            // Spring's default is 5 s, and ackstream answers only when the request's own timeout has passed
            setDefaultReplyTimeout(TIMEOUT.plus(ANSWERED));
            start();
            // a reply that arrives before would be missed
            if (!waitForAssignment(Duration.ofSeconds(60))) {
                throw new IllegalStateException("Kafka has assigned no partition of " + replies);
            }
        }

        private static KafkaMessageListenerContainer<String, String> container(String bootstrap, String replies) {
            // subscribed; an assigned partition would be named in each request, and its reply would be there
            var properties = new ContainerProperties(replies);
            // a group of its own for each instance, so that each sees all replies
            properties.setGroupId("requester-" + UUID.randomUUID());
            return new KafkaMessageListenerContainer<>(new DefaultKafkaConsumerFactory<>(Map.of(
                ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap,
                ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "latest",
                ConsumerConfig.ISOLATION_LEVEL_CONFIG, "read_committed",
                ConsumerConfig.KEY_DESERIALIZER_CLASS_CONFIG, StringDeserializer.class,
                ConsumerConfig.VALUE_DESERIALIZER_CLASS_CONFIG, StringDeserializer.class)), properties);
        }

        @Override
        public void close() {
            stop();
            destroy();
        }
    }
}
