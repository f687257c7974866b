from __future__ import annotations

import io
import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from ackstream.cli.monitoring import sparkline, watch_screen
from ackstream.cli.tables import _story as story
from ackstream.cli.terminal import Terminal, escaped, moment, plain, result_table, span
from ackstream.observe.feeds import JobSign, Lag, Overview
from ackstream.observe.outcomes import Meter
from ackstream.observe.planes import DeadLetter, DestinationLine, PlanesView
from ackstream.observe.progress import PublisherLine, QueueLine, ReaderLine


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (None, ""), (0, "0ms"), (999, "999ms"), (1_000, "1s"), (1_240, "1.24s"), (12_449, "12.4s"), (59_999, "60s"),
        (60_000, "1m"), (125_400, "2m05s"), (3_600_000, "1h"), (11_220_000, "3h07m"),
    ],
)  # fmt: skip
def test_a_span_is_short(milliseconds: int | None, text: str):
    assert span(milliseconds) == text


NOW = 60_000


def planes(text: str = "orders") -> PlanesView:
    """Return something of everything, named by a text."""
    return PlanesView(
        [PublisherLine(text, 1_234, 56, 7, 50_000)],
        [ReaderLine(text, "Logger", durable=True, writers=1, acknowledged=8, behind=9, at=50_000)],
        [QueueLine(text, 2, 3, 4_000, 2, 5, 6, 7, 1, 50_000)],
        [DestinationLine(text, 2, 50_000)],
        [DeadLetter("signals-0-7", 50_000, text, text, text, text, 9)],
        3,
        {"publishers": 1, "readers": 1, "queues": 1},
        {"messages": [0] * 58 + [1, 8], "changes": [0] * 60},
        {"publishers": 50_000},
    )


def watched(text: str = "orders", note: str = "") -> Overview:
    meter = Meter(60_000)
    for number in range(1_100):
        meter.decided(str(number), 50_000, "answered", 420)
    meter.decided("t", 50_000, "timed out", 65_400)
    meter.opened("o", 56_000)
    jobs = [
        JobSign("correlate", 900, alive=True, lags=[Lag(text, "g", 1_234)]),
        JobSign("archive", 65_000, alive=False, lags=[]),
    ]
    return Overview(NOW, meter.snapshot(NOW), meter.trends(NOW), 58_000, jobs, planes(text), note)


def shown(width: int, note: str = "") -> str:
    file = io.StringIO()
    Console(file=file, width=width).print(watch_screen(watched(note=note)))
    return file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_screen_is_whole_in_a_narrow_terminal(width: int):
    lines = shown(width).splitlines()
    assert all(len(line) <= width for line in lines)
    rows = [line.split() for line in lines if line.strip()]
    assert ["answered", "1,100", "1,100", "420ms", "420ms"] in rows
    assert ["timed", "out", "1", "1", "1m05s", "1m05s"] in rows
    assert ["in", "flight", "1"] in rows
    assert "oldest 4s, newest 2s ago" in shown(width)


def test_the_screen_shows_all_planes():
    rows = [line.split() for line in shown(120).splitlines()]
    assert ["correlate", "alive", "orders", "1,234"] in rows
    assert ["archive", "silent", "for", "1m05s"] in rows
    assert ["orders", "1,234", "56", "7", "10s"] in rows
    assert ["orders", "Logger", "8", "9", "10s"] in rows
    assert ["orders", "2", "3", "4s", "6", "7", "1"] in rows
    assert ["orders", "2"] in rows
    assert ["messages", "9", "▁█"] in rows
    assert ["answered", "1,100", "█"] in rows
    assert not any(row[:1] == ["changes"] for row in rows)


def test_planes_without_anything_to_show_take_no_place():
    empty = PlanesView([], [], [], [], [], 0, {}, {"messages": [0] * 60}, {})
    file = io.StringIO()
    Console(file=file, width=80).print(watch_screen(watched()._replace(planes=empty, jobs=[])))
    assert not {"publisher", "reader", "queue", "job", "dead"} & set(file.getvalue().split())


@given(st.text(min_size=1, max_size=20))
def test_no_name_of_anything_is_markup_or_controls_the_terminal(text: str):
    output = io.StringIO()
    Terminal(file=output, soft_wrap=True).print(watch_screen(watched(text, text)))
    assert output.getvalue().count(escaped(text)) >= 5
    assert not any(ord(letter) < 32 and letter != "\n" for letter in output.getvalue())


def test_a_moment_is_local_and_has_its_day_unless_that_is_today(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        assert moment(1_795_000_000_000) == "2026-11-18 16:36:40"
        assert re.fullmatch(r"\d\d:\d\d:\d\d", moment(time.time_ns() // 1_000_000))
    finally:
        monkeypatch.undo()
        time.tzset()


def test_bytes_are_texts_at_any_depth():
    assert plain({"a": [b"x", {"b": b"\xff"}], "c": 1}) == {"a": ["x", {"b": "/w=="}], "c": 1}


def test_a_note_is_shown_below():
    assert shown(80, "Kafka does not answer").rstrip().endswith("Kafka does not answer")


def _printed(shown: Any) -> str:
    output = io.StringIO()
    Terminal(file=output, soft_wrap=True).print(shown)
    return output.getvalue()


@given(st.text(), st.text(), st.text())
def test_what_others_wrote_is_shown_as_it_is_in_tables_and_stories(detail: str, content: str, label: str):
    record = {"occurred_at": "now", "event": "request", "label": label, "status": 200, "detail": detail, "id": "i"}
    told = _printed(story([record | {"content": content, "traceparent": None, "terms": None}]))
    assert f"now request {escaped(label)} 200" in told
    assert escaped(detail) in told
    assert all(escaped(line) in told for line in content.splitlines())


@pytest.mark.parametrize("text", ["[true,false]", '{"x":[red]}', "closing [/attributes/on] tag", ":smile:", "\x1b[31m"])
def test_no_text_is_markup(text: str):
    assert escaped(text) in _printed(result_table(["event", "content"], [["request", text]]))


def test_the_content_of_a_story_is_a_line_with_its_texts_and_numbers_as_they_were_written():
    record = {"occurred_at": "now", "event": "outcome", "label": None, "status": 200, "detail": "timeout", "id": "i"}
    told = _printed(story([record | {"content": '{"a":\n{"b":[1.00,1e400]}}', "traceparent": "00-1", "terms": "t-0"}]))
    shown = ["now outcome 200", "  timeout", "  t-0", "  i", "  traceparent 00-1", '  {"a": {"b": [1.00, 1e400]}}']
    assert told.splitlines() == shown


@pytest.mark.parametrize(
    ("counts", "line"), [([], ""), ([0, 0], "  "), ([1, 0, 8], "▁ █"), ([5], "█"), (list(range(1, 9)), "▁▂▃▄▅▆▇█")]
)
def test_a_sparkline_is_relative_to_its_highest_count(counts: list[int], line: str) -> None:
    assert sparkline(counts) == line


@given(st.lists(st.integers(0, 10**9)))
def test_a_sparkline_has_a_bar_for_every_count_but_zero(counts: list[int]) -> None:
    assert [bar == " " for bar in sparkline(counts)] == [not count for count in counts]
