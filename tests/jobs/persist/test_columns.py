from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_type_hints

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.jobs.persist.account import fold
from ackstream.jobs.persist.admission import Entitlement, Rules
from ackstream.jobs.persist.columns import Columns, Fact, MessageRun

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackstream.jobs.persist.account import RefusedRun

RULES = Rules(entitlements=(Entitlement(("*",), ("open",)),), max_bytes=100)


def _columns(facts: Sequence[Fact]) -> Columns:
    hints = get_type_hints(Fact)
    types = {name: pa.int64() if hint is int else pa.string() for name, hint in hints.items()}
    rows = [msgspec.structs.asdict(fact) for fact in facts]
    return Columns.of(pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in types.items()}))


def _fact(offset: int, seq: Any, client: str | None = "p", **fields: Any) -> Fact:
    text = None if seq is None else str(seq)
    return Fact(0, offset, 5, 10, client, text, **({"ack": "persisted", "topic": "open"} | fields))


def _shapes(*facts: Fact) -> list[Any]:
    return [
        (item.numbers[0], item.numbers[-1]) if isinstance(item, MessageRun) else item.seq for item in _columns(facts)
    ]


def test_what_goes_on_by_one_is_a_run_also_between_others() -> None:
    facts = [_fact(0, 1), _fact(1, 7, "q"), _fact(2, 2), _fact(3, 8, "q"), _fact(4, 3), _fact(5, 9, "q")]
    assert _shapes(*facts) == [(1, 3), (7, 9)]


@pytest.mark.parametrize(
    "odd",
    [
        _fact(2, 4),
        _fact(2, 3, topic="secret"),
        _fact(2, 3, ack="none"),
        _fact(2, 3, cid="c"),
        _fact(2, 3, ttl="5"),
        _fact(2, 3, command="logon"),
        _fact(2, "x"),
        _fact(2, None),
        _fact(2, "9" * 30),
        Fact(0, 2, 86_400_005, 10, "p", "3", ack="persisted", topic="open"),
    ],
)
def test_what_differs_ends_a_run(odd: Fact) -> None:
    assert _shapes(_fact(0, 1), _fact(1, 2), odd) == [(1, 2), odd.seq]


def test_no_records_are_no_facts() -> None:
    assert list(_columns([])) == []


ODDITIES = [{"topic": "secret"}, {"command": "logon", "cid": "l"}, {"size": 500}, {"cid": "c"}]
FACTS = st.lists(
    st.tuples(
        st.integers(1, 9),
        st.sampled_from(["p", "p", "q", None]),
        st.sampled_from(
            [{}, {}, {}, {"topic": "secret"}, {"command": "logon", "cid": "l"}, {"size": 500}, {"cid": "c"}]
        ),
    ),
    max_size=40,
)


def _offset(refused: RefusedRun) -> int:
    return refused.offset


@given(drawn=FACTS, ordered=st.booleans())
def test_runs_come_to_what_their_messages_come_to_one_by_one(drawn: list[Any], ordered: bool) -> None:  # noqa: FBT001
    if ordered:
        drawn.sort(key=lambda entry: entry[0])
    facts = []
    for offset, (seq, client, fields) in enumerate(drawn):
        named = {name: value for name, value in fields.items() if name != "size"}
        facts.append(msgspec.structs.replace(_fact(offset, seq, client, **named), size=fields.get("size", 10)))
    singly, together = (fold(given, {}, RULES, floor_ms=500, batch=7) for given in (facts, _columns(facts)))
    assert sorted(together.refused, key=_offset) == sorted(singly.refused, key=_offset)
    assert together.changed == singly.changed
    assert {record.client: record for record in together.stored} == {record.client: record for record in singly.stored}
    for client in singly.changed:
        assert [ack for name, ack in together.acks if name == client] == [
            ack for name, ack in singly.acks if name == client
        ]
