import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.util.Map;
import java.util.concurrent.atomic.AtomicReference;

import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.EncoderFactory;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Writes orders as Avro to a topic: {@code Orders BOOTSTRAP TOPIC}. Lines of its input: headers, key, value, by tabs. */
public final class Orders {

    private static final Schema ORDER = new Schema.Parser().parse("{\"type\":\"record\",\"name\":\"Order\",\"fields\":["
        + "{\"name\":\"number\",\"type\":\"long\"},{\"name\":\"article\",\"type\":\"string\"},"
        + "{\"name\":\"cents\",\"type\":\"int\"}]}");

    public static void main(String[] arguments) throws Exception {
        Map<String, Object> options = Map.of(
            ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0], ProducerConfig.ACKS_CONFIG, "all",
            ProducerConfig.LINGER_MS_CONFIG, 5);
        var failed = new AtomicReference<Exception>();
        var lines = new BufferedReader(new InputStreamReader(System.in, UTF_8));
        var writer = new GenericDatumWriter<GenericRecord>(ORDER);
        var bytes = new ByteArrayOutputStream();
        BinaryEncoder encoder = null;
        try (var producer = new KafkaProducer<>(options, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (String line; (line = lines.readLine()) != null;) {
                String[] columns = line.split("\t"), parts = columns[2].split(" ");
                var order = new GenericData.Record(ORDER);
                order.put("number", Long.parseLong(parts[0]));
                order.put("article", parts[1]);
                order.put("cents", Integer.parseInt(parts[2]));
                bytes.reset();
                encoder = EncoderFactory.get().binaryEncoder(bytes, encoder);
                writer.write(order, encoder);
                encoder.flush();
                var record = new ProducerRecord<>(arguments[1], columns[1].getBytes(UTF_8), bytes.toByteArray());
                for (String header : columns[0].split(";")) {
                    int colon = header.indexOf(':');
                    record.headers().add(header.substring(0, colon), header.substring(colon + 1).getBytes(UTF_8));
                }
                producer.send(record, (metadata, error) -> failed.compareAndSet(null, error));
            }
        }
        if (failed.get() != null) {
            throw failed.get();
        }
    }
}
