"""What is made of what was measured: the tables of the pages, the parts of the profile."""

from __future__ import annotations

import json

import pytest

from benchmarks import goals, pages
from benchmarks.goals import Goal
from benchmarks.sampling import OTHER_PARTS, parts

RESULTS = {"r": {"figures": {"a": 2.5, "b": [{"n": 1, "ms": 40.0}, {"n": 2, "ms": 10.0}], "c": {"x": 3, "y": 4}}}}


@pytest.mark.parametrize(
    ("goal", "row"),
    [
        (Goal("f", "r", ("a",), 2.5), ("f", "≤ 2.5", "2.5", "yes", "`r`")),
        (Goal("f", "r", ("a",), 2.4), ("f", "≤ 2.4", "2.5", "**no**", "`r`")),
        (Goal("f", "r", ("a",), 2.4, least=True), ("f", "≥ 2.4", "2.5", "yes", "`r`")),
        (Goal("f", "r", ("a",), 2.6, least=True), ("f", "≥ 2.6", "2.5", "**no**", "`r`")),
        (Goal("f", "r", ("b", {"n": 2}, "ms"), 10), ("f", "≤ 10", "10", "yes", "`r`")),
        (Goal("f", "r", ("b", {"n": 1}, "ms"), 3, relative=("b", {"n": 2}, "ms")), ("f", "≤ 3", "4", "**no**", "`r`")),
        (Goal("f", "r", ("c",), 6), ("f", "≤ 6", "7", "**no**", "`r`")),
        (Goal("f", "r", ("a",), 2, unit=2), ("f", "≤ 2", "1.25", "yes", "`r`")),
        (Goal("f", "other", ("a",), 1), ("f", "≤ 1", "-", "not measured", "`other`")),
    ],
)
def test_a_goal_is_reached_or_not_by_the_figure_of_its_result(goal: Goal, row: tuple[str, ...]) -> None:
    assert goal.row(RESULTS) == row


def test_the_table_of_goals_is_made_of_the_results() -> None:
    assert pages.part(pages.README.read_text("utf-8"), "goals") == goals.table(goals.results())


def test_the_numbers_of_the_first_page_are_made_of_the_results() -> None:
    shown = pages.part(pages.FRONT.read_text("utf-8"), "numbers")
    assert shown == goals.numbers(goals.results())
    assert "| - |" not in shown


@pytest.mark.parametrize("name", pages.PARTS)
def test_the_other_tables_are_made_of_the_results_too(name: str) -> None:
    page, result, text = pages.PARTS[name]
    report = json.loads((pages.RESULTS / f"{result}.json").read_text("utf-8"))
    assert pages.part(page.read_text("utf-8"), name) == text(report)


KAFKA, ARROW = "org.apache.kafka.clients.consumer.Fetcher.fetch", "org.apache.arrow.vector.IntVector.set"


@pytest.mark.parametrize(
    ("thread", "frames", "part"),
    [
        # what a part calls is its own, unless it is another part's
        ("Executor task launch worker", ["java.util.HashMap.get", KAFKA, ARROW], "Kafka source"),
        ("Executor task launch worker", ["java.util.HashMap.get", ARROW, KAFKA], "Arrow to Python and back"),
        ("stdout writer for python3", [ARROW], "Arrow to Python and back"),
        ("Executor task launch worker", ["java.lang.Thread.run"], OTHER_PARTS),
        ("kafka-producer-network-thread", [KAFKA], None),
    ],
)
def test_a_sample_is_counted_for_the_innermost_part_of_its_task(
    thread: str, frames: list[str], part: str | None
) -> None:
    assert dict(parts([(thread, frames)])) == ({} if part is None else {part: 1})
