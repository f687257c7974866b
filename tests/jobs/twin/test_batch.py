"""One batch folded over the things: order, answers, events and journal rows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.jobs.twin import batch
from ackstream.jobs.twin.batch import COMMAND_MARKS, TwinResult, cut, fold
from ackstream.jobs.twin.records import JournalRow, SignalRecord
from ackstream.protocol.ledger import reply_id
from ackstream.settings import Correlate, Kafka, Settings
from tests.harness.effort import soon
from tests.jobs.twin.commands import MANY, START, answer, answers, body, records, run, sent_to, whole

ids = st.sampled_from(["a:one", "a:two"])
paths = st.sampled_from(["/", "/attributes", "/attributes/x", "/features/f", "/features/f/properties/p"])
patches = st.sampled_from([{}, {"x": 1}, {"attributes": {"x": 2}}, {"attributes": {"x": None}}, None, 7])
headers = st.sampled_from([{}, {"if_match": '"rev:1"'}, {"if_none_match": "*"}, {"condition": "exists(attributes/x)"}])
commands = st.builds(
    lambda action, path, value, thing, named: body(action, path, value, thing=thing, **named),
    st.sampled_from(["create", "modify", "merge", "delete", "retrieve"]),
    paths,
    patches,
    ids,
    headers,
)


@given(st.lists(commands, max_size=12), st.data())
def test_it_does_not_matter_where_batches_are_cut(sent: list[Any], data: st.DataObject) -> None:
    taken = records(*sent)
    expected = whole(taken)
    things: dict[str, Any] = {}
    messages, rows = [], []
    start = 0
    while start < len(taken):
        end = data.draw(st.integers(start + 1, len(taken)))
        part = whole(taken[start:end], things)
        things.update(part.changed)
        messages += part.messages
        rows += part.rows
        start = end
    assert messages == expected.messages
    assert things == expected.changed
    assert [(row.thing_id, row.revision) for row in rows] == [(row.thing_id, row.revision) for row in expected.rows]


@given(st.lists(commands, max_size=12), st.integers(1, 2_000))
def test_the_parts_of_a_result_are_together_the_same_and_each_is_small(sent: list[Any], limit: int) -> None:
    expected, things, parts = whole(records(*sent)), dict[str, Any](), []
    before: dict[str, Any] = {}
    for part in fold(records(*sent), things, Settings(), limit):
        # this part may still fail: its changes are not among the things yet
        assert things == before
        before |= part.changed
        # at most one command went beyond the limit: an event and an answer
        assert sum(len(message.value) for message in part.messages[:-2]) < limit
        assert {row.thing_id for row in part.rows if row.last} == part.changed.keys()
        parts.append(part)
    assert [message for part in parts for message in part.messages] == expected.messages
    assert things == expected.changed
    assert _bare(row for part in parts for row in part.rows) == _bare(expected.rows)


def _bare(rows: Iterable[JournalRow]) -> list[JournalRow]:
    return [msgspec.structs.replace(row, last=False, thing=None) for row in rows]


def test_what_many_small_commands_do_to_large_things_is_stored_in_parts() -> None:
    names = [f"a:{number}" for number in range(20)]
    large = {"attributes": {"x": "x" * 90_000}}
    things = run(*[body("create", value=large, thing=name) for name in names]).changed
    changed = [body("modify", "/attributes/y", 1, thing=name, response_required=False) for name in names]
    parts = list(fold(records(*changed), things, Settings(), 500_000))
    assert [len(part.rows) for part in parts] == [6, 6, 6, 2]


@given(st.lists(st.integers(0, 9)), st.integers(1, 20))
def test_a_sequence_is_cut_into_as_few_runs_as_the_limit_allows(sizes: list[int], limit: int) -> None:
    runs = [sizes[run] for run in cut(sizes, limit)]
    assert [size for run in runs for size in run] == sizes
    assert all(len(run) == 1 or (run and sum(run) <= limit) for run in runs)
    assert all(sum(one) + other[0] > limit for one, other in pairwise(runs))


@given(commands, st.booleans(), st.sampled_from(["/", "\\/", "\\u002f", "\\u002F"]))
def test_no_command_is_left_out_by_what_is_looked_for_in_the_raw_record(
    sent: Any,
    many: bool,  # noqa: FBT001
    slash: str,
) -> None:
    topic = MANY if many else sent["topic"]
    value = json.dumps(sent).replace(sent["topic"], topic.replace("/", slash)).encode()
    assert run(value).messages
    assert any(mark in value for mark in COMMAND_MARKS)


@pytest.mark.parametrize("topic", ["live/messages/ask", "live/commands/modify", "twin/events/created"])
def test_what_is_no_command_of_the_twin_does_not_reach_it(topic: str) -> None:
    value = json.dumps({"topic": f"a/b/things/{topic}", "path": "/", "value": "x"}).encode()
    assert not any(mark in value for mark in COMMAND_MARKS)


@given(st.lists(commands, max_size=12))
def test_revisions_count_successful_changes_and_each_command_has_its_own_answer(sent: list[Any]) -> None:
    result = run(*sent)
    told = sent_to(result.messages, "twin-acks")
    assert [entry["headers"]["correlation-id"] for entry in told] == [f"c-{number}" for number in range(len(sent))]
    changes = [entry for entry in told if entry["status"] in (201, 204)]
    assert len(changes) == len(result.rows) == len(sent_to(result.messages, "events"))
    for thing_id, thing in result.changed.items():
        revisions = [row.revision for row in result.rows if row.thing_id == thing_id]
        assert revisions == list(range(1, thing.revision + 1))


@given(st.lists(commands, max_size=8))
def test_the_last_row_of_a_thing_in_a_batch_has_the_thing(sent: list[Any]) -> None:
    result = run(*sent)
    last = {row.thing_id: row for row in result.rows}
    assert {row.thing_id: row for row in result.rows if row.last} == last
    for thing_id, thing in result.changed.items():
        assert last[thing_id].thing == (None if thing.content is None else thing.content.decode())
        assert last[thing_id].deleted == (thing.content is None)
    assert all(row.thing is None for row in result.rows if not row.last)


def test_the_things_stay_as_they_are_until_the_next_part_is_asked_for() -> None:
    before = run(body("create", value={})).changed
    copy = dict(before)
    next(fold(records(body("delete")), before, Settings()))
    assert before == copy


def visible(*sent: Any) -> list[bool]:
    return [row.visible for row in run(*sent).rows]


def test_a_change_that_changes_nothing_is_marked() -> None:
    same = body("modify", "/attributes/x", 1)
    assert visible(body("create", value={}), same, same, body("merge", "/attributes", {"x": 1})) == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("chosen", "patterns", "carried_out"),
    [
        (None, (), True),
        (b"replies", (), True),
        (b"secret", (), False),
        (b"own-1", ("own-.*",), True),
        (b"owner", ("own-.*",), False),
        (b"\xff", ("own-.*",), False),
        (b"o" * 250, ("o*",), False),
    ],
)
def test_a_command_that_correlate_refuses_for_its_reply_topic_is_not_carried_out(
    chosen: bytes | None,
    patterns: tuple[str, ...],
    carried_out: bool,  # noqa: FBT001 - a table
):
    (record,) = records(body("create", value={}))
    settings = Settings(correlate=Correlate(reply_topics=patterns))
    found = whole([msgspec.structs.replace(record, reply_topic=chosen)], settings=settings)
    assert bool(found.rows) == carried_out


def test_a_command_that_correlate_refuses_for_its_correlation_id_is_not_carried_out():
    commands = [body("create", value={}, correlation_id=identity) for identity in (1767225600.123, 1767225600)]
    assert [bool(whole([record]).rows) for record in records(*commands)] == [False, True]


def test_one_and_true_are_not_the_same_content():
    values = [body("modify", "/attributes/x", value) for value in (1, True, 1.0, 1.0)]
    assert visible(body("create", value={}), *values) == [True, True, True, True, False]


# the requested acknowledgements and the wish for a response: those of the event, whether there is a response
@pytest.mark.parametrize(
    ("wanted", "event", "responds"),
    [
        ({}, None, True),
        ({"requested_acks": []}, [], True),
        ({"requested_acks": ["twin-persisted", "search-persisted"]}, None, True),
        ({"requested_acks": ["foo-bar", "twin-persisted"]}, ["foo-bar"], True),
        ({"requested_acks": ["foo-bar"], "response_required": False}, ["foo-bar"], False),
        ({"requested_acks": ["foo-bar", "twin-persisted"], "response_required": False}, ["foo-bar"], True),
        ({"response_required": False}, [], False),
    ],
)
def test_events_carry_custom_labels_and_responses_go_to_those_who_wait(
    wanted: dict[str, Any],
    event: list[str] | None,
    responds: bool,  # noqa: FBT001
) -> None:
    result = run(body("create", value={}, **wanted))
    (told,) = sent_to(result.messages, "events")
    assert told["headers"].get("requested-acks") == event
    assert told["headers"]["response-required"] is False
    assert bool(sent_to(result.messages, "twin-acks")) is responds


@pytest.mark.parametrize("requested", [["foo-bar"], []], ids=["awaited", "nothing-awaited"])
def test_errors_are_sent_whatever_is_awaited(requested: list[str]) -> None:
    found = answer(body("delete", requested_acks=requested, response_required=False))
    assert (found["status"], found["topic"]) == (404, "org.acme/lamp/things/twin/errors")
    assert found["value"]["error"] == "things:thing.notfound"


def test_an_answer_names_the_reply_to_its_command_unless_nothing_is_awaited() -> None:
    silent = {"requested_acks": [], "response_required": False}
    create = body("create", value={})
    failed, missing = body("create", value={}, **silent), body("retrieve", thing="a:other", requested_acks=[])
    sent = run(create, create, failed, body("retrieve"), missing).messages
    expected = [reply_id(f"c-{number}", "signals", 0, number) for number in range(5)]
    expected[2] = None
    assert [message.reply_id for message in sent if message.topic == "twin-acks"] == expected
    assert [message.reply_id for message in sent if message.topic == "events"] == [None]


@pytest.mark.parametrize(
    "value",
    [
        b"garbage",
        b"",
        b'{"topic":"a/b/things/live/commands/create","path":"/","value":{}}',
        b'{"topic":"a/b/things/twin/commands/create","path":"/","headers":{"channel":"live"},"value":{}}',
        b'{"topic":"a/b/things/twin/commands/create","path":"/","value":{},"status":201}',
        b'{"topic":"a/b/things/twin/events/created","path":"/","value":{}}',
        b'{"topic":"a/b/policies/commands/create","path":"/","value":{}}',
        b'{"topic":"a/b/things/live/messages/x","path":"/"}',
        # what correlate refuses and answers
        b'{"topic":"a/b/things/twin/commands/create","path":"/","headers":{"requested-acks":["x"]},"value":{}}',
        b'{"topic":"a/b/things/twin/commands/create","path":"/","headers":{"timeout":"0","requested-acks":["abc"]},"value":{}}',
        json.dumps(body("create", value={}, requested_acks=[f"label-{n}" for n in range(101)])).encode(),
        json.dumps(body("create", value={"attributes": {"x": "x" * 1_000_000}})).encode(),
    ],
)
def test_signals_that_are_not_for_the_twin_are_ignored(value: bytes) -> None:
    assert run(value) == TwinResult()
    assert whole([SignalRecord(START, 0, 0, None, None)]) == TwinResult()


def test_a_command_whose_correlation_id_correlate_refuses_is_not_executed() -> None:
    (record,) = records(body("create", value={}))
    assert whole([msgspec.structs.replace(record, correlation_id="x" * 1_024)]).rows
    assert whole([msgspec.structs.replace(record, correlation_id="x" * 1_025)]) == TwinResult()
    (record,) = records(body("create", value={}, correlation_id="x" * 1_025))
    assert whole([msgspec.structs.replace(record, correlation_id=None)]) == TwinResult()


def test_a_defect_in_one_command_is_reported_and_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(*_: Any) -> None:
        raise RecursionError

    with monkeypatch.context() as patch:
        patch.setattr(batch.search, "answer", faulty)
        told = answers(body("create", value={}), {"topic": MANY, "path": "/search/things"}, body("delete"))
    assert [entry["status"] for entry in told] == [201, 500, 204]
    assert told[1]["value"]["error"] == "internalerror"


def test_a_defect_in_reading_one_command_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    real, commands = batch.decode, records(body("create", value={}), body("modify", value=1), body("delete"))

    def faulty(value: bytes) -> Any:
        if value == commands[1].value:
            raise RecursionError
        return real(value)

    with monkeypatch.context() as patch:
        patch.setattr(batch, "decode", faulty)
        assert len(whole(commands).rows) == 2


def test_the_correlation_id_is_that_of_the_record_else_of_the_json_else_the_place() -> None:
    def key(record: SignalRecord) -> str:
        return whole([record]).messages[0].correlation_id

    (record,) = records(body("create", value={}, correlation_id="json"))
    assert key(record) == "c-0"
    assert key(msgspec.structs.replace(record, correlation_id=None)) == "json"
    (record,) = records(body("create", value={}))
    elsewhere = msgspec.structs.replace(record, correlation_id=None, partition=3, offset=9)
    assert key(elsewhere) == "signals-3-9"
    prefixed = whole([elsewhere], settings=Settings(kafka=Kafka(topic_prefix="x-")))
    assert prefixed.messages[0].correlation_id == "x-signals-3-9"


def test_commands_of_a_partition_act_in_their_order_although_its_broker_was_set_back() -> None:
    create, delete = records(body("create", value={}), body("delete"))
    set_back = msgspec.structs.replace(delete, timestamp=create.timestamp - 10_000)
    result = whole([set_back, create])
    assert [row.action for row in result.rows] == ["created", "deleted"]


TOO_MANY = {f"k{number}": None for number in range(10_001)}
LONG = body("modify", "/attributes/x", "a" * 100_000)
LIKE = f'like(attributes/x,"*{"a?" * 25}b*")'
MANY_CONDITIONS = f"or({','.join(f'like(attributes/x,*{number}*)' for number in range(199))})".replace(
    "x,*", 'x,"*'
).replace("*)", '*")')


@pytest.mark.parametrize(
    ("command", "status", "error"),
    [
        (body("merge", "/attributes", TOO_MANY), 400, "things:merge.invalid"),
        (body("merge", "/attributes", {"a": {"b": TOO_MANY}}), 400, "things:merge.invalid"),
        (body("merge", "/attributes", {str(n): {"a": {}} for n in range(45_000)}), 413, "things:thing.toolarge"),
        (body("modify", "/attributes/x", [{}] * 90_000), 413, "things:thing.toolarge"),
        (body("modify", "/features", {f"k{n}": {} for n in range(40_000)}), 413, "things:thing.toolarge"),
        (body("modify", "/attributes/x", [[[1] * 9] * 100] * 90), 413, "things:thing.toolarge"),
        (body("modify", "/attributes/x", 1, condition=LIKE), 400, "rql.expression.expensive"),
        (body("modify", "/attributes/x", 1, condition=MANY_CONDITIONS), 400, "rql.expression.expensive"),
        (body("modify", "/attributes/x", 1, condition="eq(a,1)" * 100_000), 400, "rql.expression.invalid"),
        (body("retrieve", fields="a," * 400_000), 400, "json.fieldselector.invalid"),
        (body("retrieve", condition="not(" * 100_000), 400, "rql.expression.invalid"),
    ],
    ids=["nulls", "nested", "patch", "array", "features", "deep", "?", "likes", "filter", "fields", "levels"],
)
def test_no_command_holds_the_twin(command: Any, status: int, error: str) -> None:
    things: dict[str, Any] = {}
    list(fold(records(body("create", value={"attributes": {"x": "y"}}), LONG), things, Settings()))
    taken = [SignalRecord(START + 9, 0, 9, "c-9", json.dumps(command, separators=(",", ":")).encode())]
    assert len(taken[0].value or b"") <= 1_000_000
    with soon(0.1):
        (result,) = fold(taken, things, Settings())
    (told,) = [json.loads(message.value) for message in result.messages]
    assert (told["status"], told["value"]["error"]) == (status, error)


def test_a_value_may_be_written_with_blanks() -> None:
    pretty = json.dumps(body("modify", "/attributes/x", list(range(15_000))), indent=14).encode()
    assert len(pretty) > 250_000
    assert answer(body("create", value={}), body("modify", "/attributes", {}), pretty)["status"] == 201


def test_a_message_of_too_many_headers_is_none_of_the_twin() -> None:
    assert not run(body("create", value={}, **{f"x{number}": "" for number in range(1_001)})).messages
