"""One log for all processes: text or JSON lines, with what a line is about; what others have written is data."""

from __future__ import annotations

import io
import json
import logging
import re
import threading
from contextlib import nullcontext

import pytest

from ackstream.errors import SettingsError
from ackstream.observe.logs import REPEAT_SECONDS, about, begin, configure, log_failure, remark
from ackstream.settings import Log

TITLE = "\x1b]0;pwned\x07"


def _logged(settings: Log, **fields: object) -> io.StringIO:
    stream = io.StringIO()
    configure(settings, stream, **fields)
    return stream


def _raised(text: str) -> Exception:
    try:
        raise ValueError(text)  # noqa: TRY301 - with a stack
    except ValueError as error:
        return error


def test_a_line_has_its_time_level_program_and_what_it_is_about() -> None:
    stream = _logged(Log(), program="correlate")
    with about(query="correlate", batch=7):
        logging.getLogger("ackstream.x").warning("It is %s.", "late", extra={"correlation_id": "c-1"})
    logging.getLogger("ackstream.x").info("It is over.")
    first, second = stream.getvalue().splitlines()
    time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    assert re.fullmatch(
        rf"{time} warning correlate query=correlate batch=7 correlation_id=c-1 ackstream\.x: It is late\.", first
    )
    assert re.fullmatch(rf"{time} info correlate ackstream\.x: It is over\.", second)


def test_a_line_of_json_has_the_same_and_a_stack_in_its_message() -> None:
    stream = _logged(Log(format="json"), program="gateway")
    logging.getLogger("ackstream.x").error("It failed: %s", "ü", exc_info=_raised("no\nline"))
    (line,) = stream.getvalue().splitlines()
    found = json.loads(line)
    assert list(found) == ["time", "level", "program", "logger", "message"]
    assert (found["level"], found["program"], found["logger"]) == ("error", "gateway", "ackstream.x")
    message, *stack = found["message"].split("\n")
    assert message == "It failed: ü"
    assert stack[0] == "Traceback (most recent call last):"


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_text_of_others_controls_a_terminal_or_begins_a_line(form: str) -> None:
    stream = _logged(Log(format=form), program="x")
    forged = f"{TITLE}\n2026-11-23T08:00:00.000Z error correlate forged\u2028\u202e"
    logging.getLogger("ackstream.x").warning("%s", forged, extra={"correlation_id": forged})
    text = stream.getvalue()
    assert not set("\x1b\x07\u2028\u202e") & set(text)
    if form == "json":
        assert json.loads(text)["message"] == forged
        assert json.loads(text)["correlation_id"] == forged
    else:
        (line,) = text.splitlines()
        assert line.count(json.dumps(forged)[1:-1]) == 2


def test_the_lines_of_a_stack_begin_with_a_blank_whatever_an_error_says() -> None:
    stream = _logged(Log())
    forged = "\n2026-11-23T08:00:00.000Z error correlate forged"
    logging.getLogger("ackstream.x").error("It failed.", exc_info=_raised(forged))
    first, *stack = stream.getvalue().splitlines()
    assert first.endswith("ackstream.x: It failed.")
    assert len(stack) >= 3
    assert all(line.startswith("  ") for line in stack)


@pytest.mark.parametrize(
    ("level", "own", "other"),
    [
        ("debug", ["debug", "info", "warning", "error"], ["info", "warning", "error"]),
        ("info", ["info", "warning", "error"], ["warning", "error"]),
        ("warning", ["warning", "error"], ["error"]),
        ("error", ["error"], ["error"]),
    ],
)
def test_libraries_log_one_level_higher_than_the_product(level: str, own: list[str], other: list[str]) -> None:
    stream = _logged(Log(format="json", level=level))
    for name in ("ackstream.x", "kafka.x"):
        for one in ("debug", "info", "warning", "error"):
            getattr(logging.getLogger(name), one)(".")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["level"] for line in lines if line["logger"] == "ackstream.x"] == own
    assert [line["level"] for line in lines if line["logger"] == "kafka.x"] == other


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize(("level", "lines"), [("info", 1), ("warning", 0)])
def test_the_lines_about_the_settings_have_the_format_and_the_level_that_these_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], level: str, lines: int, *, wrong: bool
) -> None:
    monkeypatch.setenv("ACKSTREAM_LOG_FORMAT", "json")
    monkeypatch.setenv("ACKSTREAM_LOG_LEVEL", level)
    monkeypatch.setenv("ACKSTREAM_CORRELATE_SHARDS", "none" if wrong else "3")
    with pytest.raises(SettingsError) if wrong else nullcontext():
        assert begin("correlate").log.level == level
    found = capsys.readouterr().err.splitlines()
    # of wrong settings, neither is known
    assert len(found) == (1 if wrong else lines)
    for line in found:
        text = line if wrong else json.loads(line)["message"]
        assert "The settings are those of" in text
    # text for people is printed by those who know where it goes
    assert log_failure("Kafka is away.") is not wrong
    last = capsys.readouterr().err.splitlines()
    assert [json.loads(line)["message"] for line in last] == ([] if wrong else ["Kafka is away."])


def test_what_a_block_is_about_ends_with_it() -> None:
    stream = _logged(Log(format="json"))
    log = logging.getLogger("ackstream.x")
    with about(query="persist", batch=1):
        with about(batch=2):
            log.info("inner")
        log.info("outer")
    log.info("after")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line.get("query"), line.get("batch")) for line in lines] == [("persist", 2), ("persist", 1), (None, None)]


def test_a_worker_remarks_each_batch_that_it_is_at() -> None:
    stream = _logged(Log(format="json"))

    def work() -> None:
        for batch in (1, 2):
            remark(batch=batch)
            logging.getLogger("ackstream.x").info("working")

    # a thread has its own
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    logging.getLogger("ackstream.x").info("after")
    assert [json.loads(line).get("batch") for line in stream.getvalue().splitlines()] == [1, 2, None]


def test_a_process_that_is_configured_again_logs_once() -> None:
    first = _logged(Log())
    second = _logged(Log())
    logging.getLogger("ackstream.x").info("It is over.")
    assert first.getvalue() == ""
    assert len(second.getvalue().splitlines()) == 1


def test_what_the_kafka_library_repeats_is_logged_once_in_a_while_and_counted() -> None:
    stream = _logged(Log())

    def say(name: str, text: str, seconds: float) -> None:
        log = logging.getLogger(name)
        record = log.makeRecord(name, logging.ERROR, "library.py", 7, text, (seconds,), None)
        record.created = 1_000_000 + seconds
        log.handle(record)

    for seconds in (0.0, 0.5, REPEAT_SECONDS - 0.5, REPEAT_SECONDS, REPEAT_SECONDS + 1, 3 * REPEAT_SECONDS):
        say("kafka.net.connection", "lost %g", seconds)
        say("ackstream.x", "own %g", seconds)
    messages = [line.partition(": ")[2] for line in stream.getvalue().splitlines()]
    assert [message for message in messages if message.startswith("lost")] == [
        "lost 0",
        "lost 10 (2 more before)",
        "lost 30 (1 more before)",
    ]
    assert sum(message.startswith("own") for message in messages) == 6
