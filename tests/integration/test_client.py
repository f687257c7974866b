"""Requester and Responder on the real broker; the correlate job is played by a thread, see ``counterpart``."""

from __future__ import annotations

import os
import signal as signals
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient

from ackstream.client import (
    Ack,
    After,
    ClosedError,
    Command,
    CorrelationIdInUseError,
    LabelsTakenError,
    NoReplyExpectedError,
    NotSentError,
    Requester,
    RequestTimeout,
    Responder,
    UnreachableError,
)
from ackstream.kafka import clients
from ackstream.kafka.topics import ensure_topics
from ackstream.protocol.ditto.acknowledgements import read_ack
from ackstream.protocol.ditto.envelopes import decode
from ackstream.protocol.errors import DittoError, thing_not_found
from ackstream.settings import Kafka, Local, Settings
from tests.demo.broker import Broker
from tests.harness.counterpart import Counterpart, aggregate, id_of_reply, reply_headers
from tests.harness.kafka import records
from tests.harness.ports import free_ports
from tests.harness.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.integration

THING = "org.acme:lamp"
LAMP = Command.modify_attribute(THING, "x", 1)


@pytest.fixture
def topics(kafka: Kafka) -> Kafka:
    ensure_topics(Settings(kafka=kafka), ("signals", "acks", "replies", "declarations"))
    return kafka


class BadName(str):
    """A header name that is no UTF-8, as no client of Kafka would write it, but as another program can."""

    __slots__ = ()

    def encode(self, *_arguments: Any) -> bytes:
        return b"\xff\xfe"


# -- the requester -----------------------------------------------------------------------------------------------------


def test_of_thousands_in_flight_each_gets_its_own_answer(topics: Kafka):
    threads = threading.active_count()
    with Counterpart(topics), Requester(topics) as requester:
        futures = {
            number: requester.send(
                Command.modify_attribute(f"org.acme:lamp-{number % 100}", "x", number), acks=["meter"]
            )
            for number in range(2_000)
        }
        for number, future in futures.items():
            reply = future.result(PATIENCE_SECONDS)
            assert reply.acks["meter"].payload == number
            assert reply.ok
            assert reply.envelope.headers["correlation-id"] == reply.correlation_id
        assert len({future.result().correlation_id for future in futures.values()}) == 2_000
        statistics = requester.statistics
        assert (statistics.sent, statistics.answered, statistics.open) == (2_000, 2_000, 0)
        # all by three threads of ours and of the library, whatever is in flight
        assert threading.active_count() - threads < 200


def test_a_request_waits_for_its_reply_and_carries_its_headers(topics: Kafka):
    with Counterpart(topics) as job, Requester(topics) as requester:
        reply = requester.request(LAMP, timeout=7, acks=["meter", "audit"], correlation_id="mine")
        (record,) = job.seen
        sent = decode(record.value)
    assert (reply.correlation_id, list(reply.acks)) == ("mine", ["meter", "audit"])
    assert record.key == THING.encode()
    assert record.headers == [("correlation-id", b"mine")]
    assert sent.headers == {"correlation-id": "mine", "timeout": "7000ms", "requested-acks": ["meter", "audit"]}
    assert reply.timestamp >= record.timestamp


def test_a_repeated_reply_is_dropped_even_if_its_correlation_id_is_open_again(topics: Kafka):
    first: list[Any] = []

    def answer(record: Any) -> list[Any]:
        # the second request first gets the first reply again, as after a crash of the job
        replies = [*first, aggregate(record, reply_id=f"r-{len(first)}")]
        first[:] = replies[:1]
        return replies

    with Counterpart(topics, answer), Requester(topics) as requester:
        one = requester.request(Command.modify_attribute(THING, "x", 1), acks=["meter"], correlation_id="again")
        two = requester.request(Command.modify_attribute(THING, "x", 2), acks=["meter"], correlation_id="again")
        assert [reply.acks["meter"].payload for reply in (one, two)] == [1, 2]
        assert requester.statistics.repeats == 1


def test_two_requesters_do_not_disturb_each_other(topics: Kafka):
    with Counterpart(topics), Requester(topics) as one, Requester(topics) as two:
        futures = [
            (requester.send(Command.modify_attribute(THING, "x", number), acks=[label]), label, number)
            for number in range(200)
            for requester, label in ((one, "of-one"), (two, "of-two"))
        ]
        for future, label, number in futures:
            assert future.result(PATIENCE_SECONDS).acks[label].payload == number
        for requester in (one, two):
            eventually(lambda requester=requester: requester.statistics.foreign == 200, "the other's replies were seen")
            assert requester.statistics.answered == 200


def test_a_restart_of_the_broker_loses_no_request_and_no_acknowledgement(tmp_path: Path):
    port, controller_port = free_ports(2)
    settings = Settings(
        local=Local(data=tmp_path, port=port, controller_port=controller_port),
        kafka=Kafka(bootstrap=f"localhost:{port}", partitions=2),
    )
    broker = Broker(settings)
    broker.start()
    try:
        ensure_topics(settings, ("signals", "acks", "replies", "declarations"))
        kafka = settings.kafka

        def answer(record: Any) -> list[Any]:
            ack = decode(record.value)
            value = b'{"topic":"org.acme/lamp/things/twin/acks/meter","headers":{},"path":"/","value":%b,"status":200}'
            headers = reply_headers(dict(record.headers)["correlation-id"], f"r-{ack.headers['correlation-id']}")
            return [(value % bytes(ack.value), headers)]

        with (
            Counterpart(kafka, answer, topic="acks"),
            Responder(kafka, handler=lambda signal: Ack(payload=signal.value), labels=["meter"], group="devices"),
            Requester(kafka) as requester,
        ):

            def send(numbers: range) -> dict[int, Any]:
                return {
                    number: requester.send(Command.modify_attribute(THING, "x", number), acks=["meter"])
                    for number in numbers
                }

            def kill() -> None:
                os.kill(broker.pid() or 0, signals.SIGKILL)
                eventually(lambda: broker.pid() is None, "the broker is dead")

            futures = {}
            for first, end in (0, broker.stop), (1000, kill):
                futures |= send(range(first, first + 100))
                futures[first + 99].result(PATIENCE_SECONDS)
                # on their way while the broker goes away, and accepted while it is away
                futures |= send(range(first + 100, first + 400))
                end()
                futures |= send(range(first + 400, first + 600))
                broker.start()
                futures |= send(range(first + 600, first + 700))
            for number, future in futures.items():
                assert future.result(PATIENCE_SECONDS).value == number
    finally:
        broker.stop()


def test_the_close_ends_what_is_open_and_says_so(topics: Kafka):
    requester = Requester(topics)
    future = requester.send(LAMP, correlation_id="left")
    requester.close()
    requester.close()
    with pytest.raises(ClosedError, match="closed before the reply to left arrived") as caught:
        future.result(0)
    assert caught.value.correlation_id == "left"
    # it was accepted, so it was sent
    assert [record.headers for record in records(topics, "signals")] == [[("correlation-id", b"left")]]
    with pytest.raises(ClosedError, match="late was not sent"):
        requester.send(LAMP, correlation_id="late")


def test_garbage_on_the_replies_topic_is_survived(topics: Kafka):
    def answer(record: Any) -> list[Any]:
        identity = dict(record.headers)["correlation-id"]
        return [
            (None, []),
            (b"\xff\x00", [("correlation-id", b"\xff"), ("reply-id", b"")]),
            (b"{}", [("correlation-id", identity)]),
            (b"{}", reply_headers(identity, status="fine")),
            (b"{}", [*reply_headers(identity), ("status", b"\xff")]),
            aggregate(record),
        ]

    with Counterpart(topics, answer) as job, Requester(topics) as requester:
        assert requester.request(LAMP, acks=["meter"]).ok
        assert (requester.statistics.malformed, requester.statistics.foreign) == (2, 3)
        job.write(b"{}", [(BadName("name"), b"")])
        job.producer.flush()
        assert requester.request(LAMP, acks=["meter"]).ok
        assert requester.statistics.unreadable == 1


def test_a_reply_that_is_no_message_is_still_the_answer(topics: Kafka):
    def answer(record: Any) -> list[Any]:
        return [(b"\xff", reply_headers(dict(record.headers)["correlation-id"], id_of_reply(record)))]

    with Counterpart(topics, answer), Requester(topics) as requester:
        assert requester.request(LAMP).data == b"\xff"


def test_where_nobody_answers_a_request_ends_after_its_timeout_and_the_grace(topics: Kafka):
    with Requester(topics, grace=0.2) as requester:
        started = time.monotonic()
        slow = requester.send(LAMP, timeout=60)
        with pytest.raises(RequestTimeout, match=r"No reply to quick arrived in \S+replies within 0.5 s") as caught:
            requester.request(LAMP, timeout=0.3, correlation_id="quick")
        assert time.monotonic() - started >= 0.5
        assert caught.value.correlation_id == "quick"
        assert not slow.done()
        assert requester.statistics.no_reply == 1


def test_a_requester_may_have_a_reply_topic_of_its_own(topics: Kafka):
    own = Settings(kafka=topics.model_copy(update={"topic_prefix": f"{topics.topic_prefix}own-"}))
    (mine,) = ensure_topics(own, ["replies"])
    with Counterpart(topics, replies=mine) as job, Requester(topics, reply_to=mine) as requester:
        assert requester.request(LAMP).ok
        assert dict(job.seen[0].headers)["reply-to"] == mine.encode()


def test_a_request_without_response_is_published_and_stored(topics: Kafka):
    with Requester(topics) as requester:
        with pytest.raises(NoReplyExpectedError, match="use publish"):
            requester.send(LAMP, response_required=False)
        stored = requester.publish(LAMP, acks=["meter"], correlation_id="told").result(PATIENCE_SECONDS)
        assert requester.statistics.published == 1
    (record,) = records(topics, "signals")
    assert (stored.partition, stored.offset, stored.timestamp) == (record.partition, record.offset, record.timestamp)
    assert decode(record.value).headers == {
        "correlation-id": "told", "requested-acks": ["meter"], "response-required": False,
    }  # fmt: skip


def test_an_invalid_request_is_for_the_service_to_refuse(topics: Kafka):
    def answer(record: Any) -> list[Any]:
        headers = reply_headers(dict(record.headers)["correlation-id"], id_of_reply(record), "400", "invalid")
        return [(b"{}", headers)]

    with Counterpart(topics, answer), Requester(topics) as requester:
        assert requester.request(LAMP, timeout="soon").completed_by == "invalid"


def test_a_request_that_no_broker_takes_fails_at_once(topics: Kafka):
    with Requester(topics) as requester:
        future = requester.send(Command.modify_attribute(THING, "x", "x" * 11_000_000), correlation_id="big")
        with pytest.raises(NotSentError, match=r"Kafka did not store the request big: .*MessageSizeTooLargeError"):
            future.result(PATIENCE_SECONDS)


def test_a_correlation_id_is_in_flight_once(topics: Kafka):
    with Requester(topics) as requester:
        requester.send(LAMP, correlation_id="one")
        with pytest.raises(CorrelationIdInUseError):
            requester.send(LAMP, correlation_id="one")


def test_a_future_is_not_cancelled_without_its_request(topics: Kafka):
    release = threading.Event()

    def answer(record: Any) -> list[Any]:
        release.wait(PATIENCE_SECONDS)
        return [aggregate(record)]

    with Counterpart(topics, answer), Requester(topics) as requester:
        futures = [requester.send(LAMP) for _ in range(3)]
        assert not futures[0].cancel()
        release.set()
        wait(futures, PATIENCE_SECONDS)
        assert [future.result().ok for future in futures] == [True] * 3
        assert requester.statistics.answered == 3


def test_a_callback_may_send_but_not_wait(topics: Kafka):
    with Counterpart(topics), Requester(topics) as requester:
        outcome: list[Any] = []
        ended = threading.Event()

        def follow(_future: Any) -> None:
            try:
                requester.request(LAMP)
            except RuntimeError as error:
                outcome.append(error)
            requester.send(LAMP, acks=["meter"]).add_done_callback(lambda future: (outcome.append(future), ended.set()))

        requester.send(LAMP).add_done_callback(follow)
        assert ended.wait(PATIENCE_SECONDS)
        assert "would wait for itself" in str(outcome[0])
        assert outcome[1].result(0).ok


def test_replies_on_partitions_that_are_added_later_arrive(topics: Kafka, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(clients._COMMON, "metadata_max_age_ms", 300)
    with Counterpart(topics) as job, Requester(topics) as requester:
        requester.request(LAMP)
        with KafkaAdminClient(bootstrap_servers=topics.bootstrap) as admin:
            admin.create_partitions({topics.topic("replies"): 3})
        eventually(lambda: 2 in job.producer.partitions_for(topics.topic("replies")), "the new partition is known")
        future = requester.send(LAMP, correlation_id="new")
        monkeypatch.setattr(
            job,
            "write",
            lambda value, headers: job.producer.send(job._replies, value=value, headers=headers, partition=2),
        )
        assert requester.request(LAMP).ok
        assert future.result(PATIENCE_SECONDS).ok


def test_a_missing_topic_is_named_with_the_remedy(kafka: Kafka):
    with pytest.raises(UnreachableError, match=rf"There is no topic {kafka.topic('replies')} at .*run `ackstream up`"):
        Requester(kafka)
    ensure_topics(Settings(kafka=kafka), ("signals",))
    with pytest.raises(UnreachableError, match="There is no topic own"):
        Requester(kafka, reply_to="own")
    with pytest.raises(UnreachableError, match=rf"There is no topic {kafka.topic('acks')}"):
        Responder(kafka, handler=lambda _signal: None)


def test_a_record_for_a_missing_topic_is_refused_before_a_leader_could_come(topics: Kafka) -> None:
    with Requester(topics) as requester:
        started = time.monotonic()
        with pytest.raises(UnreachableError, match="has not named the partitions of the topic nosuch: create it"):
            requester.send_record("nosuch", b"{}", acks=["bank:paid"])
        # the wait for a leader is ten seconds
        assert time.monotonic() - started < 5


# -- the responder -----------------------------------------------------------------------------------------------------


@pytest.fixture
def sender(topics: Kafka) -> Iterator[Callable[..., None]]:
    """Return what stores signals on the broker, each a number with its correlation-id."""
    with Requester(topics) as requester:

        def send(*numbers: int, thing_id: str = THING, acks: tuple[str, ...] = ("meter",)) -> None:
            futures = [
                requester.publish(
                    Command.modify_attribute(thing_id, "x", number), acks=acks, correlation_id=str(number)
                )
                for number in numbers
            ]
            for future in futures:
                future.result(PATIENCE_SECONDS)

        yield send


def acks(kafka: Kafka, number: int) -> list[Any]:
    """Return the records of the acks topic when there are so many."""
    return eventually(lambda: [found for found in [records(kafka, "acks")] if len(found) >= number], f"{number} acks")[
        0
    ]


def test_each_signal_is_acknowledged_under_the_labels_asked_for(topics: Kafka, sender: Callable[..., None]):
    with Responder(topics, handler=lambda signal: Ack(payload=signal.value), labels=["meter", "audit"]) as responder:
        sender(*range(300), acks=("meter", "other", "audit"))
        eventually(lambda: responder.statistics.answers == 600, "all acknowledgements are stored")
        assert responder.statistics.handled == 300
    found: dict[str, list[str]] = {}
    for record in records(topics, "acks"):
        ack = decode(record.value)
        assert record.key == THING.encode()
        assert record.headers == [("correlation-id", ack.headers["correlation-id"].encode())]
        assert bytes(read_ack(ack).payload) == record.headers[0][1]
        found.setdefault(ack.headers["correlation-id"], []).append(read_ack(ack).label)
    assert found == {str(number): ["meter", "audit"] for number in range(300)}


def test_a_delayed_answer_does_not_hold_up_others(topics: Kafka, sender: Callable[..., None]):
    def handle(signal: Any) -> Any:
        return After(0.5, Ack()) if signal.value == 0 else Ack()

    with Responder(topics, handler=handle, labels=["meter"]):
        sender(*range(5))
        records = sorted(acks(topics, 5), key=lambda record: record.offset)
    order = [decode(record.value).headers["correlation-id"] for record in records]
    assert order == ["1", "2", "3", "4", "0"]
    assert records[4].timestamp - records[0].timestamp >= 400


def test_the_handlers_exceptions_become_nacks_and_silence_nothing(topics: Kafka, sender: Callable[..., None]):
    def handle(signal: Any) -> Any:
        match signal.value:
            case 0:
                raise ValueError("the lamp is broken")
            case 1:
                raise thing_not_found(signal.thing_id)
            case 2:
                return "nonsense"
            case 3:
                return None
        return Ack(204)

    with Responder(topics, handler=handle, labels=["meter"]) as responder:
        sender(*range(5))
        found = {dict(record.headers)["correlation-id"]: decode(record.value) for record in acks(topics, 4)}
        assert responder.statistics.failed == 3
    assert {key.decode(): ack.status for key, ack in found.items()} == {"0": 500, "1": 404, "2": 500, "4": 204}
    assert b"the lamp is broken" in bytes(found[b"0"].value)
    assert b"Traceback" not in bytes(found[b"0"].value)


def test_members_that_join_a_busy_group_have_work_within_seconds(kafka: Kafka):
    topics = kafka.model_copy(update={"partitions": 10})
    ensure_topics(Settings(kafka=topics), ("signals", "acks", "replies", "declarations"))
    # of each call: the member, the command, and when it began in epoch milliseconds
    calls: list[tuple[int, int, float]] = []
    stored: dict[int, int] = {}

    def member(name: int) -> Responder:
        def handle(signal: Any) -> Ack:
            calls.append((name, signal.value, time.time() * 1000))
            time.sleep(2)
            return Ack()

        return Responder(topics, handler=handle, labels=["meter"], group="devices")

    with ExitStack() as stack:
        requester = stack.enter_context(Requester(topics))
        calm = time.monotonic()
        members = [stack.enter_context(member(0))]
        # what a member needs alone on this machine
        calm = time.monotonic() - calm
        sent = [
            requester.publish(
                Command.modify_attribute(f"org.acme:lamp-{number}", "x", number), acks=["meter"], timeout="10s"
            )
            for number in range(60)
        ]
        stored |= {number: future.result(PATIENCE_SECONDS).timestamp for number, future in enumerate(sent)}
        eventually(lambda: calls, "the first one has work")
        began = time.time() * 1000
        with ThreadPoolExecutor(4) as pool:
            members += map(stack.enter_context, pool.map(member, range(1, 5)))
        eventually(lambda: {name for name, _, _ in calls} == {0, 1, 2, 3, 4}, "each has work")
        first = {name: min(when for each, _, when in calls if each == name) for name in range(1, 5)}
        assert {name: when - began for name, when in first.items() if when - began > 5_000 + 5_000 * calm} == {}

        def done() -> int:
            return sum(each.statistics.handled + each.statistics.expired for each in members)

        eventually(lambda: done() == 60, "all are handled, or their deadline is over")
        assert sum(each.statistics.expired for each in members) > 0
        closing = time.monotonic()
    assert time.monotonic() - closing < 5 + 5 * calm
    assert [number for number, times in Counter(number for _, number, _ in calls).items() if times > 1] == []
    assert [number for _, number, when in calls if when > stored[number] + 10_000 + 100] == []


def test_signals_that_cannot_be_read_are_skipped(topics: Kafka, sender: Callable[..., None]):
    with (
        Responder(topics, handler=lambda _signal: Ack(), labels=["meter"]) as responder,
        Counterpart(topics, replies=topics.topic("signals"), topic="replies") as other,
    ):
        for value in (None, b"\xff", b"{}", b"[" * 100_000):
            other.write(value, [])
        other.producer.flush()
        other.write(b"{}", [(BadName("name"), b"")])
        other.producer.flush()
        sender(7)
        acks(topics, 1)
        eventually(lambda: responder.statistics.unreadable == 1, "the record was left out")
        statistics = responder.statistics
        assert (statistics.received, statistics.skipped, statistics.handled) == (5, 4, 1)


def test_a_restarted_responder_goes_on_where_it_stopped(topics: Kafka, sender: Callable[..., None]):
    seen: list[int] = []

    def responder() -> Responder:
        return Responder(
            topics, handler=lambda signal: seen.append(signal.value) or Ack(), labels=["meter"], group="devices"
        )

    with responder() as first:
        sender(*range(50))
        eventually(lambda: first.statistics.answers == 50, "the first fifty are acknowledged")
    sender(*range(50, 100))
    with responder() as second:
        sender(*range(100, 120))
        eventually(lambda: second.statistics.answers == 70, "the rest is acknowledged")
    assert sorted(seen) == list(range(120))


def test_a_signal_whose_answer_was_not_given_is_handled_again(topics: Kafka, sender: Callable[..., None]):

    def handle(signal: Any) -> Any:
        return After(3600, Ack()) if signal.value == 2 else Ack()

    with Responder(topics, handler=handle, labels=["meter"], group="devices") as first:
        sender(*range(5))
        eventually(lambda: first.statistics.answers == 4, "all but one are acknowledged")
        assert first.statistics.delayed == 1
    with Responder(topics, handler=lambda _signal: Ack(), labels=["meter"], group="devices") as second:
        eventually(lambda: second.statistics.answers >= 1, "the one is acknowledged")
    assert {dict(record.headers)["correlation-id"] for record in records(topics, "acks")} == {
        b"0",
        b"1",
        b"2",
        b"3",
        b"4",
    }


CRASHING = """
import sys
from pathlib import Path
from ackstream.client import Ack, After, Responder
from ackstream.settings import Kafka

def handle(signal):
    print(signal.value, flush=True)
    return Ack() if signal.value < 3 else After(3600, Ack())

kafka = Kafka(bootstrap=sys.argv[1], topic_prefix=sys.argv[2], options={"python": {"session.timeout.ms": "6000"}})
once = Path(sys.argv[3]) if sys.argv[3:] else None
with Responder(kafka, handler=handle, labels=["meter"], group="devices", once=once):
    print("ready", flush=True)
    sys.stdin.read()
"""


def _kill_at_work(topics: Kafka, sender: Callable[..., None], commands: int, *arguments: str) -> None:
    """Kill a responder that has handled some commands."""
    command = [sys.executable, "-W", "ignore", "-c", CRASHING, topics.bootstrap, topics.topic_prefix, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        sender(*range(commands))
        for _ in range(commands):
            process.stdout.readline()
        process.kill()


def test_a_responder_that_is_killed_leaves_nothing_out(topics: Kafka, sender: Callable[..., None]):
    # nothing was committed but where the group begins
    _kill_at_work(topics, sender, 6)
    with Responder(topics, handler=lambda _signal: Ack(), labels=["meter"], group="devices"):
        eventually(
            lambda: (
                {dict(record.headers)["correlation-id"] for record in records(topics, "acks")}
                == {b"%d" % number for number in range(6)}
            ),
            "all are acknowledged",
        )


def test_a_responder_that_was_killed_carries_nothing_out_a_second_time(
    topics: Kafka, sender: Callable[..., None], tmp_path: Path
):
    inbox = tmp_path / "inbox"
    _kill_at_work(topics, sender, 7, str(inbox))
    calls: list[int] = []

    def handle(signal: Any) -> Ack:
        calls.append(signal.value)
        return Ack()

    with Responder(topics, handler=handle, labels=["meter"], group="devices", once=inbox) as responder:
        sender(7)
        eventually(lambda: 7 in calls, "all before are handled, or answered")
        # the third one and those behind it were not committed; the last one may not have been noted
        assert set(calls) <= {6, 7}
        assert responder.statistics.repeated >= 3


@pytest.mark.parametrize("group", [None, "devices"])
def test_a_command_that_is_taken_back_is_skipped_and_a_handler_at_work_sees_it(topics: Kafka, group: str | None):
    begun, ordered = threading.Event(), threading.Event()
    seen: dict[int, bool] = {}

    def handle(signal: Any) -> Ack:
        if signal.value == 0:
            begun.set()
            assert ordered.wait(PATIENCE_SECONDS)
            eventually(lambda: signal.cancelled, "it is taken back")
        seen[signal.value] = signal.cancelled
        return Ack()

    with (
        Responder(topics, handler=handle, labels=["meter"], group=group) as responder,
        Requester(topics) as requester,
    ):
        for number in range(50):
            command = Command.modify_attribute(THING, "x", number)
            requester.send(command, acks=["meter"], timeout="60s", correlation_id=str(number))
        assert begun.wait(PATIENCE_SECONDS)
        for number in (30, 0):
            assert requester.cancel(str(number))
        ordered.set()
        eventually(lambda: responder.statistics.received == 50, "all were read")
        assert (responder.statistics.handled, responder.statistics.cancelled) == (49, 1)
    assert seen == {number: number == 0 for number in range(50) if number != 30}


def test_the_labels_of_a_responder_are_declared(topics: Kafka, sender: Callable[..., None]):
    with Responder(topics, handler=lambda _signal: Ack(label="audit"), labels=["meter"]) as responder:
        assert responder.labels == {"meter"}
        with pytest.raises(LabelsTakenError, match="taken by other subscribers: meter"):
            Responder(topics, handler=lambda _signal: Ack(), labels=["meter", "audit"])
        sender(1)
        # a label that is not its own is an error of its handler
        (record,) = acks(topics, 1)
        assert (decode(record.value).topic.subject, decode(record.value).status) == ("meter", 400)
    with Responder(topics, handler=lambda _signal: Ack(), labels=["meter", "audit"]) as responder:
        assert responder.labels == {"meter", "audit"}


@pytest.mark.parametrize("label", ["twin-persisted", "search-persisted"])
def test_a_responder_cannot_declare_a_built_in_label(topics: Kafka, label: str):
    with pytest.raises(DittoError, match="is not allowed to be issued externally"):
        Responder(topics, handler=lambda _signal: Ack(), labels=[label])


def test_members_of_a_group_share_the_signals(topics: Kafka, sender: Callable[..., None]):
    one_saw: list[int] = []
    two_saw: list[int] = []
    labels = ["meter"]
    with (
        Responder(
            topics, handler=lambda signal: one_saw.append(signal.value) or Ack(), labels=labels, group="devices"
        ) as one,
        Responder(
            topics, handler=lambda signal: two_saw.append(signal.value) or Ack(), labels=labels, group="devices"
        ) as two,
    ):
        for number in range(100):
            sender(number, thing_id=f"org.acme:lamp-{number}")
        eventually(lambda: one.statistics.answers + two.statistics.answers >= 100, "all are acknowledged")
    assert set(one_saw) | set(two_saw) == set(range(100))
    assert one_saw
    assert two_saw
