"""Entries beside a checkpoint: found by hash, due by time, each given back once, and no file for longer than needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.spark import pieces
from ackstream.spark.pieces import Aside, Piece, PieceEntry, PieceList, Pieces, PieceStore, by_time, encode
from tests.harness.pieces import MemoryPieces
from tests.harness.power import after, recorded, survivors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

ENTRIES = st.lists(st.builds(PieceEntry, st.integers(-5, 5), st.integers(0, 20), st.binary(max_size=3)), max_size=12)
STEPS = st.lists(
    st.tuples(st.just("add"), ENTRIES)
    | st.tuples(st.just("recall"), st.lists(st.integers(-6, 6), unique=True))
    | st.tuples(st.just("due"), st.integers(0, 21)),
    max_size=12,
)


def _recall(aside: Pieces, hashes: np.ndarray) -> Iterator[PieceEntry]:
    return aside.take(place for places in aside.find(hashes).values() for place in places)


def _rows(entries: Iterable[PieceEntry]) -> list[tuple[int, int, bytes]]:
    return sorted((entry.hash, entry.time, bytes(entry.body)) for entry in entries)


@given(STEPS, st.sampled_from([8, 200, 10_000]))
def test_what_is_put_aside_comes_back_once_by_hash_or_time(steps: list[tuple[str, object]], largest: int) -> None:
    store, kept, model = MemoryPieces(), PieceList(), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "LARGEST", largest)
        for store.batch, (what, value) in enumerate(steps):
            # as a state does between two batches
            aside = Pieces(store, msgspec.msgpack.decode(msgspec.msgpack.encode(kept), type=PieceList))
            if what == "add" and value:
                aside.add(value)
                model += value
            elif what == "recall":
                found = list(_recall(aside, np.array(sorted(value), np.int64)))
                assert _rows(found) == _rows(entry for entry in model if entry.hash in value)
                model = [entry for entry in model if entry.hash not in value]
            elif what == "due":
                found = list(aside.due(value))
                assert _rows(found) == _rows(entry for entry in model if entry.time < value)
                assert list(map(by_time, found)) == sorted(map(by_time, found))
                model = [entry for entry in model if entry.time >= value]
            kept = aside.dump()
            assert _rows(aside.entries()) == _rows(model)
            assert len(aside) == len(model)
            earliest = min((entry.time for entry in model), default=None)
            assert (aside.next_time is None) == (earliest is None)
            assert aside.next_time is None or aside.next_time <= earliest
            # whatever an earlier state that may be read again names is there
            assert {reference.name for reference in kept.named} <= set(store.found)


def test_a_time_that_has_come_is_not_named_again() -> None:
    aside = Pieces(MemoryPieces())
    aside.add([PieceEntry(1, 10, b"a"), PieceEntry(2, 20, b"b"), PieceEntry(3, 30, b"c")])
    assert [entry.body for entry in _recall(aside, np.array([2]))] == [b"b"]
    assert [entry.body for entry in aside.due(11)] == [b"a"]
    assert aside.next_time == 30


def test_many_small_additions_make_few_pieces_and_write_each_entry_rarely() -> None:
    written = 0

    class Counting(MemoryPieces):
        def write(self, data: bytes) -> str:
            nonlocal written
            written += Piece(memoryview(data)).count
            return super().write(data)

    aside = Pieces(Counting())
    for number in range(256):
        aside.add([PieceEntry(number * 10 + index, 0, b"x" * 100) for index in range(10)])
    assert len(aside.dump().named) <= 9
    assert written <= 10 * 2560


def test_the_same_entries_have_the_same_file_and_a_repeated_batch_writes_it_once(tmp_path: Path) -> None:
    entries = [PieceEntry(2, 1, b"b"), PieceEntry(1, 2, b"a")]
    assert encode(entries) == encode(entries[::-1])
    names = {PieceStore(str(tmp_path), 7, 2).write(encode(entries)) for _ in range(2)}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert [path.stat().st_mode & 0o077 for path in tmp_path.iterdir()] == [0]


def test_a_piece_that_was_written_survives_a_power_failure(tmp_path: Path) -> None:
    data = encode([PieceEntry(1, 2, b"body" * 100)])
    with recorded(tmp_path) as moments:
        name = PieceStore(str(tmp_path / "pieces" / "3"), 7, 2).write(data)
    assert {files.get(f"pieces/3/{name}") for files in survivors(moments)} == {None, data}
    assert {files.get(f"pieces/3/{name}") for files in after(moments)} == {data}


def test_a_repeated_batch_repairs_a_piece_that_is_not_whole(tmp_path: Path) -> None:
    data, files = encode([PieceEntry(1, 2, b"body" * 100)]), PieceStore(str(tmp_path), 7, 2)
    path = tmp_path / files.write(data)
    path.write_bytes(data[:-1])
    assert path == tmp_path / files.write(data)
    assert path.read_bytes() == data


def test_the_draft_of_an_execution_that_was_killed_goes_with_the_files_of_its_batch(tmp_path: Path) -> None:
    (tmp_path / "7-00.abc.part").write_bytes(b"half")
    for batch, left in ((9, 1), (10, 0)):
        PieceStore(str(tmp_path), batch, 2).clear(set())
        assert len(list(tmp_path.iterdir())) == left


def test_files_are_deleted_when_no_state_that_may_be_read_again_names_them(tmp_path: Path) -> None:
    kept, sizes = PieceList(), []
    for batch in range(12):
        aside = Pieces(PieceStore(str(tmp_path), batch, 3), kept)
        list(_recall(aside, np.array([batch - 1])))
        aside.add([PieceEntry(batch, 0, b"x")])
        kept = aside.dump()
        sizes.append(len(list(tmp_path.iterdir())))
    # of the last batches, and one that is named
    assert max(sizes) <= 5
    # what an attempt left that was not finished goes, too
    (tmp_path / "1-00").touch()
    aside = Pieces(PieceStore(str(tmp_path), 20, 3), kept)
    aside.add([PieceEntry(99, 0, b"x")])
    aside.dump()
    assert not (tmp_path / "1-00").exists()


def test_few_files_stay_mapped_though_a_worker_has_read_many(tmp_path: Path) -> None:
    kept = PieceList()
    for batch in range(200):
        aside = Pieces(PieceStore(str(tmp_path), batch, 3), kept)
        list(_recall(aside, np.array([batch - 1])))
        aside.add([PieceEntry(batch, 0, b"x")])
        kept = aside.dump()
    # what is mapped keeps its space on the disk when it has been deleted
    assert pieces._mapped.cache_info().currsize <= 64


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(path.read_bytes()[:-1])])
def test_a_file_that_is_missing_or_cut_off_is_named(tmp_path: Path, damage: object) -> None:
    files = PieceStore(str(tmp_path), 0, 2)
    aside = Pieces(files)
    aside.add([PieceEntry(1, 10, b"body")])
    (path,) = tmp_path.iterdir()
    damage(path)
    with pytest.raises(OSError, match=f"The checkpoint is damaged: its file {path} is missing or cut off"):
        list(_recall(aside, np.array([1])))


def test_without_a_disk_everything_stays_in_the_state() -> None:
    assert Aside().store(1) is None
