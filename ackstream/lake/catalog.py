"""The names of the Delta tables, what each is, and which job writes it; their columns need PySpark."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ackstream.errors import StartError


@dataclass(frozen=True)
class Entry:
    """What a table is, and the job that writes it; a ``derived`` one is merged from another, and its rows change."""

    comment: str
    writer: str
    derived: bool = False


CATALOG = {
    "signals": Entry("One row per request.", "archive"),
    "acknowledgements": Entry("One row per acknowledgement.", "archive"),
    "outcomes": Entry("One row per decided request.", "archive"),
    "dead_letters": Entry("One row per unusable record.", "archive"),
    "audit": Entry("One row per command or sign-in at the gateway, allowed or not.", "archive"),
    "thing_events": Entry("One row per change of a thing: the twin's journal.", "twin"),
    "things": Entry("One row per thing, in its present state.", "twin", derived=True),
    "things_search": Entry("One row per value within a thing.", "twin", derived=True),
    "messages": Entry("One row per message of a publisher, accepted or refused.", "persist"),
    "publishers": Entry("The progress of each publisher, batch by batch.", "persist"),
    # exists only if there are sync destinations
    "destinations": Entry("One row per change of what acknowledgements wait for.", "persist"),
    "deliveries": Entry("One row per run of samples that a reader has acknowledged.", "settle"),
    "ignored_reports": Entry("One row per unusable report of a reader, or part of one.", "settle"),
    "queue_events": Entry("One row per event of a message in a work queue.", "queues"),
    "subscriptions": Entry("The subscriptions to messages, batch by batch of the query job.", "query"),
    "sow_deletes": Entry("One row per message that sow_delete removed from the state of the world.", "query"),
}


def in_full(location: str) -> str:
    """Return a location as every program understands it: a URL, or an absolute path."""
    return location if ":" in location.partition("/")[0] else str(Path(location).absolute())


def absent(table: str, location: object) -> StartError:
    """Return the error for a table that does not exist yet."""
    return StartError(
        f"The table {table} does not exist at {location}; start the {CATALOG[table].writer} job, or correct lake.path."
    )
