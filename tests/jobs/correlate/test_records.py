"""No record is refused by its broker: for its size, or because its topic has gone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka import TopicPartition
from kafka.errors import KafkaTimeoutError

from ackstream.errors import SettingsError
from ackstream.jobs.correlate import topics as correlate_topics
from ackstream.jobs.correlate.job import JOB
from ackstream.jobs.correlate.state import ACKS, SIGNALS, TWIN_ACKS, Record
from ackstream.jobs.correlate.topics import BUFFER_BYTES, OVERHEAD_BYTES, CorrelateTopics, with_present_topics
from ackstream.kafka.clients import MAX_RECORD_BYTES
from ackstream.protocol.ditto.correlation_ids import MAX_BYTES
from ackstream.settings import Correlate, Settings
from tests.jobs.correlate.shards import Log, Run

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Self

    from ackstream.jobs.correlate.records import Emission

PREFIXED = Settings.model_validate({"kafka": {"topic_prefix": "x-"}, "correlate": {"reply_topics": ["mine-.*"]}})


def test_topics_have_the_prefix_and_those_for_replies_are_the_ones_that_the_settings_allow() -> None:
    limits = {"mine-1": 7, "not-mine-1": 8, "x-signals": 9, "x-ledger": 10_000_000, "x-replies": 9_000_000}
    topics = CorrelateTopics.of(PREFIXED, limits, {"x-replies": 3, "mine-1": 2})
    assert topics == CorrelateTopics(
        "x-signals", "x-acks", "x-replies", "x-ledger", "x-dead-letters", {"mine-1": 7}, 9_000_000,
        "x-twin-acks", "x-declarations", partitions={"x-replies": 3, "mine-1": 2},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("pattern", "topic"),
    [(".*", "x-acks"), ("x-.*", "x-acks"), (".*clock", "x-clock"), ("x-(replies|ledger)", "x-ledger")],
)
def test_a_pattern_of_reply_topics_that_a_topic_of_the_system_matches_is_refused_at_the_start(
    pattern: str, topic: str
) -> None:
    settings = Settings.model_validate({"kafka": {"topic_prefix": "x-"}, "correlate": {"reply_topics": [pattern]}})
    with pytest.raises(SettingsError, match=rf"correlate\.reply_topics has the pattern .*, which {topic} matches"):
        JOB.check(cast("Any", None), settings)


@pytest.mark.parametrize("pattern", ["mine-.*", "x-replies-.*", "x-replies", "acks"])
def test_other_patterns_of_reply_topics_are_accepted(pattern: str) -> None:
    correlate = {"reply_topics": [pattern], "starting": "latest"}
    JOB.check(cast("Any", None), Settings.model_validate({"kafka": {"topic_prefix": "x-"}, "correlate": correlate}))


@pytest.mark.parametrize(
    ("limits", "expected"),
    [({}, MAX_RECORD_BYTES), ({"ledger": 1_000_000, "replies": 2_000_000}, 1_000_000),
     (dict.fromkeys(("ledger", "replies", "dead-letters"), 10**9), BUFFER_BYTES)],
    ids=["unknown", "the-smallest", "the-producer's"],
)  # fmt: skip
def test_the_smallest_topic_limits_all_records(limits: dict[str, int], expected: int) -> None:
    assert CorrelateTopics.of(Settings(), limits, {}).record_bytes == expected


# -- sizes -------------------------------------------------------------------------------------------------------------


def _aggregate(labels: int, size: int, *, together: bool, run: Run | None = None) -> Run:
    """Ask for so many acknowledgements, and give each a payload of so many bytes."""
    log, run = Log(), run or Run()
    names = [f"p-{number}" for number in range(labels)]
    request = log.command(1000, requested_acks=names)
    acks = [log.ack(1001, name, payload="x" * (size - number)) for number, name in enumerate(names)]
    if together:
        run.feed(request, *acks)
    else:
        for record in (request, *acks):
            run.feed(record)
    return run


def _weight(emission: Emission) -> int:
    return len(emission.key or b"") * 2 + len(emission.value or b"") + len((emission.reason or "").encode()) + 200


def _fits(run: Run) -> bool:
    return all(_weight(emission) <= run.topics.record_bytes for emission in run.emissions)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(("labels", "size"), [(6, 900_000), (50, 110_000), (100, 60_000)])
def test_a_reply_that_fits_is_whole_though_the_ledger_cannot_hold_everything_twice(
    labels: int, size: int, *, together: bool
) -> None:
    run = _aggregate(labels, size, together=together)
    (reply,) = run.replies()
    assert (reply["status"], len(reply["value"])) == (200, labels)
    assert [len(entry["payload"]) for entry in reply["value"].values()] == [size - number for number in range(labels)]
    (outcome,) = run.outcomes()
    assert (outcome["status"], outcome["reply_topic"], "reply" in outcome) == (200, "replies", False)
    payloads = [ack["payload"] for record in run.ledger() for ack in record.get("acks", ())]
    assert [len(payload) for payload in payloads] == [size - number for number in range(labels)]
    assert [record["kind"] for record in run.ledger()] == ["signal", "outcome"]
    assert _fits(run)


def test_a_ledger_record_that_fits_is_written_whole() -> None:
    run = _aggregate(4, 900_000, together=True)
    (record,) = run.ledger()
    assert record["outcome"]["reply"]["value"]["p-0"]["payload"] == "x" * 900_000
    assert (record["signal"]["correlation_id"], len(record["acks"])) == ("c", 4)


def test_the_largest_acknowledgements_that_no_reply_can_hold_become_entries_that_say_so() -> None:
    run = _aggregate(12, 900_000, together=False)
    (reply,) = run.replies()
    left_out = {label: entry for label, entry in reply["value"].items() if entry["status"] == 413}
    assert (reply["status"], reply["completed-by"], list(left_out)) == (424, "acknowledgements", ["p-0"])
    (note,) = left_out.values()
    assert note["payload"]["error"] == "acknowledgement:toolarge"
    assert "The acknowledgement with status 200 has 900,0" in note["payload"]["message"]
    (outcome,) = run.outcomes()
    assert (outcome["status"], outcome["missing"]) == (424, [])
    acks = [ack for record in run.ledger() for ack in record.get("acks", ())]
    assert {ack["status"] for ack in acks} == {200}
    referenced = [ack["payload"] for ack in acks if isinstance(ack["payload"], dict)]
    assert referenced == [{"reference": "acks-0-0-0", "bytes": 900_002}]
    assert _fits(run)


def test_a_single_acknowledgement_that_no_reply_can_hold_is_answered_with_413() -> None:
    run = _aggregate(1, 90_000, together=True, run=Run(record_bytes=100_000))
    (reply,) = run.replies()
    assert (reply["status"], reply["value"]["p-0"]["payload"]["error"]) == (413, "acknowledgement:toolarge")
    assert run.outcomes()[0]["status"] == 413
    assert _fits(run)


def test_a_response_that_no_reply_can_hold_is_answered_with_413() -> None:
    log, run = Log(), Run(record_bytes=100_000)
    run.feed(log.command(1), log.response(2, 200, value="x" * 90_000))
    (reply,) = run.replies()
    assert (reply["status"], reply["completed-by"]) == (413, "response")
    assert reply["value"]["error"] == "reply.toolarge"
    assert (run.outcomes()[0]["status"], run.acks()) == (413, [("twin-persisted", "accepted")])
    assert _fits(run)


LIMIT = 2_000
SMALL: dict[str, Any] = {"max_value_bytes": LIMIT, "max_labels": 8}


@settings(max_examples=200)
@given(
    texts=st.lists(st.sampled_from(["x", '"', "\\", "\x01", "ü", 1e15, "😀"]), min_size=2, max_size=4),
    sizes=st.lists(st.integers(0, LIMIT), min_size=1, max_size=8),
    identity=st.sampled_from(["c", "\x01" * 170, "ü" * 500, "x" * MAX_BYTES, "x" * (MAX_BYTES + 1), "x" * 10**5]),
    key=st.sampled_from([0, 10, 10**5]),
    spring=st.sampled_from([0, MAX_BYTES, MAX_BYTES + 1]),
    live=st.booleans(),
    watermark=st.sampled_from([0, 10**6]),
)
def test_no_record_is_larger_than_the_settings_say(
    texts: list[Any], sizes: list[int], identity: str, key: int, spring: int, *, live: bool, watermark: int
) -> None:
    log, run = Log(), Run(record_bytes=Correlate(**SMALL).record_bytes, **SMALL)
    labels = [f"p-{number}" for number in range(len(sizes))]

    def record(source: int, size: int, topic: str, **headers: Any) -> Record:
        def filled(text: Any) -> Any:
            return text * size if isinstance(text, str) else [text] * (size // 5)

        body = {"topic": topic, "path": "/attributes/x", "value": filled(texts[0])}
        body["headers"] = {**headers, "filler": filled(texts[1]), "list": [filled(texts[-1])]}
        body |= {} if source == SIGNALS else {"status": 200}
        while size and len(json.dumps(body)) > LIMIT:
            size //= 2
            body |= {"value": filled(texts[0]), "headers": {**headers, "filler": filled(texts[1])}}
        found = log.record(source, 1000 + sum(log.offsets), identity, body)
        named = {"kafka_correlationId": b"s" * spring} if spring else {}
        return msgspec.structs.replace(found, key=b"k" * key, headers=named)

    channel = "live" if live else "twin"
    requested = {"requested-acks": labels, "timeout": "10s"}
    run.feed(record(SIGNALS, sizes[0], f"org.acme/lamp/things/{channel}/commands/modify", **requested))
    for label, size in zip(labels, sizes, strict=True):
        run.feed(record(ACKS, size, f"org.acme/lamp/things/twin/acks/{label}"))
    answers = ACKS if live else TWIN_ACKS
    run.feed(record(answers, sizes[-1], f"org.acme/lamp/things/{channel}/commands/modify"), watermark=watermark)
    run.feed(watermark=10**6)
    assert run.outcomes()
    assert _fits(run)


@pytest.mark.parametrize("identity", ["x" * (MAX_BYTES + 1), "\x01" * 171, "ü" * 513])
def test_a_correlation_id_that_is_too_long_is_refused_under_the_coordinates(identity: str) -> None:
    log, run = Log(), Run()
    run.feed(log.command(1, identity, requested_acks=["a-ack"]), log.ack(2, "a-ack", correlation_id=identity))
    (reply,) = run.replies()
    assert (reply["status"], reply["headers"]["correlation-id"]) == (400, "signals-0-0")
    assert "has more than 1,024 bytes" in reply["value"]["message"]
    letters = [record["dead_letter"] for record in run.ledger() if "dead_letter" in record]
    assert [letter["correlation_id"] for letter in letters] == [None, None]
    assert {emission.key for emission in run.emissions if emission.topic == "ledger"} == {b"signals-0-0", b"acks-0-0"}
    assert run.state is None


@pytest.mark.parametrize("identity", ["x" * MAX_BYTES, "\x01" * 170, "ü" * 512])
def test_a_correlation_id_of_the_greatest_length_is_answered(identity: str) -> None:
    log, run = Log(), Run()
    run.feed(log.command(1, identity, requested_acks=["a-ack"]), log.ack(2, "a-ack", correlation_id=identity))
    assert [(reply["status"], reply["headers"]["correlation-id"]) for reply in run.replies()] == [(200, identity)]


def test_a_spring_correlation_id_that_is_too_long_is_refused_and_not_repeated() -> None:
    log, run = Log(), Run()
    record = msgspec.structs.replace(log.command(1), headers={"kafka_correlationId": b"s" * (MAX_BYTES + 1)})
    run.feed(record)
    (emission,) = (emission for emission in run.emissions if emission.reply_id)
    assert (emission.status, emission.spring_correlation) == ("400", None)


def test_a_dead_letter_has_the_beginning_of_a_key_and_of_a_reason_that_are_too_long() -> None:
    log, run = Log(), Run()
    topic = "x" * 500_000
    run.feed(msgspec.structs.replace(log.record(SIGNALS, 1, "c", {"topic": topic, "path": "/"}), key=b"k" * 10**7))
    (letter,) = (record["dead_letter"] for record in run.ledger() if "dead_letter" in record)
    assert letter["truncated"] is True
    assert _fits(run)


# -- topics for replies ------------------------------------------------------------------------------------------------


def _ask(log: Log, reply_to: str, **headers: Any) -> Record:
    return _ask_by(log, {"reply-to": reply_to.encode()}, **headers)


def _ask_by(log: Log, record_headers: dict[str, bytes], **headers: Any) -> Record:
    return msgspec.structs.replace(log.command(1, **headers), headers=record_headers)


def test_a_reply_whose_topic_has_gone_goes_to_replies() -> None:
    log, run = Log(), Run(reply_topics={"mine": 10**7})
    run.feed(_ask(log, "mine", requested_acks=["a-ack"]))
    gone = Run()
    gone.state = run.state
    gone.feed(log.ack(2, "a-ack"))
    assert [(reply["status"], reply["sent-to"]) for reply in gone.replies()] == [(200, "replies")]
    assert gone.outcomes()[0]["reply_topic"] == "replies"


@pytest.mark.parametrize(("limit", "sent_to"), [(OVERHEAD_BYTES + 1_000, "replies"), (OVERHEAD_BYTES + 2_000, "mine")])
def test_a_reply_that_is_too_large_for_its_topic_goes_to_replies(limit: int, sent_to: str) -> None:
    log, run = Log(), Run(reply_topics={"mine": limit})
    run.feed(_ask(log, "mine", requested_acks=["a-ack"]), log.ack(2, "a-ack", payload="x" * 1_000))
    assert [reply["sent-to"] for reply in run.replies()] == [sent_to]


def test_the_error_of_an_invalid_request_goes_to_replies_if_its_topic_is_too_small() -> None:
    log, run = Log(), Run(reply_topics={"mine": OVERHEAD_BYTES})
    run.feed(_ask(log, "mine", timeout="soon"))
    assert [reply["sent-to"] for reply in run.replies()] == ["replies"]


@pytest.mark.parametrize("headers", [{}, {"reply-to": b"mine"}, {"kafka_replyTopic": b"mine"}], ids=str)
@pytest.mark.parametrize("partition", [0, 3])
def test_a_request_chooses_the_partition_for_its_reply(headers: dict[str, bytes], partition: int) -> None:
    log, run = Log(), Run(reply_topics={"mine": 10**7}, partitions={"replies": 4, "mine": 4})
    spring = {**headers, "kafka_replyPartition": partition.to_bytes(4, "big")}
    run.feed(
        _ask_by(log, spring, requested_acks=["a-ack"]),
        log.ack(2, "a-ack"),
        _ask_by(log, spring, correlation_id="d", timeout="soon"),
    )
    found = sorted((reply["status"], reply["in-partition"]) for reply in run.replies())
    assert found == [(200, partition), (400, partition)]
    # and all else goes where its key says
    assert {emission.partition for emission in run.emissions if emission.reply_id is None} == {None}


@pytest.mark.parametrize("value", [b"\xff\xff\xff\xff", b"\0\0\1", b"1", b"\0\0\0\0\1"], ids=bytes.hex)
def test_a_request_with_a_partition_that_is_no_number_of_one_is_invalid(value: bytes) -> None:
    log, run = Log(), Run(partitions={"replies": 4})
    run.feed(_ask_by(log, {"kafka_replyPartition": value}, requested_acks=["a-ack"]))
    (reply,) = run.replies()
    assert (reply["status"], reply["value"]["error"], reply["in-partition"]) == (400, "header.invalid", None)
    assert "a big-endian integer of 4 bytes" in reply["value"]["description"]


@pytest.mark.parametrize(
    "headers", [{"kafka_replyPartition": b"\0\0\0\4"}, {"reply-to": b"mine"}], ids=["partition", "topic"]
)
def test_what_a_request_chooses_decides_nothing_by_its_presence_but_where_the_reply_goes(
    headers: dict[str, bytes],
) -> None:
    """A batch that is replayed after a topic was deleted answers the same, under the same id."""
    log, run = Log(), Run(allowed=("mine",), partitions={"replies": 4})
    run.feed(_ask_by(log, headers, requested_acks=["a-ack"]), log.ack(2, "a-ack"))
    assert [(reply["status"], reply["sent-to"], reply["in-partition"]) for reply in run.replies()] == [
        (200, "replies", None)
    ]


@pytest.mark.parametrize(
    ("now", "sent_to"), [({"mine": 3}, ("mine", None)), ({}, ("replies", None))], ids=["fewer", "gone"]
)
def test_a_reply_whose_partition_has_gone_goes_to_any(now: dict[str, int], sent_to: tuple[str, None]) -> None:
    log, run = Log(), Run(reply_topics={"mine": 10**7}, partitions={"replies": 4, "mine": 4})
    run.feed(_ask_by(log, {"reply-to": b"mine", "kafka_replyPartition": b"\0\0\0\3"}, requested_acks=["a-ack"]))
    later = Run(reply_topics=dict.fromkeys(now, 10**7), partitions={"replies": 4, **now})
    later.state = run.state
    later.feed(log.ack(2, "a-ack"))
    assert [(reply["sent-to"], reply["in-partition"]) for reply in later.replies()] == [sent_to]


class _Broker:
    """What a worker learns from Kafka about the topics for replies, or that it does not answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.topics: dict[str, int] | None = {}
        self.now, self.asked = 0.0, 0
        monkeypatch.setattr(correlate_topics, "_looked_up", {})
        monkeypatch.setattr(correlate_topics.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(correlate_topics, "connect_admin", lambda _: self)
        monkeypatch.setattr(correlate_topics, "largest_records", self._largest_records)
        monkeypatch.setattr(correlate_topics, "replicas", self._partitions)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def list_topics(self) -> list[str]:
        self.asked += 1
        if self.topics is None:
            raise KafkaTimeoutError
        return list(self.topics)

    def _largest_records(self, _: object, names: Iterable[str]) -> dict[str, int]:
        return {name: (self.topics or {})[name] for name in names}

    def _partitions(self, _: object, names: Iterable[str]) -> list[TopicPartition]:
        return [TopicPartition(name, number) for name in names for number in range(self.asked)]


def _known(settings: Settings = PREFIXED, topics: CorrelateTopics | None = None) -> CorrelateTopics:
    return with_present_topics(topics or CorrelateTopics(replies="x-replies"), settings.kafka, settings.correlate)


def test_a_reply_goes_to_a_topic_that_is_new_and_to_none_that_has_gone_after_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kafka = _Broker(monkeypatch)
    kafka.topics = {"mine-1": 7, "other": 8}
    assert _known().reply_topics == {"mine-1": 7}
    assert _known().partitions == {"x-replies": 1, "mine-1": 1}
    kafka.topics = {"mine-2": 9}
    kafka.now = 4.9
    assert _known().reply_topics == {"mine-1": 7}
    assert kafka.asked == 1
    kafka.now = 5.0
    assert _known().reply_topics == {"mine-2": 9}


def test_while_kafka_does_not_answer_the_topics_that_were_known_count(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka, topics = _Broker(monkeypatch), CorrelateTopics(reply_topics={"mine-1": 7})
    kafka.topics = None
    assert _known(topics=topics) == topics
    assert _known(topics=topics) == topics
    assert kafka.asked == 1


def test_where_no_topic_may_be_chosen_nothing_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka, topics = _Broker(monkeypatch), CorrelateTopics()
    assert _known(Settings(), topics) is topics
    assert kafka.asked == 0
