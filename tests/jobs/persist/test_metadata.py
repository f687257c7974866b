from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_type_hints

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.jobs.persist.admission import Admission
from ackstream.jobs.persist.fold import fold
from ackstream.jobs.persist.metadata import MessageMetadata, MessageRun, read_metadata
from ackstream.settings import Persist, PublishRule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ackstream.jobs.persist.state import RejectedRecord

ADMISSION = Admission(Persist(entitlements=(PublishRule(clients=("*",), topics=("open",)),), max_message_bytes=100))


def _table(messages: Sequence[MessageMetadata]) -> Iterator[MessageMetadata | MessageRun]:
    hints = get_type_hints(MessageMetadata)
    types = {name: pa.int64() if hint is int else pa.string() for name, hint in hints.items()}
    rows = [msgspec.structs.asdict(message) for message in messages]
    return read_metadata(pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in types.items()}))


def _message(offset: int, seq: Any, client: str | None = "p", **fields: Any) -> MessageMetadata:
    text = None if seq is None else str(seq)
    return MessageMetadata(0, offset, 5, 10, client, text, **({"ack": "persisted", "topic": "open"} | fields))


def _shapes(*messages: MessageMetadata) -> list[Any]:
    return [
        (item.numbers[0], item.numbers[-1]) if isinstance(item, MessageRun) else item.seq for item in _table(messages)
    ]


def test_consecutive_numbers_are_a_run_even_interleaved_with_other_clients() -> None:
    messages = [
        _message(0, 1),
        _message(1, 7, "q"),
        _message(2, 2),
        _message(3, 8, "q"),
        _message(4, 3),
        _message(5, 9, "q"),
    ]
    assert _shapes(*messages) == [(1, 3), (7, 9)]


@pytest.mark.parametrize(
    "odd",
    [
        _message(2, 4),
        _message(2, 3, topic="secret"),
        _message(2, 3, ack="none"),
        _message(2, 3, cid="c"),
        _message(2, 3, session="s"),
        _message(2, 3, ttl="5"),
        _message(2, 3, command="logon"),
        _message(2, "x"),
        _message(2, None),
        _message(2, "9" * 30),
        MessageMetadata(0, 2, 86_400_005, 10, "p", "3", ack="persisted", topic="open"),
    ],
)
def test_any_other_difference_ends_a_run(odd: MessageMetadata) -> None:
    assert _shapes(_message(0, 1), _message(1, 2), odd) == [(1, 2), odd.seq]


def test_an_empty_batch_has_no_messages() -> None:
    assert list(_table([])) == []


MESSAGES = st.lists(
    st.tuples(
        st.integers(1, 9),
        st.sampled_from(["p", "p", "q", None]),
        st.sampled_from(
            [{}, {}, {}, {"topic": "secret"}, {"command": "logon", "cid": "l"}, {"size": 500}, {"cid": "c"}]
        ),
    ),
    max_size=40,
)


def _offset(rejected: RejectedRecord) -> int:
    return rejected.offset


@given(drawn=MESSAGES, ordered=st.booleans())
def test_a_run_gives_the_same_result_as_its_messages_one_by_one(drawn: list[Any], ordered: bool) -> None:  # noqa: FBT001
    if ordered:
        drawn.sort(key=lambda entry: entry[0])
    messages = []
    for offset, (seq, client, fields) in enumerate(drawn):
        named = {name: value for name, value in fields.items() if name != "size"}
        messages.append(msgspec.structs.replace(_message(offset, seq, client, **named), size=fields.get("size", 10)))
    singly, together = (fold(given, {}, ADMISSION, floor_ms=500, batch=7) for given in (messages, _table(messages)))
    assert sorted(together.rejected, key=_offset) == sorted(singly.rejected, key=_offset)
    assert together.changed == singly.changed
    assert {record.client: record for record in together.stored} == {record.client: record for record in singly.stored}
    for client in singly.changed:
        assert [ack for name, ack in together.acks if name == client] == [
            ack for name, ack in singly.acks if name == client
        ]
