from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from ackstream.errors import StartError
from ackstream.kafka.topics import TOPIC_ID, compare_topics
from ackstream.spark.checkpoint import REMEMBERED, Checkpoint, Planned, compare_batches
from tests.harness.local_files import recorded
from tests.harness.power import after, survivors

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.mark.parametrize(("batch", "committed"), [(7, -1), (7, 6), (7, 7)])
def test_a_checkpoint_that_is_as_new_as_the_tables_passes_and_so_does_a_batch_to_replay(
    batch: int, committed: int
) -> None:
    compare_batches("/c/x", batch, committed, "begin anew")


def test_a_checkpoint_that_is_older_than_the_tables_is_refused_with_both_batches_and_the_ways_out() -> None:
    with pytest.raises(StartError) as refused:
        compare_batches("/c/x", 7, 8, "begin anew")
    assert str(refused.value) == (
        "The checkpoint /c/x is older than the tables: it ends with batch 7, they have batch 8. It is an"
        " older copy, and the records that it reads now would be skipped silently as already stored. Put the newest"
        " checkpoint back, or begin anew."
    )


SIGNALS, ACKS = f"{TOPIC_ID}signals", f"{TOPIC_ID}acks"


@pytest.mark.parametrize("theirs", [{SIGNALS: "one"}, {}, {SIGNALS: "one", ACKS: "gone"}, {"x.shards": 6}])
def test_the_same_topics_pass_and_so_do_those_that_were_not_remembered(theirs: dict[str, object]) -> None:
    compare_topics({SIGNALS: "one", "x.shards": 3}, theirs, "The checkpoint /c/x", "begin anew")


def test_another_topic_of_the_same_name_is_refused_with_both_ids_and_the_ways_out() -> None:
    with pytest.raises(StartError) as refused:
        compare_topics({SIGNALS: "1", ACKS: "two"}, {SIGNALS: "1", ACKS: "six"}, "The checkpoint /c/x", "begin anew")
    assert str(refused.value) == (
        "The checkpoint /c/x counts offsets of the topic acks with the id six, but the topic now has the id two: it was"
        " re-created, or kafka.bootstrap names another cluster. Correct kafka.bootstrap, or begin anew."
    )


def test_a_checkpoint_is_as_far_as_the_newest_batch_that_it_has_planned(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = Checkpoint(spark, str(tmp_path))
    assert (checkpoint.query_id, checkpoint.planned) == (None, None)
    _write(tmp_path, "metadata", REMEMBERED)
    assert (checkpoint.query_id, checkpoint.planned) == ("q", None)
    (tmp_path / "offsets").mkdir()
    assert checkpoint.planned is None
    _write(tmp_path, "offsets/9", "offsets/10", "offsets/.10.crc", "offsets/11.tmp", "commits/9")
    assert checkpoint.planned == Planned("q", 10, unfinished=True)
    _write(tmp_path, "commits/10")
    assert checkpoint.planned == Planned("q", 10)


def test_after_a_power_failure_what_a_checkpoint_remembers_is_as_it_was_or_new(
    spark: SparkSession, tmp_path: Path
) -> None:
    former, new = {"shards": 8, "runs": {"1": None}}, {"shards": 8, "runs": {"2": None}}
    Checkpoint(spark, str(tmp_path)).remember(former)
    with recorded(spark._jvm, spark._jsc.hadoopConfiguration(), tmp_path) as moments:
        Checkpoint(spark, str(tmp_path)).remember(new)
    written = [json.dumps(one).encode() for one in (former, new)]
    assert {files.get(REMEMBERED) for files in survivors(moments)} == set(written)
    assert {files.get(REMEMBERED) for files in after(moments)} == {written[1]}


def test_a_checkpoint_keeps_the_last_batches_alone(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(30):
        (tmp_path / "in" / str(number)).write_text("x")
    stream = spark.readStream.option("maxFilesPerTrigger", 1).text(str(tmp_path / "in"))
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    kept = sorted(int(path.name) for path in (tmp_path / "checkpoint/offsets").iterdir() if path.name.isdecimal())
    assert (kept[-1], len(kept) <= 21) == (29, True)


WHOLE = (
    "metadata", REMEMBERED, "offsets/7", "offsets/8", "offsets/9", "commits/7", "commits/8", "commits/9",
    "state/0/0/9.delta", "state/0/1/9.delta", "state/0/0/10.delta", "state/0/1/10.delta",
)  # fmt: skip
"""A checkpoint whose batch 9 is finished; a batch writes the state that the next one reads."""
TEXTS = {
    "metadata": '{"id":"q"}',
    REMEMBERED: '{"x.shards":6}',
    "offsets": 'v1\n{"batchWatermarkMs":0}\n{"signals":{"0":1}}',
    "commits": 'v1\n{"nextBatchWatermarkMs":0}',
    "state": "",
}


def _write(location: Path, *names: str) -> None:
    for name in names:
        (location / name).parent.mkdir(parents=True, exist_ok=True)
        (location / name).write_text(TEXTS[name.partition("/")[0]], "utf-8")


@pytest.mark.parametrize("text", ["", "v1\n", "v1\n{}\n{broken"])
@pytest.mark.parametrize("name", ["metadata", REMEMBERED, "offsets/8", "offsets/9", "commits/9"])
def test_a_damaged_file_of_a_checkpoint_is_named_with_the_way_out(
    spark: SparkSession, tmp_path: Path, name: str, text: str
) -> None:
    _write(tmp_path, *WHOLE)
    (tmp_path / name).write_text(text, "utf-8")
    wanted = f"The file {tmp_path}/{name} is damaged .* put a copy of the checkpoint back, or start with a new one"
    with pytest.raises(StartError, match=wanted):
        _ = Checkpoint(spark, str(tmp_path)).planned


OFFSETS, COMMITS = [f"offsets/{batch}" for batch in (7, 8, 9)], [f"commits/{batch}" for batch in (7, 8, 9)]


@pytest.mark.parametrize(
    ("without", "named"),
    [
        (["metadata"], "metadata"),
        (["metadata", *OFFSETS], "metadata"),
        (["metadata", *COMMITS], "metadata"),
        ([REMEMBERED], REMEMBERED),
        (["offsets/9"], "offsets/9"),
        (["offsets/8", "offsets/9"], "offsets/9"),
        # its state shows that the batch has run
        (["offsets/9", "commits/9"], "offsets/9"),
        ([*OFFSETS, *COMMITS], "offsets/0"),
        (["offsets/8"], "offsets/8"),
    ],
)
def test_a_missing_file_of_a_checkpoint_is_named_with_the_way_out(
    spark: SparkSession, tmp_path: Path, without: list[str], named: str
) -> None:
    _write(tmp_path, *(name for name in WHOLE if name not in without))
    with pytest.raises(StartError) as refused:
        _ = Checkpoint(spark, str(tmp_path)).planned
    assert str(refused.value) == (
        f"The file {tmp_path}/{named} is missing: put a copy of the checkpoint back, or start with a new one. See"
        " docs/operate/troubleshooting.md."
    )


@pytest.mark.parametrize("without", [["commits/8"], ["commits/9"], ["commits/8", "commits/9"], COMMITS])
def test_a_checkpoint_without_commits_is_whole_as_a_batch_is_planned_after_the_one_before(
    spark: SparkSession, tmp_path: Path, without: list[str]
) -> None:
    _write(tmp_path, *(name for name in WHOLE if name not in without))
    assert Checkpoint(spark, str(tmp_path)).planned == Planned("q", 9, unfinished="commits/9" in without)
