from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from ackstream.client.queue_messages import Location, _take

if TYPE_CHECKING:
    from ackstream.client.samples import Sample


def _record(offset: int, headers: list[tuple[str, bytes | None]] | None = None) -> Any:
    return SimpleNamespace(
        topic="m",
        partition=0,
        offset=offset,
        value=b"%d" % offset,
        headers=headers or [("client", b"p"), ("seq", b"1")],
        timestamp=offset,
    )


def test_the_application_does_not_get_the_headers_of_the_service() -> None:
    found: dict[Location, Sample] = {}
    own = [("client", b"p"), ("seq", b"1"), ("key", b"k"), ("colour", b"red"), ("colour", b"blue")]
    _take([_record(3, own)], [3], found)
    sample = found["m", 0, 3]
    assert (sample.key, sample.value, sample.headers, sample.timestamp_ms) == (b"k", b"3", {"colour": b"blue"}, 3)


@given(st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)))
def test_wanted_records_of_a_poll_are_taken_and_those_missing_between_them_are_given_up(
    wanted: set[int], there: set[int]
) -> None:
    found: dict[Location, Sample] = {}
    pending = sorted(wanted, reverse=True)
    _take([_record(offset) for offset in sorted(there)], pending, found)
    assert {offset for *_, offset in found} == wanted & there
    assert pending == sorted((offset for offset in wanted if offset > max(there, default=-1)), reverse=True)
