from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ackstream.client.queue_link import Content, Place, _take


def _record(offset: int, headers: list[tuple[str, bytes | None]] | None = None) -> Any:
    return SimpleNamespace(
        topic="m", partition=0, offset=offset, value=b"%d" % offset, headers=headers or [], timestamp=offset
    )


def test_headers_of_the_service_are_not_the_applications() -> None:
    found: dict[Place, Content] = {}
    own = [("client", b"p"), ("seq", b"1"), ("key", b"k"), ("colour", b"red"), ("colour", b"blue")]
    _take([_record(3, own)], [3], found)
    assert found == {("m", 0, 3): Content(b"k", b"3", {"colour": b"blue"}, 3)}


@given(st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)))
def test_what_a_poll_brings_is_taken_and_what_it_passed_over_is_given_up(wanted: set[int], there: set[int]) -> None:
    found: dict[Place, Content] = {}
    pending = sorted(wanted, reverse=True)
    _take([_record(offset) for offset in sorted(there)], pending, found)
    assert {offset for *_, offset in found} == wanted & there
    assert pending == sorted((offset for offset in wanted if offset > max(there, default=-1)), reverse=True)
