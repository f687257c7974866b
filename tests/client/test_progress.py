from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ackstream.client.progress import Progress


def test_the_position_is_before_the_first_record_that_is_not_done():
    progress: Progress[str] = Progress()
    works = [progress.begin("p", offset) for offset in range(10, 14)]
    works[1].remaining = 2
    assert progress.positions() == {"p": 11}
    works[1].remaining -= 1
    assert progress.positions() == {"p": 11}
    works[1].remaining -= 1
    assert progress.positions() == {"p": 14}


def test_a_partition_without_records_is_where_it_started():
    progress: Progress[str] = Progress()
    progress.start("p", 7)
    progress.start("p", 3)
    assert progress.positions() == {"p": 7}


def test_a_record_is_taken_up_once():
    progress: Progress[str] = Progress()
    assert progress.begin("p", 5)
    assert progress.begin("p", 5) is None
    assert progress.begin("p", 4) is None
    # offsets may have gaps
    assert progress.begin("p", 9)


def test_what_belongs_to_others_is_forgotten():
    progress: Progress[str] = Progress()
    for place in "ab":
        progress.begin(place, 1)
    progress.keep(["b", "c"])
    assert progress.positions() == {"b": 2}
    # it may come back, and then begins anew
    assert progress.begin("a", 0)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20), st.randoms(use_true_random=False))
def test_no_position_passes_unfinished_work_and_all_done_is_the_end(answers, random):
    progress: Progress[str] = Progress()
    works = []
    for offset, number in enumerate(answers):
        work = progress.begin("p", offset)
        work.remaining = number
        works.append(work)
    parts = [work for work in works for _ in range(work.remaining)]
    random.shuffle(parts)
    for part in parts:
        assert progress.positions()["p"] == min(work.offset for work in works if work.remaining)
        part.remaining -= 1
    assert progress.positions() == {"p": len(answers)}
