"""The messages and acknowledgements of targets, and when signals are published again or given up.

The system's Kafka and the other system are played.
"""

from __future__ import annotations

import json
import threading
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.client.core.messages import Work
from ackstream.connectivity import outbound as outbound_module
from ackstream.connectivity import system as system_module
from ackstream.connectivity.outbound import PASSED_ON, Outbound, OutboundWorker, issued
from ackstream.connectivity.system import STORED, Lanes, Place
from ackstream.connectivity.transports.transport import Published, TargetPublisher, not_published
from ackstream.errors import UnreachableError
from ackstream.kafka.clients import CLOSE_SECONDS
from ackstream.protocol.ditto.acknowledgements import Acknowledgement, read_issued, response_to_ack
from ackstream.protocol.ditto.envelopes import decode
from ackstream.protocol.ditto.headers import taken_headers
from ackstream.protocol.ditto.requests import read_request, response_matches
from ackstream.protocol.ditto.twin.access import OPEN, Access, Rule
from ackstream.protocol.ditto.twin.subscriptions import Publication, answers_of, publication, weak_acks
from ackstream.protocol.errors import DittoError
from ackstream.settings.connections import KafkaConnection
from tests.prose import covers, each

if TYPE_CHECKING:
    from random import Random

EVENTS, MESSAGES = "_/_/things/twin/events", "_/_/things/live/messages"


def outbound(*targets: dict[str, Any], declared: tuple[str, ...] = ()) -> Outbound:
    sources = [{"addresses": ["in"], "declared_acks": declared}]
    return Outbound(KafkaConnection(id="c", type="kafka", sources=sources, targets=targets), OPEN)


def target(*topics: str, address: str = "out", **parts: Any) -> dict[str, Any]:
    return {"address": address, "topics": topics, **parts}


def signal(topic: str, value: Any = 1, **headers: Any) -> Publication:
    message = {"topic": topic, "headers": headers, "path": "/attributes/x", "value": value}
    if value is None:
        del message["value"]
    found = publication(decode(json.dumps(message).encode()), "mine")
    assert found is not None
    return found


def event(*labels: str, value: Any = 1) -> Publication:
    return signal("org.acme/lamp/things/twin/events/modified", value, **{"requested-acks": labels})


def message(*labels: str, **headers: Any) -> Publication:
    return signal("org.acme/lamp/things/live/messages/on", **{"requested-acks": labels}, **headers)


def test_each_target_gets_what_it_wants() -> None:
    plan = outbound(
        target(EVENTS, address="events"),
        target(f"{EVENTS}?namespaces=org.other,org.else", address="others"),
        target(f"{EVENTS}?filter=gt(attributes/x,5)", address="large"),
        target(MESSAGES, EVENTS, address="both/{{ thing:name }}"),
        target(MESSAGES, address="messages"),
    ).plan(event())
    assert [publishing.message.address for publishing in plan.publishings] == ["events", "both/lamp"]


@covers("header_defaults", "outgoing-conn-notdeclared-removed", "outgoing-event-target-issued-removed")
def test_only_labels_of_the_connection_are_shown_and_never_the_target_s_own() -> None:
    plan = outbound(target(EVENTS, issued_ack="c:one"), target(EVENTS, issued_ack="c:two"), declared=("c:three",)).plan(
        event("c:one", "c:two", "c:three", "other", "twin-persisted")
    )
    shown = [decode(publishing.message.payload).headers["requested-acks"] for publishing in plan.publishings]
    assert shown == [["c:two", "c:three"], ["c:one", "c:three"]]
    assert [publishing.label for publishing in plan.publishings] == ["c:one", "c:two"]


@pytest.mark.parametrize(
    ("given_", "label"),
    [
        (message("live-response"), "live-response"),
        (message("live-response", **{"response-required": False}), None),
        (message(), "live-response"),
        (event("live-response"), None),
    ],
)
def test_a_target_responds_to_live_messages_that_want_a_response(given_: Publication, label: str | None) -> None:
    plan = outbound(target(EVENTS, MESSAGES, issued_ack="live-response")).plan(given_)
    assert [publishing.label for publishing in plan.publishings] == [label]


def test_an_issued_label_that_is_not_asked_for_is_not_issued() -> None:
    plan = outbound(target(EVENTS, issued_ack="c:one")).plan(event("c:two"))
    assert [publishing.label for publishing in plan.publishings] == [None]


DROPS = f"{EVENTS}?filter=eq(attributes/x,0)"


@pytest.mark.parametrize(
    ("targets", "weak"),
    [
        # all drop it: all labels of the connection
        ([target(DROPS, issued_ack="c:one"), target(MESSAGES, issued_ack="c:two")], ("c:one", "c:two", "c:three")),
        ([target(MESSAGES, issued_ack="c:one")], ("c:one", "c:three")),
        # one publishes it: those of targets that dropped it
        ([target(EVENTS, issued_ack="c:one"), target(DROPS, issued_ack="c:two")], ("c:two",)),
        ([target(EVENTS), target(MESSAGES, issued_ack="c:two")], ()),
    ],
)
@covers("rql", "weak-connection-target", "weak-connection-all")
def test_labels_of_targets_that_drop_a_signal_are_acknowledged_weakly(
    targets: list[dict[str, Any]], weak: tuple[str, ...]
) -> None:
    plan = outbound(*targets, declared=("c:three",)).plan(event("c:one", "c:two", "c:three", "other"))
    assert plan.weak.labels == weak
    assert [ack.label for ack in weak_acks(event(), plan.weak)] == list(weak)


def test_without_its_labels_a_connection_publishes_and_acknowledges_nothing_but_live_responses() -> None:
    targets = [target(EVENTS, issued_ack="c:one"), target(DROPS, issued_ack="c:two")]
    connection = outbound(*targets, target(MESSAGES, issued_ack="live-response"), declared=("c:three",))
    plan = connection.plan(event("c:one", "c:two", "c:three"), held=False)
    assert [publishing.label for publishing in plan.publishings] == [None]
    assert decode(plan.publishings[0].message.payload).headers.get("requested-acks", []) == []
    assert (plan.weak.labels, plan.failed) == ((), [])
    answered = connection.plan(message("live-response"), held=False)
    assert [publishing.label for publishing in answered.publishings] == ["live-response"]


def test_headers_of_the_transport_are_those_of_the_acknowledgement_unless_the_signal_has_them() -> None:
    result = Published(200, headers={"retry-after": "9", "correlation-id": "theirs", "content-type": "text/plain"})
    assert issued("c:one", result, {"correlation-id": "mine", "content-type": "text/csv"}).headers == {
        "retry-after": "9",
        "correlation-id": "mine",
        "content-type": "text/csv",
        "response-required": False,
    }


HOSTILE = dict.fromkeys(
    (
        *(
            "authorization",
            "set-cookie",
            "www-authenticate",
            "location",
            "x-auth-token",
            "read-subjects",
            "traceparent",
        ),
        *("ditto-originator", "ditto-weak-ack", "ditto-sudo", "ditto-auth-context", "requested-acks", "timeout"),
        *("condition", "channel", "reply-to", "version", "if-match", "declared-acks", "entity-id", "etag"),
    ),
    "1",
)


@pytest.mark.parametrize("label", ["c:one", "live-response"])
def test_no_credential_and_no_header_of_the_system_comes_back_from_a_service(label: str) -> None:
    ack = issued(label, Published(200, headers=HOSTILE), {"correlation-id": "mine"})
    assert ack.headers == {"correlation-id": "mine", "response-required": False}
    assert not ack.weak
    assert taken_headers(dict.fromkeys(PASSED_ON)).keys() == PASSED_ON
    (answer,) = answers_of(message("c:one"), [ack])
    assert not HOSTILE.items() & {name: str(value) for name, value in answer.headers.items()}.items()


def test_a_signal_without_value_is_dropped_where_only_values_go_out() -> None:
    plan = outbound(target(EVENTS), target(EVENTS, payload="value", issued_ack="c:one")).plan(
        event("c:one", value=None)
    )
    assert len(plan.publishings) == 1
    assert plan.weak.labels == ("c:one",)


def test_a_value_goes_out_as_json() -> None:
    (publishing,) = outbound(target(EVENTS, payload="value")).plan(event(value={"a": 1})).publishings
    assert publishing.message.payload == b'{"a": 1}'
    assert publishing.message.headers["content-type"] == "application/json"


def test_a_target_whose_address_comes_to_nothing_publishes_nothing_and_acknowledges_nothing() -> None:
    plan = outbound(target(EVENTS, address="out/{{ header:none }}", issued_ack="c:one")).plan(event("c:one"))
    assert (plan.publishings, plan.weak.labels) == ([], ())


ENRICHED = f"{EVENTS}?extraFields=attributes/y&filter=eq(attributes/y,5)"


@pytest.mark.parametrize(("y", "published"), [(5, 1), (6, 0)])
def test_extra_fields_are_put_under_a_signal_and_filtered(y: int, published: int) -> None:
    asked: list[Any] = []

    def extra(thing_id: str, fields: str) -> dict[str, Any]:
        asked.append((thing_id, fields))
        return {"attributes": {"y": y}}

    plan = outbound(target(ENRICHED), target(MESSAGES)).plan(event(), None, extra)
    assert asked == [("org.acme:lamp", "attributes/y")]
    assert len(plan.publishings) == published
    for publishing in plan.publishings:
        assert json.loads(publishing.message.payload)["extra"] == {"attributes": {"y": 5}}


@each("aggregation", "weak-enrichment-failure")
def test_prose_a_failed_enrichment_is_a_failed_acknowledgement(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    assert given_["authorizedTargets"] == ["target1", "target2 (enrichment times out)"]

    def extra(_thing_id: str, _fields: str) -> dict[str, Any]:
        raise DittoError(503, "connectivity:signal.enrichment.failed", "Signal enrichment failed.")

    targets = [target(EVENTS, issued_ack="c:target1"), target(ENRICHED, issued_ack="c:target2")]
    requested = [f"c:{label}" for label in given_["requested"]]
    plan = outbound(*targets, declared=("c:source1",)).plan(event(*requested), None, extra)
    assert [ack.label.removeprefix("c:") for ack in plan.failed] == expect["failedAcks"]
    assert [ack.status for ack in plan.failed] == [503]
    assert list(plan.weak.labels) == expect["weakAcks"]
    assert [publishing.label for publishing in plan.publishings] == ["c:target1"]


def test_a_signal_without_its_extra_fields_is_a_dead_letter_if_its_requester_does_not_learn_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running = Running(monkeypatch, Other())

    def extra(_thing_id: str, _fields: str) -> dict[str, Any]:
        raise DittoError(503, "connectivity:signal.enrichment.failed", "Signal enrichment failed.")

    running.worker._outbound = outbound(target(ENRICHED))
    running.worker._system.extra = extra
    work = running.handle()
    ((letter, reason),) = running.given_up
    assert reason == "out did not get it: Signal enrichment failed."
    assert (decode(letter.payload), work.remaining, running.publisher.open) == (running.signal.envelope, 0, [])


@pytest.mark.parametrize(
    ("connection", "streams"),
    [
        (outbound(target(EVENTS)), {"events"}),
        (outbound(target(MESSAGES, EVENTS)), {"events", "messages"}),
        (outbound(target(EVENTS, issued_ack="live-response")), {"events"}),
        (outbound(declared=("c:one",)), {"events", "live-commands", "messages"}),
        (outbound(target(EVENTS, issued_ack="c:one")), {"events", "live-commands", "messages"}),
    ],
)
def test_whoever_holds_labels_looks_at_everything_that_may_ask_for_them(
    connection: Outbound, streams: set[str]
) -> None:
    assert connection.streams == streams


@pytest.mark.parametrize(("given_", "channel"), [(event("c:one"), "twin"), (message("c:one"), "live")])
def test_acknowledgements_are_written_as_an_aggregate_that_correlate_reads(given_: Publication, channel: str) -> None:
    (answer,) = answers_of(given_, [Acknowledgement("c:one", 204), Acknowledgement("c:two", 200)])
    assert [ack.label for ack in read_issued(answer)] == ["c:one", "c:two"]
    assert answer.topic.channel == channel
    assert answer.headers["correlation-id"] == "mine"


def test_a_live_response_of_a_target_is_a_response_that_correlate_reads() -> None:
    given_ = message("c:one")
    headers = {"correlation-id": "mine", "response-required": False}
    issued = [Acknowledgement("live-response", 204, headers=headers), Acknowledgement("c:one", 200, headers=headers)]
    response, aggregate = answers_of(given_, issued)
    assert [ack.label for ack in read_issued(aggregate)] == ["c:one"]
    request = read_request(given_.envelope)
    assert response_matches(request, response) is None
    ack = response_to_ack(request, response)
    assert (ack.label, ack.status, ack.headers["correlation-id"]) == ("live-response", 204, "mine")


def test_texts_of_placeholders_are_quoted_in_addresses_as_the_transport_does() -> None:
    connection = KafkaConnection(
        id="c",
        type="kafka",
        targets=[target(EVENTS, address="a/{{ thing:id }}", header_mapping={"x": "{{ thing:id }}"})],
    )
    (publishing,) = Outbound(connection, OPEN, lambda text: text.replace(":", "%3A")).plan(event()).publishings
    assert (publishing.message.address, publishing.message.headers["x"]) == ("a/org.acme%3Alamp", "org.acme:lamp")


# -- what a target may receive -----------------------------------------------------------------------------------------

RULES = Access(
    [
        Rule(("target:some",), ("org.acme:*",), "/attributes/x/seen"),
        Rule(("target:box",), ("org.acme:*",), "/inbox/messages/on"),
        Rule(("target:all",)),
    ]
)


def seen(subject: str, given_: Publication, extra: Any = None, **parts: Any) -> list[Any]:
    subjects = (subject,) if subject else ()
    made = KafkaConnection(id="c", type="kafka", targets=[target(EVENTS, MESSAGES, subjects=subjects, **parts)])
    plan = Outbound(made, RULES).plan(given_, extra=extra)
    return [decode(publishing.message.payload) for publishing in plan.publishings]


@pytest.mark.parametrize(
    ("subject", "value"),
    [("target:all", {"seen": 1, "hidden": 2}), ("target:some", {"seen": 1}), ("target:box", None), ("", None)],
)
def test_a_target_receives_what_its_subjects_may_read(subject: str, value: Any) -> None:
    found = seen(subject, event(value={"seen": 1, "hidden": 2}))
    assert [json.loads(bytes(each.value)) for each in found] == ([] if value is None else [value])


def test_a_message_is_received_by_those_who_may_read_its_box_whatever_path_it_gives() -> None:
    headers: dict[str, Any] = {"topic": "org.acme/lamp/things/live/messages/on", "headers": {}, "value": 1}
    honest, lying = (
        publication(decode(json.dumps(headers | {"topic": topic, "path": "/inbox/messages/on"}).encode()), "c")
        for topic in (headers["topic"], "org.acme/lamp/things/live/messages/secret")
    )
    assert honest is not None
    assert lying is not None
    assert len(seen("target:box", honest)) == 1
    assert seen("target:box", lying) == []
    assert len(seen("target:all", lying)) == 1


def test_a_filter_and_extra_fields_of_a_target_see_no_more_than_it_may_read() -> None:
    def thing(_thing_id: str, _selector: str) -> dict[str, Any]:
        return {"attributes": {"x": {"seen": 3, "hidden": 4}}, "features": {"vault": {}}}

    given_ = event(value={"seen": 1, "hidden": 2})
    filtered = f"{EVENTS}?filter=eq(attributes/x/hidden,2)"
    connection = KafkaConnection(id="c", type="kafka", targets=[target(filtered, subjects=("target:some",))])
    assert Outbound(connection, RULES).plan(given_).publishings == []
    topic = f"{EVENTS}?extraFields=attributes,features"
    connection = KafkaConnection(id="c", type="kafka", targets=[target(topic, subjects=("target:some",))])
    (publishing,) = Outbound(connection, RULES).plan(given_, extra=thing).publishings
    assert json.loads(bytes(decode(publishing.message.payload).extra)) == {"attributes": {"x": {"seen": 3}}}  # type: ignore[arg-type]


def test_a_signal_that_a_target_may_not_read_is_acknowledged_weakly() -> None:
    connection = KafkaConnection(id="c", type="kafka", targets=[target(EVENTS, issued_ack="c:one", subjects=("x",))])
    plan = Outbound(connection, RULES).plan(event("c:one"))
    assert (plan.publishings, plan.weak.labels) == ([], ("c:one",))


# -- the worker of a connection --------------------------------------------------------------------------------------


MAX_ATTEMPTS = 20


class Outbox:
    """Of a worker without Kafka."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def hold(self, work: Work) -> None:
        work.remaining += 1

    def release(self, work: Work) -> None:
        work.remaining -= 1

    def send(self, _correlation_id: str, message: Any, _work: Work) -> None:
        self.sent.append(message)


class Other(TargetPublisher):
    """The other system: accepts nothing, or answers when the test does."""

    def __init__(self, result: Published | None = None) -> None:
        self.result = result
        self.open: list[Any] = []
        self.addresses: list[str] = []
        self.published: list[Any] = []
        self.halted = False

    def halt(self) -> None:
        self.halted = True

    def publish(self, message: Any, done: Any) -> None:
        self.addresses.append(message.address)
        self.published.append(done)
        if self.result is None:
            self.open.append(done)
        else:
            done(self.result)

    def close(self) -> None: ...


class Running:
    """A worker on a Kafka that is played."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, publisher: Other, *labels: str) -> None:
        self.outbox = Outbox()
        self.closed_with: int | None = None
        self.labels = SimpleNamespace(complete=True, taken=False)
        self.made: dict[str, Any] = {}
        made = SimpleNamespace(
            run=lambda: None,
            life=SimpleNamespace(alive=True, error=None),
            outbox=self.outbox,
            close=self._close,
            originator_key=None,
        )
        self.life = made.life

        def make(*_: Any, **options: Any) -> Any:
            self.made = options
            return made

        monkeypatch.setattr(outbound_module, "Worker", make)
        monkeypatch.setattr(outbound_module, "read_publication", lambda record, _key: record.signal)
        parts = {"issued_ack": labels[0]} if labels else {}
        address = "{{ header:address | fn:default('out') }}"
        connection = KafkaConnection(id="c", type="kafka", targets=[target(EVENTS, address=address, **parts)])
        self.given_up: list[tuple[Any, str]] = []
        self.stores = True
        kafka: Any = None
        held: Any = self.labels
        system: Any = SimpleNamespace(extra=dict, give_up=self._give_up)
        self.publisher = publisher
        self.signal = event(*labels)
        self.now = 0.0
        monkeypatch.setattr(outbound_module, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.lanes = Lanes(MAX_ATTEMPTS)
        self.open = partial(OutboundWorker, connection, kafka, publisher, system, held, self.lanes, OPEN)
        self.worker = self.open()

    def handle(self, offset: int = 0, address: str = "out") -> Work:
        work = Work(offset)
        self.signal.envelope.headers["address"] = address
        record = SimpleNamespace(signal=self.signal, timestamp=0, topic="events", partition=0, offset=offset)
        self.worker._handle(record, work)
        return work

    @property
    def statuses(self) -> list[int]:
        return [ack.status for message in self.outbox.sent for ack in read_issued(message)]

    def later(self) -> None:
        """Publish what waits, after the longest pause."""
        self.now += 60.0
        self.worker.turn()

    @property
    def offsets(self) -> list[int]:
        """The offsets of the signals that were published, in order."""
        return [done.args[0].place.offset for done in self.publisher.published]

    def _close(self) -> None:
        self.closed_with = self.worker._publishing

    def _give_up(self, message: Any, reason: str, received: Any) -> None:
        self.given_up.append((message, reason))
        received(STORED if self.stores else None)


@pytest.mark.parametrize(
    ("away", "label", "alive", "remaining", "letters"),
    [
        pytest.param(True, None, False, 1, [], id="nobody would learn of it: published again"),
        pytest.param(True, "c:one", True, 0, [], id="its requester learns of it"),
        pytest.param(False, None, True, 0, ["out refused it: 400 {"], id="it would fail again: a dead letter"),
        pytest.param(False, "c:one", True, 0, [], id="its requester learns that it was refused"),
    ],
)
def test_a_signal_that_a_target_did_not_accept_is_kept_acknowledged_or_a_dead_letter(
    monkeypatch: pytest.MonkeyPatch, *, away: bool, label: str | None, alive: bool, remaining: int, letters: list[str]
) -> None:
    other = Other(not_published(TimeoutError("expired"), 503 if away else 400))
    running = Running(monkeypatch, other, *([] if label is None else [label]))
    work = running.handle()
    running.later()
    assert (running.worker.alive, work.remaining, other.halted) == (alive, remaining, not alive)
    assert running.statuses == ([503 if away else 400] if label else [])
    assert [reason[: len(letters[0])] for _, reason in running.given_up] == letters


@pytest.mark.parametrize("away", [False, True])
def test_the_key_in_an_address_is_in_no_log_line_and_no_dead_letter(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    away: bool,  # noqa: FBT001 - a case
) -> None:
    running = Running(monkeypatch, Other(Published(500, away=away, doubtful=away)))
    running.handle(address="POST:/hook?key=47110815")
    for offset in range(1, 30):
        running.publisher.result = Published(200)
        running.handle(offset)
        running.publisher.result = Published(500, away=away, doubtful=away)
        running.later()
    assert [reason.partition(" ")[0] for _, reason in running.given_up] == ["POST:/hook?…"]
    assert "POST:/hook?…" in caplog.text
    assert "47110815" not in caplog.text


def test_a_key_in_the_address_of_a_target_is_not_in_the_reason_of_a_lost_signal() -> None:
    def unreachable(*_: str) -> Any:
        raise ConnectionError("no twin")

    plan = outbound(target(f"{EVENTS}?extraFields=attributes/x", address="out{{ fn:default('?key=47110815') }}")).plan(
        event(), extra=unreachable
    )
    assert [why.partition(" did")[0] for why in plan.lost] == ["out{{ fn:default('?…"]


def test_a_refused_signal_whose_labels_were_lost_is_a_dead_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    running = Running(monkeypatch, Other(), "c:one")
    work = running.handle()
    running.labels.complete, running.labels.taken = False, True
    running.publisher.open[0](Published(404))
    assert (len(running.given_up), work.remaining, running.worker.alive) == (1, 0, True)


def test_a_refused_signal_whose_dead_letter_is_not_stored_is_published_again(monkeypatch: pytest.MonkeyPatch) -> None:
    running = Running(monkeypatch, Other(Published(404)))
    running.stores = False
    assert (running.handle().remaining, running.worker.alive) == (1, False)


def test_a_signal_whose_labels_were_lost_before_it_failed_is_published_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its requester would not learn that it failed."""
    running = Running(monkeypatch, Other(), "c:one")
    work = running.handle()
    running.labels.complete, running.labels.taken = False, True
    running.publisher.open[0](not_published(ConnectionError("gone"), 503))
    assert (running.worker.alive, work.remaining, running.statuses) == (True, 1, [])
    running.later()
    assert running.offsets == [0, 0]


def test_a_worker_that_an_error_has_ended_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    running = Running(monkeypatch, Other())
    running.life.alive = False
    assert running.worker.fault == "It no longer publishes to its targets."
    running.life.error = UnreachableError("The broker is gone.")
    assert running.worker.fault == "It no longer publishes to its targets. The broker is gone."


def test_behind_a_signal_that_is_published_again_nothing_is_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    running = Running(monkeypatch, Other())
    running.handle()
    running.publisher.open[0](not_published(ConnectionError("gone"), 503))
    running.later()
    running.publisher.open[1](not_published(ConnectionError("gone"), 503))
    work = running.handle(1)
    assert (len(running.publisher.open), work.remaining, running.worker.alive) == (2, 1, False)


def test_a_worker_that_closes_waits_for_what_is_confirmed_and_publishes_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running = Running(monkeypatch, Other(), "c:one")
    first = running.handle()
    closing = threading.Thread(target=running.worker.close)
    closing.start()
    assert running.worker._ended.wait(CLOSE_SECONDS)
    second = running.handle(1)
    assert (running.closed_with, len(running.publisher.open)) == (None, 1)
    running.publisher.open[0](Published(204))
    closing.join(CLOSE_SECONDS)
    assert (running.closed_with, first.remaining, second.remaining, running.statuses) == (0, 0, 1, [204])


def test_a_worker_that_waits_for_room_ends_when_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbound_module, "MAX_PUBLISHING", 1)
    monkeypatch.setattr(outbound_module, "CLOSE_SECONDS", 0.0)
    running = Running(monkeypatch, Other())
    running.handle()
    works: list[Work] = []
    waiting = threading.Thread(target=lambda: works.append(running.handle(1)))
    waiting.start()
    running.worker.close()
    waiting.join(CLOSE_SECONDS)
    assert ([work.remaining for work in works], len(running.publisher.open)) == ([1], 1)


def test_messages_that_wait_behind_one_that_failed_take_no_room_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise an address that takes nothing would stop the target, once it was sent as many as fit."""
    monkeypatch.setattr(outbound_module, "MAX_PUBLISHING", 2)
    running = Running(monkeypatch, other := Other())
    for number in range(2):
        running.handle(number, address="never")
    for failed in list(other.open):
        failed(AWAY)
    reading = threading.Thread(target=running.handle, args=(2, "other"))
    reading.start()
    reading.join(CLOSE_SECONDS)
    addresses = list(other.addresses)
    running.worker._ended.set()
    running.worker.close()
    assert addresses == ["never", "never", "other"]


def test_while_the_lease_of_the_labels_is_late_signals_and_acknowledgements_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the worker, to which the labels are given."""
    running = Running(monkeypatch, Other(), "c:one")
    assert running.made["labels"] is running.labels
    # a signal whose turn comes when the lease ends, and a result that comes then
    running.labels.complete = False
    work = running.handle()
    running.publisher.open[0](Published(204))
    assert (running.statuses, work.remaining, running.worker.alive) == ([204], 0, True)


def test_a_signal_that_fails_while_the_lease_of_the_labels_is_late_is_published_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another client may have the label before its requester could learn of it."""
    running = Running(monkeypatch, Other(), "c:one")
    work = running.handle()
    running.labels.complete = False
    running.publisher.open[0](not_published(ConnectionError("gone"), 503))
    running.later()
    assert (running.statuses, work.remaining, running.offsets) == ([], 1, [0, 0])


AWAY, TAKEN = not_published(ConnectionError("gone"), 503), Published(204)


def attempts(running: Running, count: int, *, others: bool = True) -> Work:
    """Fail a signal ``count`` times, each time while another one is accepted or not; return its work."""
    work = running.handle(0, address="never")
    running.publisher.open.pop()(AWAY)
    for number in range(1, count):
        running.handle(number, address="other")
        running.publisher.open.pop()(TAKEN if others else AWAY)
        running.later()
        running.publisher.open.pop()(AWAY)
    return work


def test_a_signal_that_a_target_never_accepts_while_it_accepts_others_becomes_a_dead_letter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the address of the others; none of them is published twice."""
    running = Running(monkeypatch, Other())
    work = attempts(running, MAX_ATTEMPTS)
    assert (running.given_up, running.worker.alive, work.remaining) == ([], True, 1)
    running.handle(99, address="other")
    running.publisher.open.pop()(TAKEN)
    running.later()
    running.publisher.open.pop()(AWAY)
    ((message, reason),) = running.given_up
    assert (message.identity, message.headers) == ("c-mine", {"kafka.key": "org.acme:lamp"})
    assert reason.startswith("never has not accepted it: 503 {")
    assert (work.remaining, running.worker.alive) == (0, True)
    assert running.publisher.addresses.count("other") == MAX_ATTEMPTS
    assert running.publisher.addresses.count("never") == MAX_ATTEMPTS + 1


def test_behind_several_signals_that_were_given_up_those_that_waited_as_long_are_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An attempt may cost more than itself: with MQTT the connection."""
    running = Running(monkeypatch, Other())
    works = [running.handle(offset, address="never") for offset in range(9)]
    while len(running.given_up) < len(works):
        for failed in list(running.publisher.open):
            failed(AWAY)
        running.publisher.open.clear()
        running.handle(100 + len(running.offsets), address="other")
        running.publisher.open.pop()(TAKEN)
        running.later()
    assert [running.offsets.count(offset) for offset in range(9)] == [MAX_ATTEMPTS + 1, 2, 2, *[1] * 6]
    assert {work.remaining for work in works} == {0}
    assert [reason[:26] for _, reason in running.given_up] == ["never has not accepted it:"] * 9


def test_while_a_target_accepts_nothing_a_signal_never_becomes_a_dead_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    running = Running(monkeypatch, Other(AWAY))
    for _ in range(3 * MAX_ATTEMPTS):
        running.worker = running.open()
        work = running.handle(0)
        running.later()
        running.later()
        assert (running.given_up, running.worker.alive, work.remaining) == ([], False, 1)
    assert running.publisher.halted


def test_a_signal_at_which_a_service_fails_while_it_answers_becomes_a_dead_letter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a target with one address, behind such a signal nothing would ever be accepted, which could show the fault."""
    running = Running(monkeypatch, Other(Published(500, away=True, doubtful=True)))
    for _ in range(MAX_ATTEMPTS):
        running.worker = running.open()
        work = running.handle(0)
        running.later()
        running.later()
        assert (running.given_up, running.worker.alive, work.remaining) == ([], False, 1)
    running.worker = running.open()
    work = running.handle(0)
    running.later()
    ((_, reason),) = running.given_up
    assert (reason, work.remaining, running.worker.alive) == ("out has not accepted it: 500", 0, True)


def test_a_signal_whose_dead_letter_is_not_stored_is_published_again(monkeypatch: pytest.MonkeyPatch) -> None:
    running = Running(monkeypatch, Other())
    running.stores = False
    work = attempts(running, MAX_ATTEMPTS + 1)
    assert (len(running.given_up), work.remaining, running.worker.alive) == (1, 1, False)


def test_the_next_worker_publishes_nothing_again_that_was_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    running = Running(monkeypatch, Other())
    first = [running.handle(0, address="never"), running.handle(1, address="other")]
    never, other = running.publisher.open
    other(TAKEN)
    never(AWAY)
    running.publisher.open.clear()
    running.worker = running.open()
    second = [running.handle(0, address="never"), running.handle(1, address="other")]
    # what failed waits until others had their turn
    assert running.publisher.open == []
    running.later()
    running.publisher.open.pop()(TAKEN)
    assert [work.remaining for work in [*first, *second]] == [1, 0, 0, 0]
    assert running.publisher.addresses == ["never", "other", "never"]


def test_the_next_worker_makes_no_second_dead_letter_of_what_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    running = Running(monkeypatch, Other())
    for _ in range(3):
        running.worker = running.open()
        works = [running.handle(0, address="never"), running.handle(1, address="wrong")]
        for confirm in running.publisher.open[:2]:
            confirm(AWAY if confirm is running.publisher.open[0] else Published(404))
        running.publisher.open.clear()
        running.later()
    assert running.publisher.addresses.count("wrong") == len(running.given_up) == 1
    assert [work.remaining for work in works] == [1, 0]


def test_behind_a_signal_that_failed_those_to_its_address_wait_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    running = Running(monkeypatch, Other())
    works = [running.handle(offset, address="full") for offset in range(2)]
    one, two = running.publisher.open
    one(AWAY)
    works += [running.handle(2, address="full"), running.handle(3, address="other")]
    # it was on its way
    two(AWAY)
    assert running.publisher.addresses == ["full", "full", "other"]
    running.publisher.open.clear()
    running.later()
    # tried again alone
    assert running.offsets == [0, 1, 3, 0]
    running.publisher.open.pop()(TAKEN)
    running.later()
    assert running.offsets == [0, 1, 3, 0, 1, 2]
    running.worker.turn()
    running.handle(4, address="full")
    assert running.offsets[-1] == 4


def test_a_signal_that_was_not_sent_behind_another_waits_though_its_acknowledgement_is_requested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running = Running(monkeypatch, other := Other(), "c:one")
    running.handle(0)
    running.handle(1)
    first, second = other.published
    first(AWAY)
    second(Published(503, away=True, unsent=True))
    assert running.statuses == [503]
    running.later()
    assert running.offsets == [0, 1, 1]


def test_messages_that_wait_and_those_on_their_way_are_weighed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbound_module.transport, "MAX_BYTES", 1)
    running = Running(monkeypatch, Other())
    running.handle(0)
    assert not running.worker._has_room
    running.publisher.open.pop()(TAKEN)
    assert running.worker._has_room


NEVER, OTHER = Place("events", 0, 1, 0, "never"), Place("events", 0, 2, 0, "other")


def test_a_message_that_fails_is_tried_again_after_growing_pauses() -> None:
    lanes, now, pauses = Lanes(MAX_ATTEMPTS), 0.0, []
    lanes.failed(NEVER, now)
    for _ in range(12):
        lanes.settled(OTHER, accepted=True)
        began = now
        while (place := lanes.next(now)) is None:
            now += 0.05
        assert place is NEVER
        pauses.append(round(now - began, 1))
        assert lanes.failed(place, now) == "waits"
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 60.0, 60.0]


def test_a_system_that_accepts_nothing_for_a_minute_is_away() -> None:
    """With requests that time out one after the other, it would take hours until one is tried again."""
    lanes = Lanes(MAX_ATTEMPTS)
    found = [lanes.failed(Place("events", 0, number, 0, str(number)), 20.0 * number) for number in range(4)]
    assert found == ["waits", "waits", "waits", "away"]


def test_while_too_many_messages_wait_they_are_tried_without_pauses_if_others_are_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(system_module, "MAX_ASIDE", 3)
    lanes = Lanes(MAX_ATTEMPTS)
    lanes.failed(NEVER, 0.0)
    rest = [Place("events", 0, 10 + number, 0, "never") for number in range(5)]
    assert all(lanes.waits(place, 0.0) for place in rest)
    # nothing shows that the other system takes messages to other addresses
    assert lanes.next(0.0) is None
    fates = []
    for _ in range(MAX_ATTEMPTS):
        lanes.settled(OTHER, accepted=True)
        assert lanes.next(0.0) is NEVER
        # a service that fails now and then loses none of them
        fates.append(lanes.failed(NEVER, 0.0))
    assert fates == ["waits"] * (MAX_ATTEMPTS - 1) + [[NEVER]]


@given(st.randoms(use_true_random=True))
def test_each_message_is_accepted_once_and_in_order_of_its_address(random: Random) -> None:
    """Whatever the order in which an other system with several addresses answers, and how often it is away."""
    lanes = Lanes(10**9)
    left = [Place("events", 0, offset, 0, random.choice("abc")) for offset in range(12)]
    flying: list[Place] = []
    accepted: list[Place] = []
    failures, now = 30, 0.0
    while left or flying or len(accepted) < 12:
        now += 1.0
        if left and random.random() < 0.5:
            place = left.pop(0)
            if not lanes.waits(place, now):
                flying.append(place)
        while (again := lanes.next(now)) is not None:
            flying.append(again)
        if flying and random.random() < 0.5:
            # a system answers the messages to an address in order
            place = random.choice(flying)
            place = next(each for each in flying if each.address == place.address)
            flying.remove(place)
            fails = failures > 0 and random.random() < 0.5
            failures -= fails
            if fails:
                lanes.failed(place, now)
                # and accepts none that was sent after one that it does not accept
                for each in [each for each in flying if each.address == place.address]:
                    flying.remove(each)
                    lanes.failed(each, now)
            else:
                lanes.settled(place, accepted=True)
                accepted.append(place)
        now += 60.0
    for address in "abc":
        offsets = [place.offset for place in accepted if place.address == address]
        assert offsets == sorted(set(offsets))
