"""The life of a request: progress, quorums, cancellations; of commands and of records of any kind."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ackstream.jobs.correlate import decision
from ackstream.jobs.correlate.pending import MOST_SUCCESSORS
from ackstream.jobs.correlate.state import SIGNALS, Record
from ackstream.jobs.correlate.topics import OVERHEAD_BYTES
from ackstream.protocol.ledger import reply_id
from tests.jobs.correlate.cuts import HORIZON, SECOND, decided, fed_in_cuts
from tests.jobs.correlate.shards import Log, Run, entries

if TYPE_CHECKING:
    from collections.abc import Sequence

LABELS = ["bank:booked", "stock:packed", "stock:sent"]
ENCODINGS = ["command", "record"]


@dataclass
class Requests:
    """Writes requests, answers and cancellations in one encoding."""

    encoding: str
    log: Log = field(default_factory=Log)
    offsets: int = 0

    def ask(self, time: int, key: str = "c", labels: Sequence[str] = ("a-ack", "b-ack"), **headers: Any) -> Record:
        if self.encoding == "command":
            return self.log.command(time, key, requested_acks=list(labels), **headers)
        texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in headers.items()}
        return self.log.order(time, key, requested_acks=json.dumps(list(labels)), **texts)

    def ack(
        self, time: int, label: str, status: int = 200, key: str = "c", payload: str = "ok", **headers: str
    ) -> Record:
        if self.encoding == "command":
            return self.log.ack(time, label, status, key, payload=payload, **headers)
        return self.log.confirmation(time, label, status, key, payload=payload.encode(), **headers)

    def identity(self, request: Record) -> str:
        topic = request.topic or "signals"
        return reply_id(request.correlation_id or "", topic, request.partition, request.offset)

    def cancel(self, time: int, request: Record, identity: str | None = None) -> Record:
        headers, key = {"cancel": identity or self.identity(request)}, request.correlation_id
        if self.encoding == "command":
            return self.log.record(SIGNALS, time, key, None, **headers)
        return self.log.of_application(SIGNALS, time, key, None, "orders", **headers)


@pytest.fixture(params=ENCODINGS)
def requests(request: pytest.FixtureRequest) -> Requests:
    return Requests(request.param)


def ends(run: Run) -> list[tuple[int, str]]:
    return [(outcome["status"], outcome["completed_by"]) for outcome in run.outcomes()]


# -- progress ----------------------------------------------------------------------------------------------------------


def test_progress_is_no_answer_and_moves_no_deadline_by_itself(run: Run, requests: Requests) -> None:
    run.feed(requests.ask(0, labels=["a-ack"], timeout="10s"), requests.ack(5_000, "a-ack", 102))
    assert (run.acks(), run.next_timeout) == ([("a-ack", "progress")], 10_000)
    run.feed(watermark=10_001)
    assert ends(run) == [(408, "timeout")]


def test_a_party_that_asks_for_time_gets_it_from_its_own_record_on(run: Run, requests: Requests) -> None:
    run.feed(requests.ask(0, labels=["a-ack"], timeout="10s"), requests.ack(5_000, "a-ack", 102, extend="30s"))
    assert run.next_timeout == 35_000
    run.feed(watermark=35_000)
    run.feed(requests.ack(35_000, "a-ack"))
    assert ends(run) == [(200, "acknowledgements")]


def test_time_is_never_taken_away_and_ends_with_the_longest_timeout(requests: Requests) -> None:
    run = Run(max_timeout="1m")
    run.feed(requests.ask(0, labels=["a-ack"], timeout="10s"), requests.ack(1_000, "a-ack", 102, extend="1s"))
    assert run.next_timeout == 10_000
    run.feed(requests.ack(9_000, "a-ack", 102, extend="2h"))
    assert run.next_timeout == 60_000


def test_the_time_of_one_label_is_not_that_of_another(run: Run, requests: Requests) -> None:
    run.feed(requests.ask(0, timeout="10s"), requests.ack(5_000, "a-ack", 102, extend="30s"))
    run.feed(requests.ack(12_000, "b-ack"), watermark=11_000)
    assert run.acks()[-1] == ("b-ack", "late")
    run.feed(requests.ack(20_000, "a-ack"))
    assert run.next_timeout == 10_000
    run.feed(watermark=20_001)
    (reply,) = run.replies()
    assert (reply["completed-by"], entries(reply)) == ("timeout", {"a-ack": 200, "b-ack": 408})
    assert run.outcomes()[0]["decided_at"] == 20_000


def test_an_answer_in_time_counts_although_a_later_one_was_read_first(run: Run, requests: Requests) -> None:
    run.feed(requests.ask(0, timeout="10s"), requests.ack(5_000, "b-ack", 102, extend="30s"))
    run.feed(requests.ack(20_000, "b-ack"), watermark=6_000)
    other = Requests(requests.encoding, Log(1))
    run.feed(other.ack(9_000, "a-ack"), watermark=9_000)
    assert ends(run) == [(200, "acknowledgements")]


def test_after_the_answer_of_the_one_with_more_time_the_others_have_theirs(run: Run, requests: Requests) -> None:
    run.feed(requests.ask(0, timeout="10s"), requests.ack(5_000, "a-ack", 102, extend="30s"))
    run.feed(requests.ack(6_000, "a-ack"))
    assert run.next_timeout == 10_000
    run.feed(watermark=10_001)
    assert ends(run) == [(424, "timeout")]


def test_progress_after_the_deadline_is_late(run: Run, requests: Requests) -> None:
    run.feed(requests.ask(0, labels=["a-ack"], timeout="10s"), watermark=10_001)
    run.feed(requests.ack(11_000, "a-ack", 102, extend="30s"))
    assert run.acks() == [("a-ack", "late")]


@pytest.mark.parametrize("extend", ["soon", "-1s", ""])
def test_an_invalid_extension_becomes_a_dead_letter(run: Run, requests: Requests, extend: str) -> None:
    run.feed(requests.ask(0, labels=["a-ack"], timeout="10s"), requests.ack(1_000, "a-ack", 102, extend=extend))
    if extend or requests.encoding == "command":
        assert len(run.reasons()) == 1
    assert run.next_timeout == 10_000


# -- quorums -----------------------------------------------------------------------------------------------------------

QUORUMS: list[tuple[Any, dict[str, int], bool | None]] = [
    (2, {"bank:booked": 200}, None),
    (2, {"bank:booked": 200, "stock:sent": 200}, True),
    (2, {"bank:booked": 409, "stock:sent": 200}, None),
    (2, {"bank:booked": 409, "stock:sent": 500}, False),
    (1, {"stock:packed": 204}, True),
    (3, {"stock:packed": 404}, False),
    ({"stock": 1}, {"stock:sent": 200}, None),
    ({"stock": 1}, {"stock:sent": 200, "bank:booked": 200}, True),
    ({"stock": 1}, {"stock:sent": 409, "bank:booked": 200}, None),
    ({"stock": 1}, {"bank:booked": 409}, False),
    ({"stock": 2, "bank": 1}, {"stock:sent": 409}, False),
]


@pytest.mark.parametrize(("quorum", "answers", "reached"), QUORUMS)
def test_a_quorum_ends_the_wait_once_it_is_decided(
    run: Run,
    requests: Requests,
    quorum: Any,
    answers: dict[str, int],
    reached: bool | None,  # noqa: FBT001
) -> None:
    run.feed(requests.ask(0, labels=LABELS, timeout="10s", ack_quorum=quorum))
    run.feed(*(requests.ack(1_000 + n, label, status) for n, (label, status) in enumerate(answers.items())))
    run.feed(watermark=10_001)
    (reply,) = run.replies()
    (outcome,) = run.outcomes()
    missing = [label for label in LABELS if label not in answers]
    if reached is None:
        assert (reply["status"], reply["completed-by"], outcome["missing"]) == (424, "timeout", missing)
        assert entries(reply) == {label: answers.get(label, 408) for label in LABELS}
        assert "unneeded" not in outcome
    else:
        assert (reply["status"], reply["completed-by"]) == (200 if reached else 424, "acknowledgements")
        assert entries(reply) == {label: answers[label] for label in LABELS if label in answers}
        assert (outcome["missing"], outcome.get("unneeded", [])) == ([], missing)
    assert json.loads(reply["headers"]["ack-quorum"]) == quorum


@pytest.mark.parametrize(
    "quorum", [0, 4, -1, "two", "1.5", True, [], {}, {"other": 1}, {"stock": 3}, {"stock": 0}, {"stock": "1"}, {"": 1}]
)
def test_an_impossible_quorum_is_refused(run: Run, requests: Requests, quorum: Any) -> None:
    run.feed(requests.ask(0, labels=LABELS, ack_quorum=quorum))
    assert ends(run) == [(400, "invalid")]
    assert "ack-quorum" in run.reasons()[0]


def test_a_later_answer_to_a_decided_quorum_is_late(run: Run, requests: Requests) -> None:
    run.feed(requests.ask(0, labels=LABELS, ack_quorum=1), requests.ack(1_000, "bank:booked"))
    run.feed(requests.ack(1_001, "stock:sent"))
    assert run.acks()[-1] == ("stock:sent", "late")


# -- cancellations -----------------------------------------------------------------------------------------------------


def test_a_requester_takes_its_request_back(run: Run, requests: Requests) -> None:
    asked = requests.ask(0)
    run.feed(asked, requests.ack(500, "a-ack"), requests.cancel(1_000, asked))
    (reply,) = run.replies()
    assert (reply["status"], reply["completed-by"]) == (499, "cancelled")
    assert run.outcomes()[0]["missing"] == ["b-ack"]
    run.feed(requests.ack(2_000, "b-ack"))
    assert run.acks() == [("a-ack", "accepted"), ("b-ack", "late")]


def test_only_who_knows_the_reply_id_takes_a_request_back(run: Run, requests: Requests) -> None:
    asked = requests.ask(0, labels=["a-ack"])
    run.feed(asked, requests.cancel(1_000, asked, "0" * 32))
    assert run.replies() == []
    run.feed(requests.ack(2_000, "a-ack"))
    assert ends(run) == [(200, "acknowledgements")]
    assert run.acks()[0] == (None, "orphan")


def test_only_a_record_in_the_topic_of_the_request_takes_it_back(run: Run, requests: Requests) -> None:
    asked, log = requests.ask(0, labels=["a-ack"]), Log(1)
    elsewhere = log.of_application(SIGNALS, 900, "c", None, "other", cancel=requests.identity(asked))
    run.feed(asked, elsewhere)
    assert (run.replies(), run.acks()) == ([], [(None, "orphan")])


@pytest.mark.parametrize("identity", ["", "x", "A" * 32, "0" * 33])
def test_a_header_that_is_no_reply_id_cancels_nothing(run: Run, requests: Requests, identity: str) -> None:
    asked = requests.ask(0, labels=["a-ack"])
    run.feed(asked, requests.cancel(1_000, asked, identity or " "), requests.ack(2_000, "a-ack"))
    assert ends(run)[-1] == (200, "acknowledgements")


def test_a_cancellation_with_an_endless_id_is_a_dead_letter(run: Run, requests: Requests) -> None:
    asked = requests.ask(0, "x" * 5_000, labels=["a-ack"])
    run.feed(requests.cancel(1_000, asked))
    assert len(run.reasons()) == 1
    assert max(len(emission.key or b"") for emission in run.emissions) < 2_000


@pytest.mark.parametrize(("time", "disposition"), [(5_000, "late"), (10_000_000, "orphan")])
def test_a_cancellation_that_comes_too_late_is_recorded(
    run: Run, requests: Requests, time: int, disposition: str
) -> None:
    asked = requests.ask(0, labels=["a-ack"])
    run.feed(asked, requests.ack(1_000, "a-ack"))
    run.feed(watermark=time)
    run.feed(requests.cancel(time, asked))
    assert run.acks()[-1] == (None, disposition)
    assert (ends(run), run.reasons()) == ([(200, "acknowledgements")], [])


def test_the_cancellation_of_a_later_use_of_an_id_waits_for_it(run: Run, requests: Requests) -> None:
    first, second = requests.ask(0, labels=["a-ack"], timeout="1s"), requests.ask(200_000, labels=["a-ack"])
    run.feed(first, second, requests.cancel(200_100, second), watermark=300_000)
    assert ends(run) == [(408, "timeout"), (499, "cancelled")]


# -- amended -----------------------------------------------------------------------------------------------------------


def test_late_acknowledgements_amend_a_request_that_has_timed_out(run: Run, requests: Requests) -> None:
    asked = requests.ask(0, timeout="10s", amend="1m")
    run.feed(asked, requests.ack(1_000, "a-ack"), watermark=10_001)
    run.feed(requests.ack(60_000, "b-ack"), watermark=60_000)
    first, second = run.replies()
    assert (first["completed-by"], first["status"], entries(first)) == ("timeout", 424, {"a-ack": 200, "b-ack": 408})
    assert (second["completed-by"], second["status"]) == ("amended", 200)
    assert entries(second) == {"a-ack": 200, "b-ack": 200}
    assert (first["reply-id"], first.get("reply-version")) == (second["reply-id"], None)
    assert second["reply-version"] == "2"
    assert run.acks() == [("a-ack", "accepted"), ("b-ack", "late")]
    decided = [(one.get("version"), one["decided_at"], one["missing"]) for one in run.outcomes()]
    assert decided == [(None, 10_000, ["b-ack"]), (2, 60_000, [])]
    identity = requests.identity(asked)
    assert [one["id"] for one in run.ledger() if "outcome" in one] == [identity, f"{identity}-2"]


def test_a_request_is_amended_once(run: Run, requests: Requests) -> None:
    run.feed(requests.ask(0, labels=["a-ack"], timeout="10s", amend="1m"), watermark=10_001)
    run.feed(requests.ack(20_000, "a-ack"), requests.ack(20_001, "a-ack"))
    assert ends(run) == [(408, "timeout"), (200, "amended")]
    assert run.acks() == [("a-ack", "late"), ("a-ack", "late")]


@pytest.mark.parametrize(
    ("amend", "last"), [("30s", 40_000), ("true", 130_000), ("0s", None), ("false", None), (None, None)]
)
def test_a_request_is_amended_until_the_time_that_it_names(
    requests: Requests, amend: str | None, last: int | None
) -> None:
    headers = {} if amend is None else {"amend": amend}
    for time, amended in ((last or 10_001, last is not None), ((last or 10_001) + 1, False)):
        run, made = Run(recent_memory="2m"), Requests(requests.encoding)
        run.feed(made.ask(0, labels=["a-ack"], timeout="10s", **headers), watermark=10_001)
        run.feed(made.ack(time, "a-ack"), watermark=time)
        assert ends(run) == [(408, "timeout"), (200, "amended")][: 1 + amended]


def test_an_id_is_claimed_while_its_request_may_be_amended(requests: Requests) -> None:
    run = Run(recent_memory="2m")
    run.feed(requests.ask(0, labels=["a-ack"], timeout="10s", amend="2h"), watermark=10_001)
    run.feed(requests.ask(3_600_000, labels=["a-ack"]), watermark=3_600_000)
    assert len(run.reasons()) == 1
    run.feed(requests.ack(7_200_000, "a-ack"))
    assert ends(run)[1:] == [(200, "amended")]


def test_a_late_refusal_amends_nothing_and_ends_the_time_for_it(run: Run, requests: Requests) -> None:
    run.feed(requests.ask(0, labels=["a-ack"], timeout="10s", amend="1m"), watermark=10_001)
    run.feed(requests.ack(11_000, "a-ack", 409), requests.ack(12_000, "a-ack"))
    assert ends(run) == [(408, "timeout")]


def test_a_late_quorum_amends(run: Run, requests: Requests) -> None:
    run.feed(requests.ask(0, labels=LABELS, timeout="10s", ack_quorum=2, amend="1m"))
    run.feed(requests.ack(1_000, "bank:booked", 409), requests.ack(2_000, "stock:sent"), watermark=10_001)
    run.feed(requests.ack(11_000, "stock:packed"))
    assert ends(run) == [(424, "timeout"), (200, "amended")]


def test_an_answer_that_is_late_before_the_timeout_is_decided_amends_it(run: Run, requests: Requests) -> None:
    run.feed(requests.ask(0, labels=["a-ack"], timeout="10s", amend="1m"), requests.ack(10_001, "a-ack"))
    assert (run.replies(), run.acks()) == ([], [("a-ack", "late")])
    run.feed(watermark=10_001)
    assert ends(run) == [(408, "timeout"), (200, "amended")]
    assert len(run.acks()) == 1


def test_a_late_answer_amends_although_another_label_had_more_time(run: Run, requests: Requests) -> None:
    run.feed(requests.ask(0, timeout="10s", amend="60s"), requests.ack(5_000, "b-ack", 102, extend="30s"))
    run.feed(requests.ack(15_000, "a-ack"), requests.ack(20_000, "b-ack"), watermark=35_001)
    assert run.acks() == [("b-ack", "progress"), ("a-ack", "late"), ("b-ack", "accepted")]
    assert ends(run) == [(424, "timeout"), (200, "amended")]


def test_late_answers_before_the_timeout_wait_in_the_state_one_for_each_label(run: Run, requests: Requests) -> None:
    run.feed(requests.ask(0, labels=["a-ack", "b-ack"], timeout="1s", amend="60s"))
    for time in range(2_000, 2_100):
        run.feed(*(requests.ack(time, label, payload="x" * 1_000) for label in ("a-ack", "z-ack")))
    assert len(run.acks()) == 200
    assert run.state is not None
    assert len(run.state[1]) < 5_000


def test_a_request_that_its_twin_gave_up_is_amended(run: Run, log: Log) -> None:
    run.feed(log.command(0, requested_acks=["a-ack", "b-ack"], timeout="10s", amend="1m"))
    run.feed(log.error(1_000, code="command.timeout"))
    run.feed(log.ack(2_000, "a-ack"), log.ack(3_000, "b-ack"))
    assert ends(run) == [(424, "timeout"), (200, "amended")]


def test_an_amended_reply_that_has_to_be_shortened_is_a_success(requests: Requests) -> None:
    run = Run(record_bytes=20_000 + OVERHEAD_BYTES)
    run.feed(requests.ask(0, timeout="10s", amend="1m"), watermark=10_001)
    run.feed(*(requests.ack(11_000 + n, label, payload="x" * 15_000) for n, label in enumerate(["a-ack", "b-ack"])))
    assert ends(run)[-1] == (200, "amended")
    assert sorted(entries(run.replies()[-1]).values()) == [200, 413]


def test_late_responses_before_the_timeout_wait_in_a_limited_number(run: Run, log: Log) -> None:
    run.feed(log.live(0, timeout="10s", amend="1m"))
    for time in range(11_000, 11_100):
        run.feed(log.response(time, topic="things/live/commands/modify"))
    assert len(run.acks()) == 100 - MOST_SUCCESSORS
    run.feed(watermark=12_000)
    assert ends(run)[-1] == (204, "amended")


def test_progress_after_the_timeout_amends_nothing(run: Run, requests: Requests) -> None:
    run.feed(requests.ask(0, labels=["a-ack"], timeout="10s", amend="1m"), watermark=10_001)
    run.feed(requests.ack(11_000, "a-ack", 102), requests.ack(12_000, "a-ack"))
    assert ends(run) == [(408, "timeout"), (200, "amended")]


def test_a_late_response_amends_a_command_that_awaits_it_alone(run: Run, log: Log) -> None:
    run.feed(log.live(0, timeout="10s", amend="1m"), watermark=10_001)
    run.feed(log.response(11_000, topic="things/live/commands/modify"))
    assert ends(run)[-1] == (204, "amended")


@pytest.mark.parametrize("amend", ["soon", "-1s", "1 h", ""])
def test_an_invalid_time_to_amend_is_refused(run: Run, requests: Requests, amend: str) -> None:
    run.feed(requests.ask(0, labels=["a-ack"], amend=amend))
    # an empty record header is none
    assert ends(run) == ([(400, "invalid")] if amend or requests.encoding == "command" else [])


# -- acknowledgements as they come -------------------------------------------------------------------------------------


def test_a_requester_gets_the_acknowledgements_of_each_batch(run: Run, requests: Requests) -> None:
    labels = ["a-ack", "b-ack", "c-ack", "d-ack"]
    asked = requests.ask(0, labels=labels, timeout="10s", progress="true")
    run.feed(asked, requests.ack(1, "a-ack"), requests.ack(2, "b-ack", 102), requests.ack(3, "x-ack"))
    run.feed(requests.ack(4, "b-ack"), requests.ack(5, "a-ack"))
    run.feed(requests.ack(6, "a-ack"))
    run.feed(requests.ack(7, "c-ack"), requests.ack(8, "d-ack", 409))
    *updates, reply = run.replies()
    assert [entries(one) for one in updates] == [{"a-ack": 200, "b-ack": 102}, {"b-ack": 200}]
    assert {(one["completed-by"], one["status"], one["reply-id"]) for one in updates} == {
        ("progress", 102, requests.identity(asked))
    }
    assert (reply["completed-by"], entries(reply)) == ("acknowledgements", {**dict.fromkeys(labels, 200), "d-ack": 409})


@pytest.mark.parametrize("headers", [{}, {"progress": "false"}, {"progress": "true", "response_required": "false"}])
def test_a_requester_that_asks_for_no_updates_gets_none(run: Run, requests: Requests, headers: dict[str, str]) -> None:
    run.feed(requests.ask(0, timeout="10s", **headers), requests.ack(1, "a-ack"))
    assert run.replies() == []


@pytest.mark.parametrize("value", ["yes", "40%", "1"])
def test_what_is_no_flag_for_updates_is_refused(run: Run, requests: Requests, value: str) -> None:
    run.feed(requests.ask(0, progress=value))
    assert ends(run) == [(400, "invalid")]
    assert "progress" in run.reasons()[0]


def test_an_acknowledgement_may_have_any_header_of_that_name(run: Run, log: Log) -> None:
    run.feed(log.command(0, requested_acks=["a-ack"]), log.ack(1, "a-ack", progress="40%"))
    assert ends(run) == [(200, "acknowledgements")]


def test_only_the_last_acknowledgement_of_a_label_counts_for_the_size_of_an_update(requests: Requests) -> None:
    run = Run(record_bytes=20_000 + OVERHEAD_BYTES)
    labels = ["a-ack", "b-ack", "c-ack", "d-ack"]
    run.feed(requests.ask(0, labels=labels, timeout="10s", progress="true"))
    slow = [requests.ack(n, "a-ack", 102, payload="x" * 9_000) for n in range(1, 5)]
    run.feed(*slow, requests.ack(6, "a-ack", 102), *(requests.ack(7, one, payload="x" * 9_900) for one in labels[1:3]))
    (update,) = run.replies()
    assert sorted(entries(update).values()) == [102, 200, 413]
    assert all(len(one.value or b"") <= run.topics.value_bytes for one in run.emissions)


def test_an_update_that_cannot_be_written_is_no_end_of_the_batch(
    run: Run, requests: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.feed(requests.ask(0, timeout="10s", progress="true"))
    with monkeypatch.context() as broken:
        broken.setattr(decision, "update", None)
        run.feed(requests.ack(1, "a-ack"))
    run.feed(requests.ack(2, "b-ack"))
    assert ends(run) == [(200, "acknowledgements")]


def test_an_update_is_no_larger_than_a_record_may_be(requests: Requests) -> None:
    run = Run(record_bytes=20_000 + OVERHEAD_BYTES)
    run.feed(requests.ask(0, labels=["a-ack", "b-ack", "c-ack"], timeout="10s", progress="true"))
    payloads = {"a-ack": "x" * 9_900, "b-ack": "x" * 9_901}
    run.feed(*(requests.ack(1, label, payload=payload) for label, payload in payloads.items()))
    (update,) = run.replies()
    assert entries(update) == {"a-ack": 200, "b-ack": 413}


# -- laws --------------------------------------------------------------------------------------------------------------

steps = st.lists(
    st.tuples(
        st.integers(0, 150).map(lambda seconds: seconds * SECOND),
        st.sampled_from(["ask", "ack", "ack", "progress", "cancel"]),
        st.sampled_from(["x", "y"]),
        st.sampled_from(LABELS),
        st.integers(1, 70),
        st.sampled_from([None, 1, 2, {"stock": 1}]),
        st.sampled_from([{}, {"amend": "true"}, {"amend": "20s"}, {"progress": "true"}]),
    ),
    max_size=16,
)


def _partitions(encoding: str, actions: list[Any]) -> list[list[Record]]:
    """Return requests and cancellations, and answers, of each id in a partition of their own; no two at one time."""
    made, asked = Requests(encoding), dict[str, Record]()
    signals: list[Record] = []
    answers: list[Record] = []
    for number, (second, what, key, label, seconds, quorum, further) in enumerate(
        sorted(actions, key=lambda step: step[0])
    ):
        time = second + number
        if what == "ask":
            headers: dict[str, Any] = {"timeout": f"{seconds}s", **further} | ({"ack_quorum": quorum} if quorum else {})
            asked[key] = made.ask(time, key, LABELS, **headers)
            signals.append(asked[key])
        elif what == "cancel" and key in asked:
            signals.append(made.cancel(time, asked[key]))
        elif what == "ack":
            answers.append(made.ack(time, label, 200 if seconds > 20 else 409, key))
        elif what == "progress":
            answers.append(made.ack(time, label, 102, key, extend=f"{seconds}s"))
    return [signals, answers]


@settings(max_examples=300)
@given(st.sampled_from(ENCODINGS), steps, st.data())
def test_the_cut_of_batches_changes_no_decision(encoding: str, actions: list[Any], data: st.DataObject) -> None:
    """Without cancellations, which race with the last answer: these are in another partition."""
    partitions = _partitions(encoding, [step for step in actions if step[1] != "cancel"])
    whole = Run()
    for record in sorted((one for records in partitions for one in records), key=lambda one: one.timestamp):
        whole.feed(record)
    whole.feed(watermark=HORIZON)
    assert decided(fed_in_cuts(partitions, data)) == decided(whole)


class Model:
    """How one request ends, step by step: a model without batches, shards, encodings or texts."""

    def __init__(self, timeout: int, quorum: Any, longest: int, amend: int) -> None:
        self.deadlines = dict.fromkeys(LABELS, timeout)
        self.longest, self.quorum, self.amend = longest, quorum, amend
        self.answers: dict[str, int] = {}
        self.latest = 0
        self.ends: list[tuple[int, str, int]] = []

    def pass_until(self, time: int) -> None:
        last = max((end for label, end in self.deadlines.items() if label not in self.answers), default=0)
        if not self.ends and time > last:
            self.ends = [(424, "timeout", max(last, self.latest))]
            self.deadlines = dict.fromkeys(LABELS, last + self.amend)

    def act(self, time: int, what: str, label: str, seconds: int) -> None:
        self.pass_until(time)
        if self.ends and (self.ends[-1][1] != "timeout" or what != "ack"):
            return
        if what == "cancel":
            self.ends = [(499, "cancelled", time)]
        elif label not in self.answers and time <= self.deadlines[label]:
            if what == "progress":
                self.deadlines[label] = max(self.deadlines[label], min(time + seconds * SECOND, self.longest))
            else:
                self.answers[label], self.latest = 200 if seconds > 20 else 409, time
                self._complete(time)

    def _complete(self, time: int) -> None:
        good = {label for label, status in self.answers.items() if status == 200}
        left = {*LABELS} - (self.answers.keys() - good)
        whole = isinstance(self.quorum, int)
        groups = [(LABELS, self.quorum)] if whole else [(LABELS[:1], 1), (LABELS[1:], 1 if self.quorum else 2)]
        reached = all(len(good & {*labels}) >= number for labels, number in groups)
        lost = self.quorum and any(len(left & {*labels}) < number for labels, number in groups)
        if not (reached or lost or len(self.answers) == len(LABELS)):
            return
        if not self.ends:
            self.ends = [(200 if reached else 424, "acknowledgements", time)]
        elif reached:
            self.ends.append((200, "amended", time))


@settings(max_examples=400)
@given(
    st.sampled_from(ENCODINGS),
    st.integers(1, 70),
    st.sampled_from([None, 1, 2, {"stock": 1}]),
    st.sampled_from([0, 0, 20, 60]),
    steps,
)
def test_a_request_ends_as_its_model_does(
    encoding: str, timeout: int, quorum: Any, amend: int, actions: list[Any]
) -> None:
    made = Requests(encoding)
    run, model = Run(max_timeout="100s"), Model(timeout * SECOND, quorum, 100 * SECOND, amend * SECOND)
    headers: dict[str, Any] = {"timeout": f"{timeout}s", "amend": f"{amend}s"}
    asked = made.ask(0, "x", LABELS, **headers | ({"ack_quorum": quorum} if quorum else {}))
    run.feed(asked)
    for number, (second, what, _, label, seconds, *_) in enumerate(sorted(actions, key=lambda step: step[0])):
        time = second + number + 1
        if what == "cancel":
            run.feed(made.cancel(time, asked))
        elif what == "progress":
            run.feed(made.ack(time, label, 102, "x", extend=f"{seconds}s"))
        elif what == "ack":
            run.feed(made.ack(time, label, 200 if seconds > 20 else 409, "x"))
        else:
            continue
        run.feed(watermark=time)
        model.act(time, what, label, seconds)
    run.feed(watermark=HORIZON)
    model.pass_until(HORIZON)
    assert [(one["status"], one["completed_by"], one["decided_at"]) for one in run.outcomes()] == model.ends
