"""Messages read by shape are decided as the full readers decide them: the same emissions, in order, and the same state.

Nearly all requests and acknowledgements are read from their bytes by shape. Here a shard without these readings is
compared, over random histories, orders, cuts, ticks and limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any
from unittest.mock import patch

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from ackstream.jobs.correlate import pending, readings
from ackstream.jobs.correlate.state import ACKS, DECLARATIONS, SIGNALS, TWIN_ACKS, Record
from ackstream.protocol.ledger import reply_id
from ackstream.testing.system import hash_of
from tests.harness.envelopes import THING, answers, record_headers, requests, spoiled, written
from tests.harness.pieces import MemoryPieces
from tests.jobs.correlate.shards import Run

SECOND = 1000
IDS = ["x", "y", "z"]
LABELS = ["a-ack", "b-ack", "c-ack"]


class FullRun(Run):
    """Reads all records with the full readers."""

    def process(self, records: Any, tick: int = 0) -> Any:
        """Process a batch as :class:`ShardRun` does."""
        with patch.multiple(readings, read_shaped=_unusual, read_single=_unusual):
            return super().process(records, tick)


def _unusual(*_: object) -> None:
    """Leave a message to the full readers."""


def _check(batches: Sequence[tuple[Sequence[Record], int]], *, aside: bool = False, **limits: Any) -> None:
    by_shape, full = (cls(store=MemoryPieces() if aside else None, **limits) for cls in (Run, FullRun))
    for records, watermark in batches:
        found, expected = by_shape.feed(*records, watermark=watermark), full.feed(*records, watermark=watermark)
        assert list(map(msgspec.structs.astuple, found)) == list(map(msgspec.structs.astuple, expected))
        assert by_shape.state == full.state
        assert by_shape.next_timeout == full.next_timeout


usual = st.tuples(
    st.integers(0, 90).map(lambda seconds: seconds * SECOND),
    st.sampled_from(
        ["request", "request", "ack", "ack", "ack", "ack", "acks", "response", "error", "garbage", "claim"]
    ),
    st.sampled_from(IDS),
    st.lists(st.sampled_from(LABELS), min_size=1, max_size=3, unique=True),
    st.sampled_from([200, 200, 204, 404, 408, 503, 99]),
    st.fixed_dictionaries(
        {},
        optional={
            "response-required": st.booleans(),
            "ditto-originator": st.just("nginx:me"),
            "traceparent": st.sampled_from(["00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "none"]),
            "ditto-weak-ack": st.booleans(),
            "content-type": st.sampled_from(["application/json", "text/plain"]),
            "version": st.sampled_from([2, "2"]),
            "x": st.sampled_from(["text", 'é"\\/\x7f', 1, None]),
            "Correlation-Id": st.just("z"),
        },
    ),
    st.sampled_from([None, {}, [1.50, 1e3], "text", 10**25]),
    st.sampled_from([THING, THING, THING, 'org.acme/lämp "1"', "org.acme/other"]),
)


@st.composite
def flow(draw: st.DrawFn) -> list[Any]:
    """Return a request, and acknowledgements of its labels soon after it."""
    time, _, key, labels, status, headers, value, thing = draw(usual)
    steps: list[Any] = [(time, "request", key, labels, status, {} if draw(st.booleans()) else headers, value, thing)]
    for label in draw(st.permutations(labels)):
        delay, (_, _, _, _, found, own, payload, _) = draw(st.integers(0, 6)), draw(usual)
        named = {} if draw(st.booleans()) else own
        steps.append((time + delay * SECOND // 4, "ack", key, [label], found, named, payload, thing))
    return steps


history = st.lists(st.one_of(usual.map(lambda step: [step]), flow()), max_size=8).map(
    lambda found: list(chain.from_iterable(found))
)


def _record(step: Any, offset: int, asked: dict[str, int]) -> Record:
    time, what, key, labels, status, headers, value, thing = step
    body: dict[str, Any] = {"topic": f"{thing}/things/twin/acks/{labels[0]}", "path": "/", "status": status}
    source, own = ACKS, {"correlation-id": key, **headers}
    if what == "request":
        source = SIGNALS
        asked[key] = offset
        del body["status"]
        body["topic"] = f"{thing}/things/twin/commands/modify"
        own |= {"requested-acks": labels, "timeout": f"{1 + status % 40}s"}
    elif what == "acks":
        entry = {"status": status, "headers": headers}
        body |= {"topic": f"{thing}/things/twin/acks", "value": dict.fromkeys(labels, entry)}
    elif what == "response":
        source, body["topic"] = TWIN_ACKS, f"{thing}/things/twin/commands/modify"
    elif what == "error":
        error = {"status": 404, "error": "things:thing.notfound" if status == 200 else "command.timeout"}
        source, body = TWIN_ACKS, {"topic": f"{thing}/things/twin/errors", "path": "/", "status": 404, "value": error}
    elif what == "claim":
        claim = msgspec.json.encode({"labels": labels, "lease_ms": 20 * SECOND})
        return Record(time, DECLARATIONS, 0, offset, 0, None, b"k", claim, len(claim))
    body["headers"] = own
    if value is not None and "value" not in body:
        body["value"] = value
    data = b"garbage" if what == "garbage" else written(body)
    named = {"reply-id": reply_id(key, "signals", 0, asked.get(key, 0)).encode()} if source == TWIN_ACKS else {}
    # two ids share a hash
    found = hash_of("x" if key == "z" else key)
    return Record(time, source, 0, offset, found, key, b"key", data, len(data), named)


@settings(max_examples=400, deadline=None)
@given(
    history,
    st.lists(st.integers(0, 20), max_size=4).map(sorted),
    st.lists(st.integers(0, 120), min_size=5, max_size=5).map(sorted),
    st.fixed_dictionaries(
        {},
        optional={
            "refuse_undeclared": st.booleans(),
            "slack": st.sampled_from([0, 2 * SECOND]),
            "recent_memory": st.just("1s"),
            "max_labels": st.just(2),
            "record_bytes": st.sampled_from([18_000, 17_000, 16_900]),
        },
    ),
    st.booleans(),
    st.booleans(),
)
def test_both_ways_of_reading_give_the_same_emissions_and_state(
    steps: list[Any],
    cuts: list[int],
    ticks: list[int],
    limits: dict[str, Any],
    aside: bool,  # noqa: FBT001
    in_order: bool,  # noqa: FBT001
) -> None:
    """Whatever the order of the records, and wherever batches are cut."""
    if in_order:
        steps = sorted(steps, key=lambda step: step[0])
    asked: dict[str, int] = {}
    records = [_record(step, offset, asked) for offset, step in enumerate(steps)]
    bounds = [0, *cuts, len(records)]
    batches = [(records[start:end], tick * SECOND) for (start, end), tick in zip(pairwise(bounds), ticks, strict=False)]
    with patch.multiple(pending, HOT_BYTES=0):
        _check([*batches, ([], 150 * SECOND), ([], 400 * SECOND)], aside=aside, **limits)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just(SIGNALS), spoiled(requests(IDS), places=1), record_headers),
            st.tuples(st.just(ACKS), spoiled(answers(IDS), places=1), st.just({})),
        ),
        max_size=12,
    ),
    st.integers(0, 12),
)
def test_messages_with_wrong_or_odd_parts_are_decided_alike(messages: list[Any], cut: int) -> None:
    """Any topic, any header, any type: in order."""
    records = []
    for number, (source, message, headers) in enumerate(messages):
        named = message.get("headers")
        found = named.get("correlation-id") if isinstance(named, dict) else None
        key = found if isinstance(found, str) else None if source == ACKS else f"signals-0-{number}"
        try:
            data = written(message)
            found_hash = hash_of(key or f"{source}-{number}")
        except UnicodeEncodeError:
            continue
        records.append(
            Record(2000 + 1000 * number, source, 0, number, found_hash, key, b"key", data, len(data), headers)
        )
    batches = [(records[:cut], 0), (records[cut:], 30 * SECOND), ([], 200 * SECOND)]
    _check(batches, reply_topics={"mine": 10**7})
