"""The log of a process: one format for jobs, gateway and connector, as text or as JSON lines.

A line has its time (UTC), level, program, and where they are known the query, its batch and the correlation-id that it
is about; then the logger and the message. Text from outside is escaped: a line is always one line.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timezone
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ackstream.settings import Log

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
SPARK_LEVELS = {"debug": "INFO", "info": "WARN", "warning": "WARN", "error": "ERROR"}
"""Level of the JVM by the level of the settings: Spark's own INFO lines would fill a disk."""

FIELDS = ("program", "query", "batch", "correlation_id")
"""Context of a line, in this order."""

CONTROLS = re.compile(
    # C0 and C1; marks, embeddings and isolates of bidirectional text; invisible characters; halves of surrogate pairs
    "[\x00-\x1f\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e0fff]"
)
"""The characters that could control a terminal, line breaks among them."""

_about: ContextVar[Mapping[str, object] | None] = ContextVar("about", default=None)


def escaped(text: str) -> str:
    """Replace the characters that could control a terminal by their JSON escapes."""
    return CONTROLS.sub(lambda found: json.dumps(found[0])[1:-1], text)


@contextmanager
def about(**fields: object) -> Iterator[None]:
    """Add context to the lines that this thread logs within the block."""
    token = _about.set({**(_about.get() or {}), **fields})
    try:
        yield
    finally:
        _about.reset(token)


def remark(**fields: object) -> None:
    """Add context to the lines that this thread logs from now on."""
    _about.set({**(_about.get() or {}), **fields})


class _Formatter(logging.Formatter):
    """Formats records with the context of the process, of the block, and of the call (``extra``)."""

    def __init__(self, fields: Mapping[str, object]) -> None:
        super().__init__()
        self._fields = fields

    def _known(self, record: logging.LogRecord) -> dict[str, object]:
        own = {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
        found = {**self._fields, **(_about.get() or {}), **own}
        return {name: found[name] for name in FIELDS if found.get(name) is not None}


class TextFormatter(_Formatter):
    """``2026-11-23T08:00:00.123Z warning correlate query=correlate batch=7 ackstream.spark.clock: message``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a line, and those of a stack behind it."""
        known = self._known(record)
        program = known.pop("program", "")
        about = [f"{name}={escaped(str(value))}" for name, value in known.items()]
        head = " ".join(filter(None, [_time(record), record.levelname.lower(), str(program), *about]))
        # everything behind the first line is a stack, which must not look like further lines
        stack = super().format(record).removeprefix(record.message).split("\n")[1:]
        lines = [f"{head} {record.name}: {escaped(record.message)}", *(f"  {escaped(line)}" for line in stack)]
        return "\n".join(lines)


class JsonFormatter(_Formatter):
    """One JSON object in a line, a stack in its message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a line."""
        line: dict[str, object] = {"time": _time(record), "level": record.levelname.lower(), **self._known(record)}
        line |= {"logger": record.name, "message": super().format(record)}
        return escaped(json.dumps(line, default=str, ensure_ascii=False))


def _time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, timezone.utc)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{int(record.msecs):03d}Z"


REPEAT_SECONDS = 10.0
"""Time for which a line of the Kafka library is not repeated: with a broker away, each client logs twice a second."""


class _Repetitions(logging.Filter):
    """Lets each statement of the Kafka library log once per period; the next line has the number of dropped ones."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[str, int, int], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log a record."""
        if record.name.partition(".")[0] != "kafka":
            return True
        # not the text, which has a socket or a number that differs each time
        place = (record.pathname, record.lineno, record.levelno)
        until, left_out = self._seen.get(place, (0.0, 0))
        if record.created < until:
            self._seen[place] = (until, left_out + 1)
            return False
        self._seen[place] = (record.created + REPEAT_SECONDS, 0)
        if left_out:
            record.msg, record.args = f"{record.getMessage()} ({left_out} more before)", None
        return True


def configure(settings: Log, stream: IO[str] | None = None, **fields: object) -> None:
    """Let this process log to standard error or ``stream`` alone; ``fields`` are the context of all lines."""
    level = LEVELS[settings.level]
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter((JsonFormatter if settings.format == "json" else TextFormatter)(fields))
    handler.addFilter(_Repetitions())
    root = logging.getLogger()
    for former in list(root.handlers):
        root.removeHandler(former)
    root.addHandler(handler)
    # libraries one level higher than the product: their INFO lines are about their own internals
    root.setLevel(min(logging.ERROR, level + 10))
    logging.getLogger("ackstream").setLevel(level)
    logging.captureWarnings(capture=True)
