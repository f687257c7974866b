"""Records of the ledger become rows, and offsets become ranges that leave nothing out."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import TopicPartition
from msgspec import Raw
from pydantic import ValidationError
from pyspark.sql.datasource import InputPartition

from ackstream.client import BadParameterError
from ackstream.dataframe import outcomes
from ackstream.dataframe.outcomes import outcome_row
from ackstream.errors import StoppedError
from ackstream.protocol.ledger import AckRow, LedgerRecord, OutcomeRow, encode
from ackstream.settings import Kafka

ENDED = OutcomeRow("id-1", None, 424, "timeout", ("a:b", "c:d"), ["c:d"], 1_000, 3_500, 2_500, "reply", None)
weak = False
ACKS = [
    AckRow("id-1", "a:b", 200, weak, 1, 1, "accepted", "t", 0, 0, 0, Raw(b'{"rows":5}')),
    AckRow("id-1", "x:y", 200, weak, 1, 1, "late", "t", 0, 1, 0),
]
RECORD = encode(LedgerRecord("outcome", "reply", "q", 7, acks=ACKS, outcome=ENDED))


def test_an_outcome_is_a_row_with_its_accepted_acknowledgements() -> None:
    times = [datetime(1970, 1, 1, 0, 0, *parts, tzinfo=timezone.utc) for parts in ((1,), (3, 500_000))]
    expected = ("reply", "id-1", 424, "timeout", ["a:b", "c:d"], ["c:d"], *times, 2_500, [("a:b", 200, '{"rows":5}')])
    assert outcome_row(RECORD, {}) == expected


@pytest.mark.parametrize("value", [None, b"", b"{", b'{"kind": "ack", "id": "x", "query_id": "q", "batch_id": 1}'])
def test_other_records_are_no_rows(value: bytes | None) -> None:
    assert outcome_row(value, {}) is None


@pytest.mark.parametrize(
    ("wanted", "taken"),
    [
        ({"correlation_id": {"id-0", "id-1"}}, True),
        ({"correlation_id": {"id-0"}}, False),
        ({"status": {"424"}}, True),
        ({"status": {"200"}}, False),
        ({"completed_by": {"timeout"}, "label": {"a:b"}}, True),
        ({"completed_by": {"timeout"}, "label": {"x:y"}}, False),
        ({"completed_by": {"acknowledgements"}, "label": {"a:b"}}, False),
    ],
)
def test_options_choose_outcomes(wanted: dict[str, set[str]], *, taken: bool) -> None:
    chosen = {name: frozenset(values) for name, values in wanted.items()}
    assert (outcome_row(RECORD, chosen) is not None) == taken


def reader(monkeypatch: pytest.MonkeyPatch, first: dict[str, int], **kafka: Any) -> outcomes._Ledger:
    monkeypatch.setattr(outcomes._Ledger, "offsets", lambda _, time: {outcomes.TIMES["earliest"]: first}[time])
    return outcomes._Ledger(Kafka(**kafka), {}, 0)


@pytest.mark.parametrize(
    ("first", "start", "end", "expected"),
    [
        ({"0": 0, "1": 0}, {"0": 0, "1": 3}, {"0": 5, "1": 3}, [(0, 0, 5)]),
        # a partition that was added
        ({"0": 0, "1": 0}, {"0": 2}, {"0": 5, "1": 3}, [(0, 2, 5), (1, 0, 3)]),
        ({"0": 9, "1": 0}, {"0": 9}, {"0": 9, "1": 1}, [(1, 0, 1)]),
        # deleted, but read before
        ({"0": 9}, {"0": 5}, {"0": 5}, []),
    ],
)
def test_each_partition_with_records_is_a_range(
    monkeypatch: pytest.MonkeyPatch, first: dict[str, int], start: dict[str, int], end: dict[str, int], expected: Any
) -> None:
    assert [found.value for found in reader(monkeypatch, first).ranges(start, end)] == expected


def test_deleted_outcomes_stop_the_query_unless_the_settings_accept_that(monkeypatch: pytest.MonkeyPatch) -> None:
    first, start, end = {"0": 9}, {"0": 5}, {"0": 12}
    with pytest.raises(StoppedError, match="partition 0 begins at 9, but the query has read up to 5: read the table"):
        reader(monkeypatch, first).ranges(start, end)
    (found,) = reader(monkeypatch, first, on_data_loss="continue").ranges(start, end)
    assert found.value == (0, 9, 12)


@pytest.mark.parametrize(
    ("partition", "read"), [(None, []), (InputPartition(None), []), (InputPartition((1, 5, 7)), [5, 6])]
)
def test_a_task_reads_its_range_and_nothing_without_one(
    monkeypatch: pytest.MonkeyPatch, partition: InputPartition | None, read: list[int]
) -> None:
    offsets: list[int] = []

    class Reader(nullcontext[Any]):
        def __enter__(self) -> Any:
            return self

        def between(self, partition: TopicPartition, start: int, end: int) -> Iterator[Any]:
            for offset in range(start, end):
                assert partition == TopicPartition("ledger", 1)
                offsets.append(offset)
                yield SimpleNamespace(value=RECORD if offset == 6 else None)

    monkeypatch.setattr(outcomes, "TopicReader", Reader)
    monkeypatch.setattr(outcomes, "Connection", lambda _: SimpleNamespace(consumer=lambda topic: topic))
    rows = list(outcomes._Ledger(Kafka(), {}, 0).read(partition))
    assert (offsets, [row[0] for row in rows]) == (read, ["reply"] * bool(read))


def test_the_source_plans_readers_that_can_be_sent_to_workers(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('[kafka]\nbootstrap = "localhost:1"\n', "utf-8")
    options = {"settings": str(path), "status": "200, 204", "since": "2026-11-22T08:00:00Z"}
    source = outcomes._OutcomeSource(options)
    for found in (source.reader(None), source.streamReader(None)):
        copy = pickle.loads(pickle.dumps(found))
        assert copy.wanted == {"status": frozenset({"200", "204"})}
        assert copy.since == datetime(2026, 11, 22, 8, tzinfo=timezone.utc).timestamp() * 1000
    assert source.schema().startswith("id string, correlation_id string, status int")
    with pytest.raises(BadParameterError, match="There is no option labels, the nearest known one is label"):
        outcomes._OutcomeSource({"labels": "a:b"}).reader(None)
    with pytest.raises(ValidationError, match="must be earliest, latest, or a time with its zone"):
        outcomes._OutcomeSource({**options, "since": "yesterday"}).reader(None)
