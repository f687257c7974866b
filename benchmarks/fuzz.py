"""A million records through the pure operators of all jobs, and 100,000 connections to the gateway: nothing stops.

``python -m benchmarks.fuzz`` writes ``results/fuzz.json`` with the seed, the counts, and the errors; it exits 1 if
there are any. Records are valid ones with wrong types, numbers, texts and sizes in every header and field, and every
one is accounted for. Connections send heads of HTTP and frames of WebSockets that are valid, nearly so, or cut off: no
stack trace, no growth, no connection that stays, and another user is answered meanwhile.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.fuzzing import connections
from benchmarks.fuzzing.garbage import Garbage
from benchmarks.fuzzing.messages import PersistRoom, QueryRoom, QueuesRoom, SettleRoom
from benchmarks.fuzzing.requests import CorrelateRoom, TwinRoom
from benchmarks.pages import RESULTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from benchmarks.fuzzing.room import Room

ROOMS: tuple[type[Room], ...] = (CorrelateRoom, TwinRoom, PersistRoom, SettleRoom, QueuesRoom, QueryRoom)
RECORDS, BATCH = 1_000_000, 1_000
GATEWAY = "gateway"
SHOWN = 10
"""Number of stops and violations of a room that are written down; all are counted."""


def run(seed: int, records: int, rooms: Sequence[type[Room]] = ROOMS) -> dict[str, Any]:
    """Run the rooms; return the report of each by its name."""
    reports = {}
    for kind in rooms:
        began = time.monotonic()
        # each room gives the same records whatever the others do
        room = kind(Garbage(seed))
        with _Nets() as nets:
            report = drive(room, max(1, round(records * kind.share)))
        reports[room.name] = report | {"nets": dict(nets.caught), "seconds": round(time.monotonic() - began, 1)}
    return reports


class _Nets(logging.Handler):
    """Counts unforeseen errors of an operator that its net has caught, by error and place, to be looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.caught: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info is not None and (error := record.exc_info[1]) is not None:
            place = traceback.extract_tb(error.__traceback__)[-1]
            self.caught[f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}: {place.line}"] += 1

    def __enter__(self) -> Self:
        log = logging.getLogger("ackstream")
        log.addHandler(self)
        log.propagate = False
        return self

    def __exit__(self, *_: object) -> None:
        log = logging.getLogger("ackstream")
        log.removeHandler(self)
        log.propagate = True


def drive(room: Room, count: int) -> dict[str, Any]:
    """Feed a room this many records, in batches of changing size; one that stops a batch is found and left out."""
    stops: list[str] = []
    left = count
    while left:
        batch = [room.make() for _ in range(min(left, room.chance.randrange(1, 2 * BATCH)))]
        left -= len(batch)
        try:
            room.feed(batch)
        except Exception as error:  # noqa: BLE001 - what is looked for
            before, why = len(stops), _trace(error)
            for record in batch:
                _feed(room, record, stops)
            if len(stops) == before:
                stops.append(f"{len(batch)} records, but none of them alone: {why}")
    try:
        room.finish()
    except Exception as error:  # noqa: BLE001 - what is looked for
        stops.append(f"Without records: {_trace(error)}")
    return {
        "records": count,
        "stops": len(stops),
        "wrong": len(room.wrong),
        "ends": dict(sorted(room.counts.items())),
        "shown": [*stops[:SHOWN], *room.wrong[:SHOWN]],
    }


def _feed(room: Room, record: Any, stops: list[str]) -> None:
    try:
        room.feed([record])
    except Exception as error:  # noqa: BLE001 - what is looked for
        stops.append(f"{str(record)[:1_000]}: {_trace(error)}")


def _trace(error: Exception) -> str:
    return "".join(traceback.format_exception(error, limit=-3, chain=False))


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz")
    parser.add_argument("--seed", type=int, default=12)
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--connections", type=int, default=connections.CONNECTIONS, help="to the gateway")
    parser.add_argument("--first", type=int, default=0, help="the number of the first connection")
    parser.add_argument("--minutes", type=float, default=60.0, help="after which no more connections are opened")
    parser.add_argument("--room", action="append", help=f"only this one, or {GATEWAY}; may be repeated")
    parser.add_argument("--results", type=Path, help=f"where fuzz.json goes; {RESULTS} for a whole run, else nowhere")
    arguments = parser.parse_args()
    rooms = [room for room in ROOMS if arguments.room is None or room.name in arguments.room]
    reports = run(arguments.seed, arguments.records, rooms)
    found: dict[str, Any] = {}
    if rooms:
        total = {key: sum(report[key] for report in reports.values()) for key in ("records", "stops", "wrong")}
        found = {"benchmark": "fuzz", "seed": arguments.seed, **total, "rooms": reports}
    if arguments.room is None or GATEWAY in arguments.room:
        wanted = arguments.connections, arguments.minutes, arguments.first
        found["gateway"] = connections.run(arguments.seed, *wanted)
    print(json.dumps(found, indent=2))
    whole = not rooms or (len(rooms) == len(ROOMS) and arguments.records >= RECORDS)
    whole = whole and found.get("gateway", {}).get("connections", 0) >= connections.CONNECTIONS
    place = arguments.results or (RESULTS if whole else None)
    if place is not None:
        place.mkdir(parents=True, exist_ok=True)
        file = place / "fuzz.json"
        # the rooms of an earlier run stay beside the gateway's
        before = {} if rooms or not file.exists() else json.loads(file.read_text("utf-8"))
        file.write_text(json.dumps(before | found, indent=2) + "\n", "utf-8")
    wrong = found.get("stops", 0) + found.get("wrong", 0) + found.get("gateway", {}).get("wrong", 0)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
