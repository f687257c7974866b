import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;

import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.Headers;

/**
 * What is open under one correlation-id, and how messages and time change it: the rules of all contenders in Java, the
 * same as those of joining.py.
 *
 * <p>An acknowledgement counts by its own time stamp, up to the deadline, whether it is read before its request or after
 * it. What waits for a request that does not come is dropped.
 */
final class Join {

    private static final long ORPHAN_HOLD = 10_000;
    private static final ObjectMapper JSON = new ObjectMapper();

    private record Ack(long timestamp, int status, String text) {}

    /** When this is over: the request's deadline, or the end of the wait for one. */
    long due;

    private String topic = "";
    private String headers = "";
    private long timeout;
    private final List<String> labels = new ArrayList<>();
    private final Map<String, Ack> acks = new LinkedHashMap<>();

    /** Returns the correlation-id of a record; null if it has none: its time stamp alone counts. */
    static String correlationId(final Headers headers) {
        final Header found = headers.lastHeader("correlation-id");
        return found == null ? null : new String(found.value(), StandardCharsets.UTF_8);
    }

    /** Reads what {@link #write} has written; null gives null. */
    static Join read(final byte[] state) {
        if (state == null) {
            return null;
        }
        try (var input = new DataInputStream(new ByteArrayInputStream(state))) {
            final Join found = new Join();
            found.due = input.readLong();
            found.topic = text(input);
            found.headers = text(input);
            found.timeout = input.readLong();
            for (int left = input.readInt(); left > 0; left--) {
                found.labels.add(text(input));
            }
            for (int left = input.readInt(); left > 0; left--) {
                found.acks.put(text(input), new Ack(input.readLong(), input.readInt(), text(input)));
            }
            return found;
        } catch (final IOException error) {
            throw new IllegalStateException(error);
        }
    }

    byte[] write() {
        final var bytes = new ByteArrayOutputStream(1024);
        try (var output = new DataOutputStream(bytes)) {
            output.writeLong(due);
            text(output, topic);
            text(output, headers);
            output.writeLong(timeout);
            output.writeInt(labels.size());
            for (final String label : labels) {
                text(output, label);
            }
            output.writeInt(acks.size());
            for (final var entry : acks.entrySet()) {
                text(output, entry.getKey());
                output.writeLong(entry.getValue().timestamp());
                output.writeInt(entry.getValue().status());
                text(output, entry.getValue().text());
            }
        } catch (final IOException error) {
            throw new IllegalStateException(error);
        }
        return bytes.toByteArray();
    }

    /** Takes a request or an acknowledgement; {@code open} is null for the first message of its correlation-id. */
    static Join receive(final Join open, final byte[] value, final long timestamp) {
        final Join found = open == null ? new Join() : open;
        if (open == null) {
            found.due = timestamp + ORPHAN_HOLD;
        }
        try {
            final JsonNode message = JSON.readTree(value);
            final String[] topic = message.get("topic").textValue().split("/", 6);
            if (topic[4].equals("acks")) {
                found.acknowledge(topic[5], message, timestamp);
            } else if (found.labels.isEmpty()) {
                found.start(topic[0] + "/" + topic[1] + "/things/twin/acks", message, timestamp);
            }
        } catch (final IOException error) {
            throw new IllegalStateException(error);
        }
        return found;
    }

    private void start(final String replyTopic, final JsonNode request, final long timestamp) {
        final ObjectNode given = (ObjectNode) request.get("headers");
        final String text = given.get("timeout").textValue();
        timeout = 1000 * Long.parseLong(text.substring(0, text.length() - 1));
        due = timestamp + timeout;
        given.remove("requested-acks").forEach(label -> labels.add(label.textValue()));
        given.remove("ditto-originator");
        given.put("response-required", false);
        topic = replyTopic;
        headers = given.toString();
        acks.values().removeIf(ack -> ack.timestamp() > due);
    }

    private void acknowledge(final String label, final JsonNode message, final long timestamp) {
        if (labels.isEmpty() || timestamp <= due) {
            final ObjectNode given = (ObjectNode) message.get("headers");
            given.put("response-required", false);
            final int status = message.get("status").intValue();
            final String text = "{\"status\":" + status + ",\"payload\":" + message.get("value") + ",\"headers\":" + given + "}";
            acks.putIfAbsent(label, new Ack(timestamp, status, text));
        }
    }

    /** Tells whether there is a request to answer. */
    boolean requested() {
        return !labels.isEmpty();
    }

    /** Tells whether the request has all acknowledgements. */
    boolean complete() {
        return requested() && acks.keySet().containsAll(labels);
    }

    /** Writes the reply; acknowledgements that are missing have timed out. */
    byte[] reply(final String correlationId) {
        final var text = new StringBuilder(1024);
        text.append("{\"topic\":\"").append(topic).append("\",\"headers\":").append(headers);
        text.append(",\"path\":\"/\",\"value\":");
        String separator = "{";
        boolean good = true;
        for (final String label : labels) {
            final Ack ack = acks.get(label);
            text.append(separator).append('"').append(label).append("\":");
            text.append(ack == null ? timedOut(correlationId) : ack.text());
            good &= ack != null && ack.status() >= 200 && ack.status() < 300;
            separator = ",";
        }
        return text.append("},\"status\":").append(good ? 200 : 424).append('}').toString().getBytes(StandardCharsets.UTF_8);
    }

    private String timedOut(final String correlationId) {
        return String.format(Locale.ROOT,
                "{\"status\":408,\"payload\":{\"status\":408,\"error\":\"acknowledgement:request.timeout\",\"message\":"
                        + "\"The acknowledgement request reached the specified timeout of %,dms.\",\"description\":\"Try "
                        + "increasing the timeout and make sure that the requested acknowledgement is sent back in time.\"},"
                        + "\"headers\":{\"correlation-id\":\"%s\",\"response-required\":false}}",
                timeout, correlationId);
    }

    private static String text(final DataInputStream input) throws IOException {
        return new String(input.readNBytes(input.readInt()), StandardCharsets.UTF_8);
    }

    private static void text(final DataOutputStream output, final String text) throws IOException {
        final byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
        output.writeInt(bytes.length);
        output.write(bytes);
    }
}
