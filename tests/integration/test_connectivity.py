"""Connections on the real broker: what sources bring is settled after its acknowledgements, targets publish.

The correlate job is played by a thread (``counterpart``) where the test says what it answers, and is the real one in
the table of headers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from signal import SIGKILL
from typing import Any

import msgspec
import pytest
from kafka import KafkaAdminClient, KafkaProducer

from ackstream.client.core.labels import Declarer
from ackstream.connectivity.outbound import MAX_PUBLISHING
from ackstream.connectivity.transports import kafka as transport
from ackstream.kafka.topics import ensure_topics
from ackstream.protocol.ditto.aggregates import combined_status
from ackstream.protocol.ditto.envelopes import decode, encode
from ackstream.protocol.errors import DittoError
from ackstream.settings import Gateway, Kafka, Settings
from tests.harness.cluster import Cluster
from tests.harness.connections import THING, TOPICS, Answers, Elsewhere, Signals, acks_of, connected, ids, plain
from tests.harness.counterpart import Counterpart, aggregate, reply_headers
from tests.harness.kafka import following, records
from tests.harness.ledgers import accepted, outcome
from tests.harness.processes import environment
from tests.harness.service import Service
from tests.harness.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.integration


@pytest.fixture
def topics(kafka: Kafka) -> Kafka:
    ensure_topics(Settings(kafka=kafka), TOPICS)
    return kafka


@pytest.fixture
def elsewhere(kafka: Kafka) -> Iterator[Elsewhere]:
    found = Elsewhere(kafka)
    with following(found.kafka):
        yield found
    found.close()


def command(correlation_id: str, value: Any = 1, **headers: Any) -> dict[str, Any]:
    named = {name.replace("_", "-"): each for name, each in headers.items()} | {"correlation-id": correlation_id}
    topic = "org.acme/lamp/things/twin/commands/modify"
    return {"topic": topic, "headers": named, "path": "/attributes/x", "value": value}


def settings(kafka: Kafka, elsewhere: Elsewhere, **parts: Any) -> Settings:
    return Settings(kafka=kafka, connections=({"id": elsewhere.id, "type": "kafka", **parts},))


# -- sources -----------------------------------------------------------------------------------------------------------


def test_a_record_becomes_a_signal_and_its_answer_is_published(topics: Kafka, elsewhere: Elsewhere) -> None:
    incoming, answers = elsewhere.topic("in"), elsewhere.topic("answers")
    source = {
        "addresses": [incoming],
        "qos": 1,
        "header_mapping": {"device": "{{ header:device }}"},
        "acknowledgement_requests": {"includes": ["my-ack"]},
        "reply_target": {
            "address": f"{answers}/{{{{ header:device }}}}",
            "header_mapping": {"device": "{{ header:device }}"},
        },
    }
    with Counterpart(topics) as job, connected(settings(topics, elsewhere, sources=[source])):
        elsewhere.send(incoming, command("mine"), {"device": "d-7"})
        (reply,) = eventually(lambda: elsewhere.read(answers), "the answer")
        eventually(lambda: elsewhere.committed(incoming) == 1, "the offset")
    (signal,) = job.seen
    assert signal.key == THING.encode()
    sent = decode(signal.value)
    assert sent.headers == {"correlation-id": "mine", "device": "d-7", "requested-acks": ["my-ack"]}
    assert reply.key == b"d-7"
    assert dict(reply.headers)["device"] == b"d-7"
    assert decode(reply.value).status == 200


def test_a_record_that_fails_is_tried_again_and_its_neighbours_are_not(topics: Kafka, elsewhere: Elsewhere) -> None:
    incoming = elsewhere.topic("in")
    source = {"addresses": [incoming], "qos": 1, "start": "earliest"}
    answers = Answers(b=[503, 408])
    with Counterpart(topics, answers) as job:
        for identity in "abc":
            elsewhere.send(incoming, command(identity, requested_acks=["my-ack"]))
        with connected(settings(topics, elsewhere, sources=[source])):
            eventually(lambda: elsewhere.committed(incoming) == 3, "all offsets")
    seen = [identity.partition("#")[0] for identity in ids(job)]
    assert seen == ["a", "b", "c", "b", "b"]
    assert len(set(ids(job))) == 5


def test_without_redelivery_a_rejected_record_is_behind_us(topics: Kafka, elsewhere: Elsewhere) -> None:
    incoming = elsewhere.topic("in")
    source = {"addresses": [incoming], "qos": 1, "start": "earliest"}
    with Counterpart(topics, Answers(a=[404])) as job:
        for identity in "ab":
            elsewhere.send(incoming, command(identity, requested_acks=["my-ack"]))
        with connected(settings(topics, elsewhere, sources=[source])):
            eventually(lambda: elsewhere.committed(incoming) == 2, "all offsets")
    assert ids(job) == ["a", "b"]


def test_with_qos_0_a_rejected_record_is_lost(topics: Kafka, elsewhere: Elsewhere) -> None:
    incoming = elsewhere.topic("in")
    source = {"addresses": [incoming], "start": "earliest"}
    with Counterpart(topics, Answers(a=[503])) as job:
        for identity in "ab":
            elsewhere.send(incoming, command(identity, requested_acks=["my-ack"]))
        with connected(settings(topics, elsewhere, sources=[source])):
            eventually(lambda: elsewhere.committed(incoming) == 2, "all offsets")
            eventually(lambda: len(job.seen) == 2, "both signals")
    assert ids(job) == ["a", "b"]


def test_a_record_whose_acknowledgements_are_open_holds_back_the_commits(topics: Kafka, elsewhere: Elsewhere) -> None:
    incoming = elsewhere.topic("in", partitions=2)
    source = {"addresses": [incoming], "qos": 1, "start": "earliest"}
    with Counterpart(topics, Answers(a=[None])) as job:
        for identity, partition in [("x", 0), ("a", 0), ("b", 0), ("c", 1), ("d", 1)]:
            elsewhere.send(incoming, command(identity, requested_acks=["my-ack"]), partition=partition)
        configured = settings(topics, elsewhere, sources=[source])
        with connected(configured):
            eventually(lambda: elsewhere.committed(incoming, 1) == 2, "the other partition's offsets")
            eventually(lambda: elsewhere.committed(incoming, 0) == 1, "the offset before")
            assert len(job.seen) == 5
        # the next one to read it delivers again what was not settled, and what came behind it
        with connected(configured):
            eventually(lambda: elsewhere.committed(incoming, 0) == 3, "all offsets")
    assert sorted(identity.partition("#")[0] for identity in ids(job)) == ["a", "a", "b", "b", "c", "d", "x"]
    assert len(set(ids(job))) == 7


def test_beyond_the_limit_nothing_more_is_read(topics: Kafka, elsewhere: Elsewhere) -> None:
    incoming = elsewhere.topic("in")
    source = {"addresses": [incoming], "qos": 1, "start": "earliest", "max_in_flight": 3}
    held: list[Any] = []

    def hold(record: Any) -> list[Any]:
        held.append(record)
        return []

    with Counterpart(topics, hold) as job:
        for number in range(8):
            elsewhere.send(incoming, command(f"n{number}", requested_acks=["my-ack"]))
        with connected(settings(topics, elsewhere, sources=[source])):
            eventually(lambda: len(held) == 3, "as many as may be in flight")
            job.write(*aggregate(held[0]))
            eventually(lambda: len(held) == 4, "one more for the one that was answered")
            eventually(lambda: elsewhere.committed(incoming) == 1, "the first offset")
            assert len(held) == 4
            for record in held[1:3]:
                job.write(*aggregate(record))
            eventually(lambda: len(held) == 6, "two more")


def test_what_cannot_be_sent_is_published_as_an_error_and_settled(topics: Kafka, elsewhere: Elsewhere) -> None:
    incoming, answers = elsewhere.topic("in"), elsewhere.topic("answers")
    source = {"addresses": [incoming], "qos": 1, "start": "earliest", "reply_target": {"address": answers}}
    elsewhere.send(incoming, b"\xff")
    elsewhere.send(incoming, command("expired"), {"creation-time": "0", "ttl": "1000"})
    elsewhere.send(incoming, command("contradiction", timeout="0", requested_acks=["my-ack"]))
    elsewhere.send(
        incoming,
        {"topic": "org.acme/lamp/things/twin/acks/x-ack", "headers": {"correlation-id": "x"}, "path": "/", "status": 1},
    )
    with Counterpart(topics) as job, connected(settings(topics, elsewhere, sources=[source])):
        eventually(lambda: elsewhere.committed(incoming) == 4, "all offsets")
        eventually(lambda: len(elsewhere.read(answers)) == 3, "the errors")
    assert job.seen == []
    letters = eventually(lambda: len(found := records(topics, "dead-letters")) == 3 and found, "the dead letters")
    (malformed,) = (letter for letter in letters if letter.value == b"\xff")
    assert f"{elsewhere.id}-{incoming}-0-0" in dict(malformed.headers)["reason"].decode()
    errors = [json.loads(record.value) for record in elsewhere.read(answers)]
    assert [error["value"]["error"] for error in errors] == [
        "json.invalid",
        "header.invalid",
        "protocoladapter:unknown.topicpath",
    ]


# -- access ------------------------------------------------------------------------------------------------------------

ACCESS = [
    {"subjects": ["site:plant"], "things": ["org.acme:*"], "path": "/attributes", "grant": ["READ", "WRITE"]},
    {"subjects": ["site:dashboard"], "things": ["org.acme:*"], "path": "/attributes/x/seen"},
]


def test_a_record_may_do_what_the_subjects_of_its_source_may_and_only_to_the_thing_of_its_sender(
    topics: Kafka, elsewhere: Elsewhere
) -> None:
    incoming, answers = elsewhere.topic("in"), elsewhere.topic("answers")
    source = {
        "addresses": [incoming],
        "qos": 1,
        "start": "earliest",
        "subjects": ["site:plant"],
        "enforcement": {"input": "{{ header:device_id }}", "filters": ["{{ entity:id }}"]},
        "reply_target": {"address": answers},
    }
    vault = command("vault") | {"topic": "org.bank/vault/things/twin/commands/delete", "path": "/"}
    elsewhere.send(incoming, vault, {"device_id": "org.bank:vault"})
    elsewhere.send(incoming, command("features") | {"path": "/features"}, {"device_id": THING})
    elsewhere.send(incoming, command("other"), {"device_id": "org.acme:other"})
    elsewhere.send(incoming, command("unknown"))
    forged = command("mine", requested_acks=["my-ack"], ditto_originator="user:root", ditto_sudo=True)
    elsewhere.send(incoming, forged, {"device_id": THING})
    configured = settings(topics, elsewhere, sources=[source])
    configured = configured.model_copy(update={"gateway": Gateway.model_validate({"access": ACCESS})})
    with Counterpart(topics) as job, connected(configured):
        eventually(lambda: elsewhere.committed(incoming) == 5, "all offsets")
        replies = eventually(lambda: len(found := elsewhere.read(answers)) == 5 and found, "the answers")
    (signal,) = job.seen
    assert decode(signal.value).headers == {
        "correlation-id": "mine",
        "requested-acks": ["my-ack"],
        "ditto-originator": "site:plant",
    }
    values = [json.loads(record.value)["value"] for record in replies]
    assert [value.get("error") for value in values] == [
        "things:thing.notfound",
        "things:thing.notmodifiable",
        "connectivity:connection.id.enforcement.failed",
        "connectivity:connection.id.enforcement.failed",
        None,
    ]
    assert len(records(topics, "dead-letters")) == 4


def test_a_target_receives_what_its_subjects_may_read(topics: Kafka, elsewhere: Elsewhere) -> None:
    some, nothing = elsewhere.topic("some"), elsewhere.topic("nothing")
    targets = [
        {"address": where, "topics": ["_/_/things/twin/events"], "subjects": [subject], "issued_ack": label}
        for where, subject, label in [
            (some, "site:dashboard", f"{elsewhere.id}:some"),
            (nothing, "site:nobody", f"{elsewhere.id}:nothing"),
        ]
    ]
    configured = settings(topics, elsewhere, targets=targets)
    configured = configured.model_copy(update={"gateway": Gateway.model_validate({"access": ACCESS})})
    labels = [f"{elsewhere.id}:some", f"{elsewhere.id}:nothing"]
    with connected(configured):
        Signals(topics).event("told", {"seen": 1, "hidden": 2}, labels)
        found = eventually(lambda: len(acks_of(topics).get("told", ())) == 2 and acks_of(topics)["told"], "both")
    (published,) = elsewhere.read(some)
    assert json.loads(published.value)["value"] == {"seen": 1}
    assert elsewhere.read(nothing) == []
    assert "ditto-weak-ack" not in found[labels[0]].get("headers", {})
    assert found[labels[1]]["headers"]["ditto-weak-ack"] is True


def test_a_cluster_of_another_name_is_the_system_s_own_all_the_same(topics: Kafka, elsewhere: Elsewhere) -> None:
    host, _, port = topics.bootstrap.partition(":")
    own = f"{'localhost' if host == '127.0.0.1' else '127.0.0.1'}:{port}"
    targets = [
        {
            "address": "{{ header:where }}",
            "topics": ["_/_/things/live/messages"],
            "issued_ack": f"{elsewhere.id}:sent",
        }
    ]
    label = f"{elsewhere.id}:sent"
    with connected(settings(topics, elsewhere, targets=targets, bootstrap=own)):
        Signals(topics).message("forged", [label], where=topics.topic("clock"))
        found = eventually(lambda: acks_of(topics).get("forged"), "the acknowledgement")
    assert (found[label]["status"], "the system's own" in json.dumps(found[label])) == (400, True)


def ledger(record: Any, *statuses: int) -> bytes:
    """Return what the correlate job notes of a request without response."""
    request = decode(record.value)
    labels = request.headers["requested-acks"]
    acks = [accepted("", label, status) for label, status in zip(labels, statuses, strict=True)]
    about = {"requested": tuple(labels), "thing_id": request.topic.thing_id}
    return outcome("", acks, status=combined_status(statuses), **about)


def test_without_response_the_ledger_tells_what_became_of_it(topics: Kafka, elsewhere: Elsewhere) -> None:
    statuses = {"good": [204], "bad": [404], "busy": [503, 204]}
    incoming, answers = elsewhere.topic("in", len(statuses)), elsewhere.topic("answers")
    source = {"addresses": [incoming], "qos": 1, "start": "earliest", "reply_target": {"address": answers}}
    for place, name in enumerate(statuses):
        quiet = command(name, requested_acks=["my-ack"], response_required=False)
        elsewhere.send(incoming, quiet, partition=place)

    def note(record: Any) -> list[Any]:
        key = dict(record.headers)["correlation-id"]
        status = statuses[key.decode().partition("#")[0]].pop(0)
        job.producer.send(topics.topic("ledger"), ledger(record, status), key)
        return []

    with Counterpart(topics, note) as job, connected(settings(topics, elsewhere, sources=[source])):
        eventually(lambda: all(elsewhere.committed(incoming, place) == 1 for place in range(3)), "all offsets")
        assert elsewhere.read(answers) == []
    assert sorted(plain(job)) == ["bad", "busy", "busy", "good"]


def response(record: Any) -> tuple[bytes, list[tuple[str, bytes]]]:
    """Return a plain response as the correlate job writes it."""
    request = decode(record.value)
    named = dict(record.headers)["correlation-id"]
    reply = msgspec.structs.replace(request, headers={"correlation-id": named.decode()}, status=204)
    return encode(reply), reply_headers(named, "r-1", "204", "response")


def test_with_no_acknowledgements_a_record_is_settled_at_once_and_its_response_published(
    topics: Kafka, elsewhere: Elsewhere
) -> None:
    incoming, answers = elsewhere.topic("in"), elsewhere.topic("answers")
    source = {"addresses": [incoming], "qos": 1, "start": "earliest", "reply_target": {"address": answers}}
    elsewhere.send(incoming, command("a", requested_acks=[]))
    elsewhere.send(incoming, command("b", requested_acks=[], response_required=False))
    with Counterpart(topics, lambda _record: []) as job, connected(settings(topics, elsewhere, sources=[source])):
        eventually(lambda: elsewhere.committed(incoming) == 2, "all offsets")
        job.write(*response(job.seen[0]))
        (answer,) = eventually(lambda: elsewhere.read(answers), "the response")
    assert decode(answer.value).headers["correlation-id"] == "a"


def test_a_record_of_two_signals_is_settled_when_both_are_acknowledged(topics: Kafka, elsewhere: Elsewhere) -> None:
    incoming = elsewhere.topic("in")
    names = ("one", "two")
    templates: list[dict[str, Any]] = [
        {"topic": f"org.acme/{name}/things/twin/commands/modify", "path": "/attributes/x"} for name in names
    ]
    templates[0]["headers"] = {"requested-acks": '["{{ header:asked }}"]'}
    source = {
        "addresses": [incoming],
        "qos": 1,
        "start": "earliest",
        "payload_mapping": templates,
        "acknowledgement_requests": {"includes": ["my-ack"]},
    }
    elsewhere.send(incoming, b"1", {"asked": "own-ack"})
    with Counterpart(topics, lambda _record: []) as job, connected(settings(topics, elsewhere, sources=[source])):
        eventually(lambda: len(job.seen) == len(names), "both signals")
        job.write(*aggregate(job.seen[0]))
        job.producer.flush()
        assert not elsewhere.committed(incoming)
        job.write(*aggregate(job.seen[1]))
        eventually(lambda: elsewhere.committed(incoming) == 1, "the offset")
    signals = [decode(record.value) for record in job.seen]
    requested = {signal.topic.thing_id: sorted(signal.headers["requested-acks"]) for signal in signals}
    assert requested == {"org.acme:one": ["my-ack", "own-ack"], "org.acme:two": ["my-ack"]}


def test_a_weak_acknowledgement_settles_a_record(topics: Kafka, elsewhere: Elsewhere) -> None:
    incoming = elsewhere.topic("in")
    source = {"addresses": [incoming], "qos": 1, "start": "earliest"}
    labels = ["my-ack", "weak-ack"]
    elsewhere.send(incoming, command("a", requested_acks=labels))

    def answer(record: Any) -> list[Any]:
        value, named = aggregate(record)
        reply = json.loads(value)
        reply["value"]["weak-ack"]["headers"] = {"ditto-weak-ack": True}
        return [(json.dumps(reply).encode(), named)]

    with Counterpart(topics, answer) as job, connected(settings(topics, elsewhere, sources=[source])):
        eventually(lambda: elsewhere.committed(incoming) == 1, "the offset")
    assert ids(job) == ["a"]


def test_acknowledgements_come_through_a_source_that_declares_their_labels(topics: Kafka, elsewhere: Elsewhere) -> None:
    incoming, events = elsewhere.topic("in"), elsewhere.topic("events")
    mine, issued = (f"{elsewhere.id}:{name}" for name in ("mine", "issued"))
    configured = settings(
        topics,
        elsewhere,
        sources=[{"addresses": [incoming], "qos": 1, "start": "earliest", "declared_acks": [mine]}],
        targets=[{"address": events, "topics": ["_/_/things/twin/events"], "issued_ack": issued}],
    )
    with connected(configured), Declarer(topics) as other:
        # what a target issues is declared by itself
        for label in (mine, issued):
            with pytest.raises(DittoError, match="taken by other subscribers"):
                other.declare([label]).future.result(PATIENCE_SECONDS)
        Signals(topics).event("asked", 1, [mine, issued])
        (event,) = eventually(lambda: elsewhere.read(events), "the event")
        assert decode(event.value).headers["requested-acks"] == [mine]
        topic = f"org.acme/lamp/things/twin/acks/{mine}"
        named = {"correlation-id": "asked"}
        elsewhere.send(incoming, {"topic": topic, "headers": named, "path": "/", "value": "seen", "status": 202})
        eventually(lambda: elsewhere.committed(incoming) == 1, "the offset")
    acks = [json.loads(record.value) for record in records(topics, "acks")]
    (ack,) = [ack for ack in acks if ack["topic"] == topic]
    assert (ack["headers"]["correlation-id"], ack["value"], ack["status"]) == ("asked", "seen", 202)


# -- targets -----------------------------------------------------------------------------------------------------------


def test_targets_publish_what_they_want_and_acknowledge_what_the_transport_took(
    topics: Kafka, elsewhere: Elsewhere
) -> None:
    events, messages = elsewhere.topic("events", 2), elsewhere.topic("messages")
    one, two, three = (f"{elsewhere.id}:{name}" for name in ("one", "two", "three"))
    targets = [
        {
            "address": f"{events}/{{{{ thing:id }}}}",
            "topics": ["_/_/things/twin/events?namespaces=org.acme&filter=gt(attributes/x,5)"],
            "issued_ack": "{{connection:id}}:one",
            "header_mapping": {"subject": "{{ topic:action-subject }}"},
        },
        {
            "address": messages,
            "topics": ["_/_/things/live/messages"],
            "issued_ack": "live-response",
            "payload": "value",
        },
        {
            "address": f"{events}-missing",
            "topics": ["_/_/things/twin/events?filter=eq(attributes/x,7)"],
            "issued_ack": two,
        },
    ]
    sources = [{"addresses": [messages], "declared_acks": [three]}]
    configured = settings(topics, elsewhere, targets=targets, sources=sources, debug=True)
    signals = Signals(topics)
    with connected(configured):
        signals.event("published", 6, [one, two, three, "other-ack"])
        signals.event("dropped", 1, [one, two, three, "other-ack"])
        signals.message("asked", ["live-response", three])
        eventually(lambda: {"published", "dropped", "asked"} <= acks_of(topics).keys(), "the acknowledgements")
        signals.event("failed", 7, [one, two])
        eventually(lambda: len(acks_of(topics).get("failed", ())) == 2, "the failure")
    found = acks_of(topics)
    issued = found["published"][one]
    assert (issued["status"], issued["payload"]["topic"]) == (200, events)
    assert issued["payload"]["serializedKeySize"] == len(THING)
    weak = found["published"][two]
    assert (weak["status"], weak["headers"]["ditto-weak-ack"]) == (200, True)
    assert found["published"].keys() == {one, two}
    assert found["dropped"].keys() == {one, two, three}
    assert all(ack["headers"]["ditto-weak-ack"] for ack in found["dropped"].values())
    assert found["asked"].keys() == {"live-response"}
    assert found["failed"][one]["status"] == 200
    assert found["failed"][two]["status"] == 500
    published = elsewhere.read(events)
    assert [record.key for record in published] == [THING.encode()] * 2
    event = decode(published[0].value)
    assert event.headers["requested-acks"] == [two, three]
    assert dict(published[0].headers) == {
        "content-type": b"application/vnd.eclipse.ditto+json",
        "correlation-id": b"published",
        "ditto-connection-id": elsewhere.id.encode(),
        "subject": b"modified",
    }
    (message,) = elsewhere.read(messages)
    assert message.value == b'"on"'


def test_a_stopped_connection_publishes_what_came_meanwhile(topics: Kafka, elsewhere: Elsewhere) -> None:
    events = elsewhere.topic("events")
    configured = settings(topics, elsewhere, targets=[{"address": events, "topics": ["_/_/things/twin/events"]}])
    signals = Signals(topics)
    with connected(configured):
        signals.event("one", 1, [])
        eventually(lambda: len(elsewhere.read(events)) == 1, "the first event")
    signals.event("two", 2, [])
    with connected(configured):
        eventually(lambda: len(elsewhere.read(events)) == 2, "the second event")
    assert [decode(record.value).headers["correlation-id"] for record in elsewhere.read(events)] == ["one", "two"]


def test_while_its_labels_are_taken_the_acknowledgements_of_a_connection_are_rejected_and_all_else_goes_on(
    topics: Kafka, elsewhere: Elsewhere
) -> None:
    mine, delivered = f"{elsewhere.id}:mine", f"{elsewhere.id}:delivered"
    incoming, answers, events = elsewhere.topic("in"), elsewhere.topic("answers"), elsewhere.topic("events")
    source = {"addresses": [incoming], "qos": 1, "declared_acks": [mine], "reply_target": {"address": answers}}
    target = {"address": events, "topics": ["_/_/things/twin/events"], "issued_ack": delivered}
    configured = settings(topics, elsewhere, sources=[source], targets=[target])
    topic = f"org.acme/lamp/things/twin/acks/{mine}"
    ack = {"topic": topic, "headers": {"correlation-id": "x"}, "path": "/", "status": 200}
    signals = Signals(topics)
    with Declarer(topics) as other, Counterpart(topics) as job:
        taken = other.declare([mine])
        taken.future.result(PATIENCE_SECONDS)
        with connected(configured) as connector:
            elsewhere.send(incoming, ack)
            (error,) = eventually(lambda: elsewhere.read(answers), "the error")
            signals.event("first", 1, [mine, delivered])
            elsewhere.send(incoming, command("mine", requested_acks=["my-ack"]))
            eventually(lambda: plain(job) == ["mine"] and len(elsewhere.read(events)) == 1, "all else")
            assert decode(error.value).status == 409
            assert acks_of(topics) == {}
            assert decode(elsewhere.read(events)[0].value).headers.get("requested-acks", []) == []
            other.release(taken)
            # clients of the same connection share its labels
            with connected(configured):
                eventually(lambda: connector.is_open and answered(topics, elsewhere, incoming, ack), "its labels")
            # the other one may have answered: the first declares them again within seconds
            again = ack | {"headers": {"correlation-id": "y"}}
            eventually(lambda: answered(topics, elsewhere, incoming, again), "the labels of the first")
            signals.event("second", 2, [delivered])
            eventually(lambda: "second" in acks_of(topics), "the acknowledgement of the target")


def answered(topics: Kafka, elsewhere: Elsewhere, incoming: str, ack: dict[str, Any]) -> bool:
    """Send an acknowledgement, and whether one like it has been accepted."""
    elsewhere.send(incoming, ack)
    identity = ack["headers"]["correlation-id"].encode()
    return any(dict(record.headers)["correlation-id"] == identity for record in records(topics, "acks"))


def test_signals_are_pushed_to_http_and_the_response_is_the_acknowledgement(topics: Kafka) -> None:
    """A service that is away, or has another password, loses no signal, in order; what it refuses is a dead letter."""
    name = topics.topic_prefix.rstrip("-")
    with closing(Service()) as service:
        one, two = f"{name}:one", f"{name}:two"
        targets = [
            {"address": "POST:/events/{{ thing:name }}", "topics": ["_/_/things/twin/events"], "issued_ack": one},
            {"address": "PUT:/status/404", "topics": ["_/_/things/twin/events"], "issued_ack": two},
        ]
        configured = Settings(
            kafka=topics,
            connections=({"id": name, "type": "http-push", "url": service.url, "targets": targets},),
        )
        signals = Signals(topics)
        with connected(configured) as connector:
            signals.event("asked", 1, [one, two])
            found = eventually(lambda: len(acks_of(topics).get("asked", ())) == 2 and acks_of(topics), "both")["asked"]
            assert (found[one]["status"], found[one]["payload"]) == (200, {"path": "/events/lamp"})
            assert found[two]["status"] == 404
            service.status = 401
            for number in range(2, 6):
                signals.event(f"e{number}", number, [])
            eventually(lambda: not connector.is_open, "the end of the connection")
            service.status = 200
            accepted_before = len(service.requests)

            def values() -> list[int]:
                later = service.requests[accepted_before:]
                return [json.loads(body)["value"] for _, path, _, body in later if path == "/events/lamp"]

            eventually(lambda: connector.is_open and set(values()) == {2, 3, 4, 5}, "the signals")
            assert list(dict.fromkeys(values())) == [2, 3, 4, 5]

            def refused() -> set[int]:
                return {json.loads(record.value)["value"] for record in records(topics, "dead-letters")}

            eventually(lambda: refused() == {2, 3, 4, 5}, "the dead letters")
            signals.event("late", 6, [one])
            eventually(lambda: "late" in acks_of(topics), "the acknowledgement")


# -- crashes -----------------------------------------------------------------------------------------------------------


def test_kill_9_of_the_connector_loses_nothing(topics: Kafka, elsewhere: Elsewhere, tmp_path: Path) -> None:
    number = 400
    incoming = elsewhere.topic("in", partitions=2)
    source = {"addresses": [incoming], "qos": 1, "start": "earliest", "max_in_flight": 20}
    for index in range(number):
        elsewhere.producer.send(incoming, json.dumps(command(f"n{index}", requested_acks=["my-ack"])).encode())
    elsewhere.producer.flush()
    connector = Process(settings(topics, elsewhere, sources=[source]), tmp_path)
    with Counterpart(topics) as job:
        connector.start()
        eventually(lambda: len(set(plain(job))) >= number // 4, "a part of the signals")
        connector.kill()
        connector.start()
        try:
            eventually(lambda: len(set(plain(job))) == number, "all signals")
            ends = {0: 0, 1: 0}
            for record in elsewhere.read(incoming):
                ends[record.partition] = max(ends[record.partition], record.offset + 1)
            eventually(
                lambda: all((elsewhere.committed(incoming, place) or 0) == end for place, end in ends.items()),
                "all offsets",
            )
        finally:
            connector.kill()
    assert len(set(ids(job))) == len(job.seen)


@pytest.mark.long
def test_a_cluster_that_is_away_gets_every_signal_in_order_and_is_read_from_where_it_was(
    topics: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than messages wait in its producer, with more signals than may be in flight; then its broker is back."""
    monkeypatch.setattr(transport, "DELIVERY_SECONDS", 3.0)
    number = 2 * MAX_PUBLISHING
    with ExitStack() as stack:
        remote = Cluster(tmp_path, 1, stack)
        elsewhere = stack.enter_context(closing(Elsewhere(topics, remote.bootstrap)))
        incoming, events = elsewhere.topic("in"), elsewhere.topic("events")
        configured = settings(
            topics,
            elsewhere,
            bootstrap=remote.bootstrap,
            sources=[{"addresses": [incoming], "qos": 1, "start": "earliest"}],
            targets=[{"address": events, "topics": ["_/_/things/twin/events"]}],
        )
        job = stack.enter_context(Counterpart(topics))
        connector = stack.enter_context(connected(configured))
        signals = stack.enter_context(closing(Events(topics)))
        signals.send("before", 0)
        elsewhere.send(incoming, command("before", requested_acks=["my-ack"]))
        eventually(lambda: len(elsewhere.read(events)) == 1 and elsewhere.committed(incoming) == 1, "the first ones")
        remote.nodes[0].signal(SIGKILL)
        for index in range(1, number + 1):
            signals.send(f"n{index}", index)
        eventually(lambda: not connector.is_open, "the end of the connection")
        # nothing that the cluster does not have is committed
        assert committed(topics, topics.group(f"ackstream-target-{elsewhere.id}"), topics.topic("events")) == 1
        remote.nodes[0].start()
        eventually(lambda: connector.is_open, "the connection is open again")
        elsewhere.send(incoming, command("after", requested_acks=["my-ack"]))

        def came() -> list[int]:
            values = [json.loads(record.value)["value"] for record in elsewhere.read(events)]
            return list(dict.fromkeys(values))

        eventually(lambda: connector.is_open and len(came()) == number + 1, "all signals")
        assert came() == list(range(number + 1))
        eventually(lambda: connector.is_open and elsewhere.committed(incoming) == 2, "the record that came afterwards")
        assert list(dict.fromkeys(plain(job))) == ["before", "after"]


def test_two_connectors_of_one_connection_share_its_work(topics: Kafka, elsewhere: Elsewhere) -> None:
    number = 40
    incoming, events = elsewhere.topic("in", partitions=2), elsewhere.topic("events")
    configured = settings(
        topics,
        elsewhere,
        sources=[{"addresses": [incoming], "qos": 1, "start": "earliest", "declared_acks": [f"{elsewhere.id}:a"]}],
        targets=[{"address": events, "topics": ["_/_/things/twin/events"]}],
    )
    signals = Signals(topics)
    with Counterpart(topics) as job, connected(configured) as first:
        with connected(configured):
            for index in range(number):
                elsewhere.send(incoming, command(f"n{index}", requested_acks=["my-ack"]), partition=index % 2)
                signals.event(f"e{index}", index, [])
            eventually(lambda: len(set(plain(job))) == number, "all records")
            eventually(lambda: len(values(elsewhere, events)) == number, "all events")
        # the one that is left takes over
        elsewhere.send(incoming, command("last", requested_acks=["my-ack"]), partition=0)
        elsewhere.send(incoming, command("last", requested_acks=["my-ack"]), partition=1)
        signals.event("last", number, [])
        eventually(lambda: first.is_open and plain(job).count("last") >= 2, "the last records")
        eventually(lambda: first.is_open and number in values(elsewhere, events), "the last event")
    # no two have one correlation-id, so that correlate decides each
    assert len(set(ids(job))) == len(job.seen)


def values(elsewhere: Elsewhere, topic: str) -> set[int]:
    return {json.loads(record.value)["value"] for record in elsewhere.read(topic)}


def committed(kafka: Kafka, group: str, topic: str) -> int:
    """Return the offset up to which a group has committed all partitions together."""
    with KafkaAdminClient(bootstrap_servers=kafka.bootstrap) as admin:
        found = admin.list_group_offsets([group])[group]
    return sum(offset.offset for partition, offset in found.items() if partition.topic == topic)


class Events:
    """Writes events of one thing, in order, with one producer."""

    def __init__(self, kafka: Kafka) -> None:
        self._topic = kafka.topic("events")
        self._producer = KafkaProducer(bootstrap_servers=kafka.bootstrap, acks="all")

    def send(self, correlation_id: str, value: int) -> None:
        message = {
            "topic": "org.acme/lamp/things/twin/events/modified",
            "headers": {},
            "path": "/attributes/x",
            "value": value,
        }
        named = [("correlation-id", correlation_id.encode())]
        self._producer.send(self._topic, json.dumps(message).encode(), THING.encode(), named)

    def close(self) -> None:
        self._producer.close()


class Process:
    """``ackstream connect`` in a process of its own."""

    def __init__(self, configured: Settings, logs: Path) -> None:
        connections = [each.model_dump(mode="json") for each in configured.connections]
        self._environment = environment(configured) | {"ACKSTREAM_CONNECTIONS": json.dumps(connections)}
        self._log = logs / "connect.log"

    def start(self) -> None:
        run = [sys.executable, "-c", "from ackstream.cli.main import app; app()", "connect"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(run, stdout=log, stderr=log, env=self._environment)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
