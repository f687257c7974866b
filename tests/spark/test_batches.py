from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from ackstream.spark.batches import _written

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Frame:
    """A batch that is in a reference cycle, as a data frame of Spark is."""

    def __init__(self) -> None:
        self.sparkSession = self.sparkContext = self

    def getLocalProperty(self, _name: str) -> str:  # noqa: N802 - Spark's name
        return "query"


@pytest.fixture
def no_collections() -> Iterator[None]:
    """Let nothing but the shell collect."""
    gc.disable()
    yield
    gc.unfreeze()
    gc.enable()


@pytest.mark.usefixtures("no_collections")
def test_a_batch_does_not_outlive_its_write_although_it_is_in_a_reference_cycle() -> None:
    calls: list[Any] = []
    write = _written("x", lambda frame, batch, query: calls.append((weakref.ref(frame), batch, query)))
    # the first batch is kept with all that it has loaded
    for number in range(3):
        write(_Frame(), number)  # type: ignore[arg-type]
    write(_Frame(), 3)  # type: ignore[arg-type]
    assert [call[1:] for call in calls] == [(number, "query") for number in range(4)]
    assert [call[0]() is None for call in calls[1:3]] == [True, True]


@pytest.mark.usefixtures("no_collections")
def test_a_batch_that_fails_is_freed_too() -> None:
    kept: list[Any] = []

    def fail(frame: Any, _batch: int, _query: str) -> None:
        kept.append(weakref.ref(frame))
        raise OSError("the store is away")

    write = _written("x", fail)
    for number in range(3):
        with pytest.raises(OSError, match="away"):
            write(_Frame(), number)  # type: ignore[arg-type]
    gc.collect()
    assert kept[1]() is None
