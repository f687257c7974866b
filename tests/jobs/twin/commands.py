"""Records of twin commands, for the tests of the twin."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from ackstream.jobs.twin.batch import TwinMessage, TwinResult, fold
from ackstream.jobs.twin.records import SignalRecord
from ackstream.settings import Settings
from ackstream.spark.records import in_order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackstream.jobs.twin.changes import Thing

START = 1_700_000_000_000
THING_ID = "org.acme:lamp"
MANY = "_/_/things/twin/commands/retrieve"


def body(action: str, path: str = "/", value: Any = msgspec.UNSET, *, thing: str = THING_ID, **headers: Any) -> Any:
    """Return a command; ``if_match`` is the header ``if-match``, ``fields`` the selector of a retrieve."""
    namespace, _, name = thing.partition(":")
    fields = headers.pop("fields", None)
    named = {key.replace("_", "-"): text for key, text in headers.items()}
    command = {"topic": f"{namespace}/{name}/things/twin/commands/{action}", "headers": named, "path": path}
    command |= {} if value is msgspec.UNSET else {"value": value}
    return command if fields is None else command | {"fields": fields}


def records(*commands: Any) -> list[SignalRecord]:
    """Return the records of commands (JSON, or bytes as they are), one a millisecond; ids are ``c-0``, ``c-1``, …"""
    return [
        SignalRecord(
            START + number, 0, number, f"c-{number}", entry if isinstance(entry, bytes) else json.dumps(entry).encode()
        )
        for number, entry in enumerate(commands)
    ]


def whole(
    taken: Sequence[SignalRecord], things: dict[str, Thing] | None = None, settings: Settings | None = None
) -> TwinResult:
    """Fold a batch in one part, over a copy of the things."""
    (result,) = fold(in_order(taken), dict(things or {}), settings or Settings())
    return result


def run(*commands: Any, settings: Settings | None = None) -> TwinResult:
    """Fold commands over nothing."""
    return whole(records(*commands), settings=settings)


def sent_to(messages: list[TwinMessage], topic: str) -> list[Any]:
    """Return the messages sent to a topic."""
    return [json.loads(message.value) for message in messages if message.topic == topic]


def answers(*commands: Any, settings: Settings | None = None) -> list[Any]:
    """Return the answers to commands, in order."""
    return sent_to(run(*commands, settings=settings).messages, "twin-acks")


def answer(*commands: Any, settings: Settings | None = None) -> Any:
    """Return the answer to the last of them."""
    return answers(*commands, settings=settings)[-1]


def thing_after(*commands: Any) -> Any:
    """Return the thing's JSON after commands; ``None`` where it is deleted."""
    content = run(*commands).changed[THING_ID].content
    return None if content is None else json.loads(content)
