"""What a migrated checkpoint takes from the old one; the whole of it is an integration test of correlate."""

from __future__ import annotations

import json
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from ackstream.jobs.correlate.job import JOB
from ackstream.settings import Settings
from ackstream.spark import migration
from ackstream.spark.migration import carry_commit, carry_offsets, migrate

OLD = """v1
{"batchWatermarkMs":1795333533901,"batchTimestampMs":1795333539604,"conf":{"spark.sql.shuffle.partitions":"2"}}
{"signals":{"0":112},"acks":{"0":189},"clock":{"0":50}}
{"reservoirVersion":3}"""
NEW = """v1
{"batchWatermarkMs":0,"batchTimestampMs":1795333900000,"conf":{"spark.sql.shuffle.partitions":"5"}}
{"logOffset":0}"""


def test_offsets_watermark_and_time_are_those_of_the_last_batch_and_the_conf_is_that_of_the_new_states() -> None:
    version, metadata, *sources = carry_offsets(OLD, NEW).splitlines()
    assert (version, sources) == ("v1", OLD.splitlines()[2:])
    assert json.loads(metadata) == {
        "batchWatermarkMs": 1795333533901,
        "batchTimestampMs": 1795333539604,
        "conf": {"spark.sql.shuffle.partitions": "5"},
    }


@pytest.mark.parametrize("ids", [{}, {"stateUniqueIds": {"0": [["a"], ["b"]]}}])
def test_the_next_batch_has_the_watermark_it_would_have_had_and_the_ids_of_the_new_states(ids: Any) -> None:
    old = 'v1\n{"nextBatchWatermarkMs":1795333536169,"stateUniqueIds":{"0":[["old"]]}}'
    version, metadata = carry_commit(old, f"v2\n{json.dumps({'nextBatchWatermarkMs': 0, **ids})}").splitlines()
    assert (version, json.loads(metadata)) == ("v2", {"nextBatchWatermarkMs": 1795333536169, **ids})


def test_a_migration_before_the_first_start_of_a_release_creates_the_topics_that_it_adds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[Any] = []
    monkeypatch.setattr(migration, "prepare", lambda _settings, topics, _party: done.append(topics))
    monkeypatch.setattr(migration, "clock", lambda *_: done.append("clock") or nullcontext())
    known = SimpleNamespace(exists=lambda _name: True, at=lambda _location: known)
    monkeypatch.setattr(migration, "Checkpoint", lambda *_: known)
    monkeypatch.setattr(migration, "_migrate", lambda *_: done.append("migrated"))
    spark: Any = None
    migrate(spark, Settings(), JOB)
    assert done == [JOB.topics, "clock", "migrated"]
