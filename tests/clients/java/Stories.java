import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.Base64;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executors;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.Stream;

import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

import org.eclipse.ditto.base.model.acks.AcknowledgementLabel;
import org.eclipse.ditto.base.model.acks.AcknowledgementRequest;
import org.eclipse.ditto.base.model.common.HttpStatus;
import org.eclipse.ditto.base.model.exceptions.DittoRuntimeException;
import org.eclipse.ditto.base.model.headers.DittoHeaders;
import org.eclipse.ditto.base.model.signals.acks.Acknowledgements;
import org.eclipse.ditto.client.DittoClient;
import org.eclipse.ditto.client.DittoClients;
import org.eclipse.ditto.client.changes.Change;
import org.eclipse.ditto.client.configuration.AccessTokenAuthenticationConfiguration;
import org.eclipse.ditto.client.configuration.BasicAuthenticationConfiguration;
import org.eclipse.ditto.client.configuration.DisconnectedContext;
import org.eclipse.ditto.client.configuration.WebSocketMessagingConfiguration;
import org.eclipse.ditto.client.live.messages.RepliableMessage;
import org.eclipse.ditto.client.management.AcknowledgementsFailedException;
import org.eclipse.ditto.client.messaging.AuthenticationProvider;
import org.eclipse.ditto.client.messaging.AuthenticationProviders;
import org.eclipse.ditto.client.messaging.MessagingProviders;
import org.eclipse.ditto.client.options.Options;
import org.eclipse.ditto.json.JsonFactory;
import org.eclipse.ditto.json.JsonFieldSelector;
import org.eclipse.ditto.json.JsonObject;
import org.eclipse.ditto.json.JsonValue;
import org.eclipse.ditto.jwt.model.ImmutableJsonWebToken;
import org.eclipse.ditto.messages.model.Message;
import org.eclipse.ditto.protocol.Adaptable;
import org.eclipse.ditto.protocol.ProtocolFactory;
import org.eclipse.ditto.things.model.Feature;
import org.eclipse.ditto.things.model.Thing;
import org.eclipse.ditto.things.model.ThingId;

import org.reactivestreams.Subscriber;
import org.reactivestreams.Subscription;

/**
 * The Ditto Java client at work: prints {@code ok NAME} or {@code failed NAME: why} for each story, all at once.
 *
 * <p>Arguments: the gateway ({@code ws://host:port}), the secret of its tokens, and the stories to run. Without a name
 * it prints their names.
 */
public final class Stories {

    private static final String NAMESPACE = "org.acme.java";
    private static final Duration PATIENCE = Duration.ofSeconds(120);
    private static final AcknowledgementLabel PERSISTED = AcknowledgementLabel.of("twin-persisted");
    private static final AcknowledgementLabel LIVE_RESPONSE = AcknowledgementLabel.of("live-response");

    private static String gateway;
    private static String secret;

    private interface Story {
        void run() throws Exception;
    }

    private static final Map<String, Story> STORIES = new LinkedHashMap<>();

    static {
        STORIES.put("twin-commands", Stories::twinCommands);
        STORIES.put("events-with-filter-and-extra-fields", Stories::events);
        STORIES.put("a-bad-filter-is-an-error-of-its-subscription", Stories::badFilter);
        STORIES.put("acks-succeed", Stories::acksSucceed);
        STORIES.put("an-ack-fails", Stories::ackFails);
        STORIES.put("nobody-acknowledges", Stories::nobody);
        STORIES.put("acks-are-aggregated", Stories::aggregated);
        STORIES.put("an-undeclared-label-does-not-end-the-wait", Stories::undeclared);
        STORIES.put("live-messages", Stories::liveMessages);
        STORIES.put("a-live-message-nobody-answers", Stories::unansweredMessage);
        STORIES.put("live-commands-and-events", Stories::liveCommands);
        STORIES.put("search-in-pages", Stories::search);
        STORIES.put("search-with-back-pressure", Stories::backPressure);
        STORIES.put("a-search-with-a-bad-filter-fails", Stories::badSearch);
        STORIES.put("conditions", Stories::conditions);
        STORIES.put("a-label-belongs-to-one-client", Stories::labelConflict);
        STORIES.put("a-token-is-renewed-in-the-socket", Stories::tokenRenewed);
        STORIES.put("a-session-ends-with-its-token", Stories::tokenExpires);
    }

    private Stories() {}

    public static void main(final String... arguments) throws Exception {
        if (arguments.length == 0) {
            STORIES.keySet().forEach(System.out::println);
            System.exit(0);
        }
        gateway = arguments[0];
        secret = arguments[1];
        final var threads = Executors.newCachedThreadPool();
        final var running = STORIES.entrySet().stream()
                .filter(entry -> arguments.length == 2 || List.of(arguments).contains(entry.getKey()))
                .map(entry -> CompletableFuture.runAsync(() -> tell(entry.getKey(), entry.getValue()), threads))
                .collect(Collectors.toList());
        running.forEach(CompletableFuture::join);
        // threads of the clients may go on
        System.exit(0);
    }

    private static void tell(final String name, final Story story) {
        String line = "ok " + name;
        try {
            story.run();
        } catch (final Throwable error) {
            final var place = Stream.of(error.getStackTrace())
                    .filter(frame -> frame.getClassName().startsWith("Stories"))
                    .findFirst();
            line = ("failed " + name + ": " + error + place.map(frame -> " at " + frame).orElse("")).replace('\n', ' ');
        }
        synchronized (System.out) {
            System.out.println(line);
        }
    }

    // -- the twin -----------------------------------------------------------------------------------------------------

    private static void twinCommands() throws Exception {
        final var client = connect();
        final var id = id("twin");
        final var created = get(client.twin().create(thing(id, 1)));
        check(id.equals(created.getEntityId().orElseThrow()), "the created thing: " + created);
        final var handle = client.twin().forId(id);
        get(handle.putAttribute("room", "hall"));
        get(handle.putFeature(Feature.newBuilder().withId("lamp").build()));
        get(handle.forFeature("lamp").putProperty("on", true));
        get(client.twin().merge(id, JsonObject.newBuilder()
                .set("attributes", JsonObject.newBuilder().set("floor", 3).build())
                .build()));
        get(handle.deleteAttribute("x"));
        final var found = get(handle.retrieve()).toJson();
        final var expected = JsonObject.of("{\"room\":\"hall\",\"floor\":3}");
        check(expected.equals(found.getValue("attributes").orElseThrow().asObject()), "attributes: " + found);
        check(found.getValue("features/lamp/properties/on").orElseThrow().asBoolean(), "features: " + found);
        final var selected = get(handle.retrieve(JsonFieldSelector.newInstance("attributes/floor"))).toJson();
        check(selected.getValue("attributes/room").isEmpty(), "selected: " + selected);
        check(get(client.twin().retrieve(id, id("nothing"))).size() == 1, "several things");
        get(client.twin().delete(id));
        check(status(fails(handle.retrieve())) == 404, "a deleted thing is found");
        client.destroy();
    }

    private static void events() throws Exception {
        final var listener = connect();
        final var client = connect();
        final var id = id("events");
        final BlockingQueue<Change> changes = new LinkedBlockingQueue<>();
        get(client.twin().create(thing(id, 0)));
        get(client.twin().forId(id).putAttribute("room", "hall"));
        get(listener.twin().startConsumption(
                Options.Consumption.namespaces(NAMESPACE),
                Options.Consumption.filter("and(gt(attributes/x,5),eq(attributes/room,\"hall\"))"),
                Options.Consumption.extraFields(JsonFieldSelector.newInstance("attributes/room"))));
        listener.twin().forId(id).registerForAttributeChanges("changes", "x", changes::add);
        get(client.twin().forId(id).putAttribute("x", 1));
        get(client.twin().forId(id).putAttribute("x", 7));
        final var change = changes.poll(PATIENCE.toSeconds(), TimeUnit.SECONDS);
        check(change != null && change.getValue().orElseThrow().asInt() == 7, "the change: " + change);
        check(change.getExtra().orElseThrow().getValue("attributes/room").orElseThrow().asString().equals("hall"),
                "extra fields: " + change);
        check(change.getRevision() == 4, "the revision: " + change);
        get(listener.twin().suspendConsumption());
        get(client.twin().forId(id).putAttribute("x", 8));
        check(changes.poll(3, TimeUnit.SECONDS) == null, "a change after the end of the subscription");
        listener.destroy();
        client.destroy();
    }

    private static void badFilter() throws Exception {
        final var client = connect();
        final var error = fails(client.twin().startConsumption(Options.Consumption.filter("eq(attributes/x")));
        check(code(error).equals("rql.expression.invalid"), "the error: " + error);
        get(client.twin().startConsumption());
        client.destroy();
    }

    private static void conditions() throws Exception {
        final var client = connect();
        final var id = id("conditions");
        get(client.twin().create(thing(id, 1)));
        final var handle = client.twin().forId(id);
        get(handle.putAttribute("x", 2, Options.condition("eq(attributes/x,1)")));
        check(status(fails(handle.putAttribute("x", 3, Options.condition("eq(attributes/x,1)")))) == 412, "condition");
        check(status(fails(handle.putAttribute("x", 3, Options.condition("eq(attributes/x")))) == 400, "bad condition");
        check(status(fails(handle.putAttribute("x", 3, Options.Modify.exists(false)))) == 412, "exists");
        check(status(fails(client.twin().create(thing(id, 1)))) == 409, "a thing is created twice");
        check(get(handle.retrieve()).getAttributes().orElseThrow().getValue("x").orElseThrow().asInt() == 2, "the end");
        client.destroy();
    }

    // -- acknowledgements ---------------------------------------------------------------------------------------------

    private static void acksSucceed() throws Exception {
        final var label = AcknowledgementLabel.of("java:fine");
        final var party = party(HttpStatus.OK, label);
        final var client = connect();
        final var id = id("acks-succeed");
        get(client.twin().create(thing(id, 0)));
        get(client.twin().forId(id).putAttribute("x", 1, acks(60, PERSISTED, label)));
        party.destroy();
        client.destroy();
    }

    private static void ackFails() throws Exception {
        final var label = AcknowledgementLabel.of("java:denied");
        final var party = party(HttpStatus.FORBIDDEN, label);
        final var client = connect();
        final var id = id("ack-fails");
        get(client.twin().create(thing(id, 0)));
        final var error = fails(client.twin().forId(id).putAttribute("x", 1, acks(60, PERSISTED, label)));
        check(error instanceof AcknowledgementsFailedException, "the error: " + error);
        final var found = ((AcknowledgementsFailedException) error).getAcknowledgements();
        check(found.getHttpStatus().getCode() == 424, "the status: " + found);
        check(statusOf(found, label) == 403 && statusOf(found, PERSISTED) == 204, "the entries: " + found);
        party.destroy();
        client.destroy();
    }

    private static void nobody() throws Exception {
        final var label = AcknowledgementLabel.of("java:nobody");
        final var client = connect();
        final var id = id("nobody");
        get(client.twin().create(thing(id, 0)));
        final var error = fails(client.twin().forId(id).putAttribute("x", 1, acks(15, PERSISTED, label)));
        check(error instanceof AcknowledgementsFailedException, "the error: " + error);
        final var found = ((AcknowledgementsFailedException) error).getAcknowledgements();
        check(found.getHttpStatus().getCode() == 424 && statusOf(found, label) == 408, "the entries: " + found);
        client.destroy();
    }

    private static void aggregated() throws Exception {
        final var first = AcknowledgementLabel.of("java:first");
        final var second = AcknowledgementLabel.of("java:second");
        final var one = party(HttpStatus.OK, first);
        final var other = party(HttpStatus.ACCEPTED, second);
        final var client = connect();
        final var id = id("aggregated");
        get(client.twin().create(thing(id, 0)));
        final var found = ask(client, modification(id, "aggregated", 60, PERSISTED, second, first));
        check(found.getTopicPath().getPath().equals(NAMESPACE + "/" + id.getName() + "/things/twin/acks"),
                "the topic: " + found.getTopicPath().getPath());
        check(found.getPayload().getHttpStatus().orElseThrow().getCode() == 200, "the status: " + found);
        final var entries = found.getPayload().getValue().orElseThrow().asObject();
        check(entries.getKeys().stream().map(Object::toString).collect(Collectors.toList())
                .equals(List.of("twin-persisted", "java:second", "java:first")), "the entries: " + entries);
        check(entries.getValue("java:second/status").orElseThrow().asInt() == 202, "an entry: " + entries);
        check(entries.getValue("java:second/payload").orElseThrow().asString().equals("java:second"), "a payload");
        one.destroy();
        other.destroy();
        client.destroy();
    }

    private static void undeclared() throws Exception {
        final var label = AcknowledgementLabel.of("java:real");
        final BlockingQueue<Change> changes = new LinkedBlockingQueue<>();
        final var party = connect(label);
        get(party.twin().startConsumption());
        final var client = connect();
        final var stranger = connect();
        final var id = id("undeclared");
        get(client.twin().create(thing(id, 0)));
        party.twin().forId(id).registerForAttributeChanges("changes", "x", changes::add);
        final var command = ProtocolFactory.jsonifiableAdaptableFromJson(
                modification(id, "real-1", 60, PERSISTED, label));
        final var answer = client.sendDittoProtocol(command).toCompletableFuture();
        final var change = changes.poll(PATIENCE.toSeconds(), TimeUnit.SECONDS);
        check(change != null, "no change");
        final var refused = ask(stranger, adaptable(id, "acks/" + label, "/", Map.of("correlation-id", "real-1"))
                .set("status", 400)
                .build());
        check(refused.getTopicPath().getPath().endsWith("/things/twin/errors"), "the answer: " + refused);
        check(refused.getPayload().getValue().orElseThrow().asObject().getValue("error").orElseThrow().asString()
                .equals("acknowledgement:label.not.declared"), "the error: " + refused);
        check(!answer.isDone(), "the wait ended with " + answer);
        change.handleAcknowledgementRequest(label, handle -> handle.acknowledge(HttpStatus.NO_CONTENT));
        final var found = answer.get(PATIENCE.toSeconds(), TimeUnit.SECONDS);
        check(found.getPayload().getHttpStatus().orElseThrow().getCode() == 200, "the status: " + found);
        party.destroy();
        stranger.destroy();
        client.destroy();
    }

    private static void labelConflict() throws Exception {
        final var label = AcknowledgementLabel.of("java:mine");
        final var first = connect(label);
        get(first.twin().startConsumption());
        final var ended = new CompletableFuture<DisconnectedContext>();
        connecting(basic(), ended, label);
        final var context = ended.get(PATIENCE.toSeconds(), TimeUnit.SECONDS);
        check(context.getSource() == DisconnectedContext.Source.SERVER, "the source: " + context.getSource());
        check(code(context.getCause().orElseThrow()).equals("acknowledgement:label.not.unique"),
                "the error: " + context.getCause());
        get(first.twin().suspendConsumption());
        first.destroy();
        // a label that was given back may be declared again
        for (final var until = Instant.now().plus(PATIENCE); ; ) {
            final var again = new CompletableFuture<DisconnectedContext>();
            final var client = connecting(basic(), again, label).toCompletableFuture();
            try {
                again.get(3, TimeUnit.SECONDS);
            } catch (final java.util.concurrent.TimeoutException connected) {
                client.get().destroy();
                return;
            }
            check(Instant.now().isBefore(until), "the label is still taken");
        }
    }

    // -- the live channel ---------------------------------------------------------------------------------------------

    private static void liveMessages() throws Exception {
        final var label = AcknowledgementLabel.of("java:heard");
        final var device = connect(label);
        final var client = connect();
        final var id = id("messages");
        get(client.twin().create(thing(id, 0)));
        get(device.live().startConsumption());
        device.live().forId(id).registerForMessage("asked", "ask", String.class,
                (final RepliableMessage<String, Object> message) -> {
                    message.handleAcknowledgementRequests(handles -> handles.forEach(handle ->
                            handle.acknowledge(HttpStatus.ACCEPTED)));
                    message.reply()
                            .httpStatus(HttpStatus.IM_A_TEAPOT)
                            .payload(message.getPayload().orElseThrow() + "!")
                            .contentType("text/plain")
                            .send();
                });
        final var reply = new CompletableFuture<Message<String>>();
        client.live().forId(id).message().to().subject("ask").payload("?").contentType("text/plain")
                .send(String.class, (message, error) -> complete(reply, message, error));
        final var found = reply.get(PATIENCE.toSeconds(), TimeUnit.SECONDS);
        check(found.getPayload().orElseThrow().equals("?!"), "the payload: " + found);
        check(found.getHttpStatus().orElseThrow().getCode() == 418, "the status: " + found);

        final var acknowledged = new CompletableFuture<Message<String>>();
        client.live().forId(id).message().to().subject("ask")
                .headers(headers(60, LIVE_RESPONSE, label))
                .payload("??").contentType("text/plain")
                .send(String.class, (message, error) -> complete(acknowledged, message, error));
        // the teapot is no success, so the aggregate is none
        final var failure = (AcknowledgementsFailedException) fails(acknowledged);
        final var acks = failure.getAcknowledgements();
        check(acks.getHttpStatus().getCode() == 424, "the status: " + acks);
        check(statusOf(acks, label) == 202 && statusOf(acks, LIVE_RESPONSE) == 418, "the entries: " + acks);
        device.destroy();
        client.destroy();
    }

    private static void unansweredMessage() throws Exception {
        final var client = connect();
        final var reply = new CompletableFuture<Message<String>>();
        client.live().forId(id("deaf")).message().to().subject("ask")
                .timeout(Duration.ofSeconds(3))
                .payload("?").contentType("text/plain")
                .send(String.class, (message, error) -> complete(reply, message, error));
        final var error = fails(reply);
        check(status(error) == 408, "the error: " + error);
        client.destroy();
    }

    private static void liveCommands() throws Exception {
        final var device = connect();
        final var listener = connect();
        final var client = connect();
        final var id = id("live");
        final BlockingQueue<Change> changes = new LinkedBlockingQueue<>();
        get(client.twin().create(thing(id, 0)));
        get(listener.live().startConsumption(Options.Consumption.filter("gt(attributes/x,1)")));
        listener.live().forId(id).registerForAttributeChanges("changes", "x", changes::add);
        get(device.live().startConsumption());
        device.live().forId(id).handleModifyAttributeCommands(command -> command.answer()
                .withResponse(response -> command.getAttributeValue().asInt() < 0
                        ? response.attributeNotModifiableError()
                        : response.modified())
                .withEvent(event -> event.modified()));
        get(client.live().forId(id).putAttribute("x", 5));
        final var change = changes.poll(PATIENCE.toSeconds(), TimeUnit.SECONDS);
        check(change != null && change.getValue().orElseThrow().asInt() == 5, "the event: " + change);
        check(status(fails(client.live().forId(id).putAttribute("x", -1))) == 403, "the error of the device");
        check(get(client.twin().forId(id).retrieve()).getAttributes().orElseThrow().getValue("x").orElseThrow()
                .asInt() == 0, "the twin changed");
        Stream.of(device, listener, client).forEach(DittoClient::destroy);
    }

    // -- search -------------------------------------------------------------------------------------------------------

    private static Set<String> fill(final DittoClient client, final String kind, final int number) throws Exception {
        final Set<String> names = new TreeSet<>();
        final var created = new ArrayList<CompletionStage<Thing>>();
        for (int index = 0; index < number; index++) {
            final var id = id(kind + "-" + index);
            names.add(id.toString());
            created.add(client.twin().create(Thing.newBuilder().setId(id)
                    .setAttribute(JsonFactory.newPointer("kind"), JsonValue.of(kind)).build()));
        }
        for (final var stage : created) {
            get(stage);
        }
        return names;
    }

    private static void search() throws Exception {
        final var client = connect();
        final var names = fill(client, "searched", 5);
        final var found = client.twin().search().stream(query -> query
                        .namespace(NAMESPACE)
                        .filter("eq(attributes/kind,\"searched\")")
                        .options(options -> options.size(2).sort(sort -> sort.asc("thingId")))
                        .fields("thingId"))
                .map(Thing::toJson)
                .collect(Collectors.toList());
        final var ids = found.stream()
                .map(thing -> thing.getValue("thingId").orElseThrow().asString())
                .collect(Collectors.toList());
        check(ids.equals(new ArrayList<>(names)), "found: " + found);
        check(found.stream().allMatch(thing -> thing.getValue("attributes").isEmpty()), "fields: " + found);
        check(client.twin().search().stream(query -> query.filter("eq(attributes/kind,\"none\")")).count() == 0, "none");
        client.destroy();
    }

    private static void backPressure() throws Exception {
        final var client = connect();
        final var names = fill(client, "paced", 4);
        final var pages = new LinkedBlockingQueue<List<Thing>>();
        final var subscription = new CompletableFuture<Subscription>();
        final var end = new CompletableFuture<Void>();
        client.twin().search().publisher(query -> query
                        .namespace(NAMESPACE)
                        .filter("eq(attributes/kind,\"paced\")")
                        .options("size(2)"))
                .subscribe(new Subscriber<List<Thing>>() {
                    @Override
                    public void onSubscribe(final Subscription made) {
                        subscription.complete(made);
                    }

                    @Override
                    public void onNext(final List<Thing> page) {
                        pages.add(page);
                    }

                    @Override
                    public void onError(final Throwable error) {
                        end.completeExceptionally(error);
                    }

                    @Override
                    public void onComplete() {
                        end.complete(null);
                    }
                });
        final var requests = subscription.get(PATIENCE.toSeconds(), TimeUnit.SECONDS);
        check(pages.poll(2, TimeUnit.SECONDS) == null, "a page that was not requested");
        final Set<String> found = new TreeSet<>();
        for (int page = 0; page < 2; page++) {
            check(pages.isEmpty(), "more pages than requested");
            requests.request(1);
            final var items = pages.poll(PATIENCE.toSeconds(), TimeUnit.SECONDS);
            check(items != null && items.size() == 2, "the page: " + items);
            items.forEach(thing -> found.add(thing.getEntityId().orElseThrow().toString()));
        }
        end.get(PATIENCE.toSeconds(), TimeUnit.SECONDS);
        check(found.equals(names), "found: " + found);
        client.destroy();
    }

    private static void badSearch() throws Exception {
        final var client = connect();
        Throwable error = null;
        try {
            client.twin().search().stream(query -> query.filter("eq(attributes/kind")).count();
        } catch (final Exception caught) {
            error = caught;
        }
        check(error != null && code(cause(error)).equals("rql.expression.invalid"), "the error: " + error);
        client.destroy();
    }

    // -- tokens -------------------------------------------------------------------------------------------------------

    private static void tokenRenewed() throws Exception {
        final var ended = new CompletableFuture<DisconnectedContext>();
        final var lives = new LinkedBlockingQueue<>(List.of(6, 3600));
        final var client = connecting(AuthenticationProviders.accessToken(
                AccessTokenAuthenticationConfiguration.newBuilder()
                        .identifier("robot")
                        .accessTokenSupplier(() -> ImmutableJsonWebToken.fromToken(token(lives.remove())))
                        .expiryGracePeriod(Duration.ofSeconds(3))
                        .build()), ended).toCompletableFuture().get(PATIENCE.toSeconds(), TimeUnit.SECONDS);
        Thread.sleep(8_000);
        check(!ended.isDone(), "the session ended");
        get(client.twin().startConsumption());
        client.destroy();
    }

    private static void tokenExpires() throws Exception {
        final var ended = new CompletableFuture<DisconnectedContext>();
        connecting(AuthenticationProviders.accessToken(
                AccessTokenAuthenticationConfiguration.newBuilder()
                        .identifier("robot")
                        .accessTokenSupplier(() -> ImmutableJsonWebToken.fromToken(token(4)))
                        .expiryGracePeriod(Duration.ofSeconds(10))
                        .build()), ended).toCompletableFuture().get(PATIENCE.toSeconds(), TimeUnit.SECONDS);
        final var source = ended.get(PATIENCE.toSeconds(), TimeUnit.SECONDS).getSource();
        check(source == DisconnectedContext.Source.SERVER, "the source: " + source);
    }

    private static String token(final int seconds) {
        try {
            final var claims = "{\"iss\":\"tests\",\"aud\":\"ackstream\",\"sub\":\"robot\",\"exp\":" + (Instant.now().getEpochSecond() + seconds) + "}";
            final var signed = encoded("{\"alg\":\"HS256\",\"typ\":\"JWT\"}") + "." + encoded(claims);
            final var mac = Mac.getInstance("HmacSHA256");
            mac.init(new SecretKeySpec(secret.getBytes(StandardCharsets.UTF_8), "HmacSHA256"));
            final var signature = mac.doFinal(signed.getBytes(StandardCharsets.UTF_8));
            return signed + "." + Base64.getUrlEncoder().withoutPadding().encodeToString(signature);
        } catch (final java.security.GeneralSecurityException error) {
            throw new IllegalStateException(error);
        }
    }

    private static String encoded(final String text) {
        return Base64.getUrlEncoder().withoutPadding().encodeToString(text.getBytes(StandardCharsets.UTF_8));
    }

    // -- what the stories share ---------------------------------------------------------------------------------------

    private static AuthenticationProvider<com.neovisionaries.ws.client.WebSocket> basic() {
        return AuthenticationProviders.basic(
                BasicAuthenticationConfiguration.newBuilder().username("ditto").password("ditto").build());
    }

    private static DittoClient connect(final AcknowledgementLabel... labels) throws Exception {
        return get(connecting(basic(), new CompletableFuture<>(), labels));
    }

    private static CompletionStage<DittoClient> connecting(
            final AuthenticationProvider<com.neovisionaries.ws.client.WebSocket> provider,
            final CompletableFuture<DisconnectedContext> ended,
            final AcknowledgementLabel... labels) {
        final var configuration = WebSocketMessagingConfiguration.newBuilder()
                .endpoint(gateway)
                .timeout(PATIENCE)
                .declaredAcknowledgements(List.of(labels))
                .reconnectEnabled(false)
                .disconnectedListener(ended::complete)
                .build();
        return DittoClients.newInstance(MessagingProviders.webSocket(configuration, provider)).connect();
    }

    /** Returns a client that declares labels and acknowledges every change that asks for them. */
    private static DittoClient party(final HttpStatus status, final AcknowledgementLabel label) throws Exception {
        final var client = connect(label);
        client.twin().registerForThingChanges("party", change -> change.handleAcknowledgementRequest(label,
                handle -> handle.acknowledge(status, JsonValue.of(label.toString()))));
        get(client.twin().startConsumption());
        return client;
    }

    private static ThingId id(final String name) {
        return ThingId.of(NAMESPACE, name);
    }

    private static Thing thing(final ThingId id, final int x) {
        return Thing.newBuilder().setId(id).setAttribute(JsonFactory.newPointer("x"), JsonValue.of(x)).build();
    }

    private static DittoHeaders headers(final int seconds, final AcknowledgementLabel... labels) {
        return DittoHeaders.newBuilder()
                .acknowledgementRequests(Stream.of(labels).map(AcknowledgementRequest::of).collect(Collectors.toList()))
                .timeout(Duration.ofSeconds(seconds))
                .build();
    }

    private static org.eclipse.ditto.client.options.Option<DittoHeaders> acks(
            final int seconds, final AcknowledgementLabel... labels) {
        return Options.headers(headers(seconds, labels));
    }

    private static JsonObject modification(
            final ThingId id, final String correlationId, final int seconds, final AcknowledgementLabel... labels) {
        final var requested = Stream.of(labels).map(label -> "\"" + label + "\"").collect(Collectors.joining(","));
        final var headers = Map.of(
                "correlation-id", correlationId,
                "timeout", seconds + "s",
                "requested-acks", "[" + requested + "]");
        return adaptable(id, "commands/modify", "/attributes/x", headers).set("value", 1).build();
    }

    private static org.eclipse.ditto.json.JsonObjectBuilder adaptable(
            final ThingId id, final String rest, final String path, final Map<String, String> headers) {
        final var written = JsonObject.newBuilder();
        headers.forEach((name, value) ->
                written.set(name, value.startsWith("[") ? JsonFactory.newArray(value) : JsonValue.of(value)));
        return JsonObject.newBuilder()
                .set("topic", id.getNamespace() + "/" + id.getName() + "/things/twin/" + rest)
                .set("headers", written.build())
                .set("path", path);
    }

    private static Adaptable ask(final DittoClient client, final JsonObject message) throws Exception {
        return get(client.sendDittoProtocol(ProtocolFactory.jsonifiableAdaptableFromJson(message)));
    }

    private static <T> T get(final CompletionStage<T> stage) throws Exception {
        try {
            return stage.toCompletableFuture().get(PATIENCE.toSeconds(), TimeUnit.SECONDS);
        } catch (final ExecutionException error) {
            throw new IllegalStateException(cause(error));
        }
    }

    private static Throwable fails(final CompletionStage<?> stage) throws Exception {
        try {
            throw new IllegalStateException("no error but "
                    + stage.toCompletableFuture().get(PATIENCE.toSeconds(), TimeUnit.SECONDS));
        } catch (final ExecutionException error) {
            return cause(error);
        }
    }

    private static Throwable cause(final Throwable error) {
        return error instanceof DittoRuntimeException || error.getCause() == null ? error : cause(error.getCause());
    }

    private static <T> void complete(final CompletableFuture<T> future, final T value, final Throwable error) {
        if (error == null) {
            future.complete(value);
        } else {
            future.completeExceptionally(error);
        }
    }

    private static int status(final Throwable error) {
        return error instanceof DittoRuntimeException
                ? ((DittoRuntimeException) error).getHttpStatus().getCode()
                : -1;
    }

    private static String code(final Throwable error) {
        return error instanceof DittoRuntimeException ? ((DittoRuntimeException) error).getErrorCode() : "";
    }

    private static int statusOf(final Acknowledgements acks, final AcknowledgementLabel label) {
        return acks.getAcknowledgement(label).orElseThrow().getHttpStatus().getCode();
    }

    private static void check(final boolean condition, final String what) {
        if (!condition) {
            throw new IllegalStateException(what);
        }
    }
}
