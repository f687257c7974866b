"""The log of a process: one format for jobs, gateway and connector, as text or as JSON lines.

A line has its time (UTC), level, program, and where they are known the query, its batch and the correlation-id that it
is about; then the logger and the message. Text from outside is escaped: a line is always one line.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timezone
from logging.handlers import BufferingHandler
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from ackstream.settings import Log, Settings

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


class LogFormatter(logging.Formatter):
    """Formats records with the context of the process, of the block, and of the call (``extra``).

    Text: ``2026-11-23T08:00:00.123Z warning correlate query=correlate batch=7 ackstream.spark.clock: message``, and the
    lines of a stack behind it. JSON: an object in a line, a stack in its message.
    """

    def __init__(self, fields: Mapping[str, object], *, as_json: bool) -> None:
        super().__init__()
        self._fields, self.as_json = fields, as_json

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, and in a text those of a stack."""
        own = {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
        found = {**self._fields, **(_about.get() or {}), **own}
        known = {name: found[name] for name in FIELDS if found.get(name) is not None}
        at, message = datetime.fromtimestamp(record.created, timezone.utc), super().format(record)
        head = {"time": f"{at:%Y-%m-%dT%H:%M:%S}.{int(record.msecs):03d}Z", "level": record.levelname.lower()}
        if self.as_json:
            line = {**head, **known, "logger": record.name, "message": message}
            return escaped(json.dumps(line, default=str, ensure_ascii=False))
        program = str(known.pop("program", ""))
        about = [f"{name}={escaped(str(value))}" for name, value in known.items()]
        start = " ".join(filter(None, [*head.values(), program, *about]))
        # everything after the first line is a stack, which must not look like further lines
        stack = message.removeprefix(record.message).split("\n")[1:]
        lines = [f"{start} {record.name}: {escaped(record.message)}", *(f"  {escaped(line)}" for line in stack)]
        return "\n".join(lines)


REPEAT_SECONDS = 10.0
"""Time for which a line of the Kafka library is not repeated: without a broker, each client logs twice a second."""


class _Repetitions(logging.Filter):
    """Lets each statement of the Kafka library log once per period; the next line has the number of dropped ones."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[str, int, int], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.partition(".")[0] != "kafka":
            return True
        # not the text, which contains a socket or a number that differs each time
        place = (record.pathname, record.lineno, record.levelno)
        until, left_out = self._seen.get(place, (0.0, 0))
        if record.created < until:
            self._seen[place] = (until, left_out + 1)
            return False
        self._seen[place] = (record.created + REPEAT_SECONDS, 0)
        if left_out:
            record.msg, record.args = f"{record.getMessage()} ({left_out} more before)", None
        return True


def log_failure(message: str) -> bool:
    """Log why the process ends if its log consists of JSON lines; return whether it does."""
    found = any(isinstance(one.formatter, LogFormatter) and one.formatter.as_json for one in logging.root.handlers)
    if found:
        logging.getLogger(__name__).error("%s", message)
    return found


HELD_LINES = 1_000


def begin(program: str) -> Settings:
    """Read the settings and configure the log by them; errors in the settings are logged, too."""
    from ackstream.settings import Log, load  # noqa: PLC0415 - help needs no settings

    # the lines about the settings have the format that these name
    held, own = BufferingHandler(HELD_LINES), Log()
    logging.basicConfig(level=logging.INFO, handlers=[held], force=True)
    try:
        settings = load()
        own = settings.log
    finally:
        lines = held.buffer.copy()
        configure(own, program=program)
        for line in lines:
            if (logger := logging.getLogger(line.name)).isEnabledFor(line.levelno):
                logger.handle(line)
    return settings


def configure(settings: Log, stream: IO[str] | None = None, **fields: object) -> None:
    """Let this process log only to standard error or ``stream``; ``fields`` are the context of all lines."""
    level = LEVELS[settings.level]
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(LogFormatter(fields, as_json=settings.format == "json"))
    handler.addFilter(_Repetitions())
    # libraries one level higher than the product: their INFO lines are about their own internals
    logging.basicConfig(level=min(logging.ERROR, level + 10), handlers=[handler], force=True)
    logging.getLogger("ackstream").setLevel(level)
    logging.captureWarnings(capture=True)
