"""Scenarios of Connext's application acknowledgements.

What a scenario leaves out is implied: samples that no step writes exist when a step names them, a reader whose steps
never take a sample has taken what it acknowledges, a sample reaches the readers when it is written unless a step says
``cached``, and where no reader is named there is one, ``R1``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ackstream.client.reading.samples import ReaderQos, WriterQos
from ackstream.errors import DeliveryError, InconsistentQosError
from tests.conformance.scenarios.connext_system import System, sample
from tests.conformance.scenarios.observations import Absent, Series, matches
from tests.conformance.scenarios.scenario import (
    VARIATION,
    Interpreter,
    Json,
    Uncovered,
    observe_variations,
    timed,
)

KINDS = {
    "PROTOCOL": "protocol",
    "APPLICATION_AUTO": "application-auto",
    "APPLICATION_EXPLICIT": "application-explicit",
}
TAKES = ("take", "take_copy", "take_loan", "read")
MAX_EVENTS = 10_000


class Watermarks(Series):
    """(sample, watermark) after each acknowledgement; expected is the last watermark, or those after some samples."""

    def matches(self, expected: Any) -> bool:
        """Compare."""
        if not isinstance(expected, list):
            return matches(expected, self.values[-1][1])
        return all(matches(entry["value"], self._after(str(entry["after"]).split(","))) for entry in expected)

    def _after(self, samples: list[str]) -> Any:
        return [value for sample, value in self.values if str(sample) in map(str.strip, samples)][-1]


def observe(given: Json, when: list[Json]) -> Mapping[str, Any]:
    """Run the steps; see :class:`Interpreter`."""
    values = [("history", value) for value in ("KEEP_ALL", "KEEP_LAST")]
    values += [("reliability", value) for value in ("RELIABLE", "BEST_EFFORT")]
    return observe_variations(_run, given, when, values=values)


def _run(given: Json, when: list[Json]) -> Json:
    try:
        run = _Run(given, when)
    except InconsistentQosError as error:
        return {"error": error.code}
    run.run()
    return run.observations()


def _qos(given: Json) -> tuple[ReaderQos, WriterQos]:
    reliable = given.get("reliability", "RELIABLE") != "BEST_EFFORT"
    kind = given.get("ack_kind", "APPLICATION_EXPLICIT" if reliable else "PROTOCOL")
    history = given.get("history", "KEEP_ALL")
    if kind not in KINDS or history not in ("KEEP_ALL", "KEEP_LAST"):
        raise Uncovered(f"nothing is published on ack_kind {kind} with history {history}")
    names = {
        "samples_per_app_ack": "samples_per_app_ack",
        "app_ack_period_ms": "app_ack_period_ms",
        "max_app_ack_response_length": "max_response_length",
        "min_app_ack_response_keep_ms": "response_keep_ms",
        "depth": "depth",
    }
    shared: Json = {"history": history.lower().replace("_", "-")}
    reader: Json = {name: given[word] for word, name in names.items() if word in given}
    names = {
        "propagate_no_response": "propagate_no_response",
        "max_samples": "max_samples",
        "max_blocking_ms": "max_blocking_ms",
    }
    writer: Json = {name: given[word] for word, name in names.items() if word in given}
    return ReaderQos(kind=KINDS[kind], **shared, **reader), WriterQos(reliable=reliable, **shared, **writer)  # type: ignore[arg-type]


class _Run:
    """The steps of a scenario, on an ideal clock."""

    def __init__(self, given: Json, when: list[Json]) -> None:
        self._steps = timed(when)
        self._implied_writes = all(step["op"] != "write" for step in when)
        self._takes = {step.get("reader") for step in when if step["op"] in TAKES}
        self._cached = {(step.get("reader"), step["sn"]) for step in when if step["op"] == "cached"}
        numbers = [step["sn"] for step in when if step["op"] == "write"]
        named = [step["reader"] for step in when if "reader" in step]
        readers = list(dict.fromkeys([*given.get("readers", []), *named]))
        if not readers and "required" not in given:
            readers = ["R1"]
        roles = {step["reader"]: step["role"] for step in when if "role" in step}
        self._system = System(readers, *_qos(given), given, roles=roles, start=min(numbers, default=1))
        self._given = given
        self._error: str | None = None
        self._waits: list[int] = []
        self._waited: list[tuple[str, int]] = []
        self._watermarks: list[tuple[int, int]] = [(0, self._system.retention.released)]
        if self._implied_writes and given.get("history") != "KEEP_LAST":
            self._write(max((step["sn"] for step in when if "sn" in step), default=0), 0)

    def run(self) -> None:
        """Take the steps, and let time pass until nothing is left to happen."""
        for at, step in self._steps:
            self._advance(at)
            try:
                self._take(step, at)
            except DeliveryError as error:
                self._error = self._error or error.code
            self._pump(at)
            if "sn" in step and step["op"].startswith("acknowledge"):
                self._watermarks.append((step["sn"], self._system.retention.released))
        self._advance(None)

    def _advance(self, until: int | None) -> None:
        for _ in range(MAX_EVENTS):
            deadlines = [self._system.deadline, *self._waits]
            at = min((deadline for deadline in deadlines if deadline is not None), default=None)
            if at is None or (until is not None and at >= until):
                return
            self._pump(at)

    def _pump(self, now: int) -> None:
        self._system.now = now
        self._system.pump(now)
        for deadline in list(self._waits):
            if not self._system.retained or now >= deadline:
                self._waits.remove(deadline)
                self._waited.append(("TIMEOUT" if self._system.retained else "OK", now))

    def _take(self, step: Json, now: int) -> None:
        op, seq, name = step["op"], step.get("sn"), step.get("reader")
        self._system.now = now
        if self._implied_writes and seq is not None:
            self._write(seq, now)
        if op == "write":
            self._write(seq, now)
        elif op == "wait_for_acknowledgments":
            self._waits.append(now + step["max_ms"])
        elif op == "create_reader":
            _qos(self._given)
        else:
            for reader in [name] if name else self._system.names:
                self._at_reader(reader, step, now)

    def _write(self, seq: Any, now: int) -> None:
        system = self._system
        arriving = [name for name in system.names if not {(name, seq), (None, seq)} & self._cached]
        for number in range(system.requested + 1, seq + 1) if self._implied_writes else [seq]:
            system.write(number, now, arriving)

    def _at_reader(self, name: str, step: Json, now: int) -> None:
        op: str = step["op"]
        seq: Any = step.get("sn")
        system = self._system
        response = bytes(step["response"]) if step.get("response") is not None else None
        if op in ("reader_lost", "crash"):
            system.lose(name, now, crashed=op == "crash")
        elif op == "restart":
            system.restart(name)
        elif name not in system.readers:
            return
        elif op == "cached":
            system.arrive(name, seq)
        elif op in TAKES:
            system.take(name, seq, op)
        elif op == "return_loan":
            system.return_loan(name, seq)
        elif op == "acknowledge_all":
            system.readers[name].acknowledge_all(response)
        elif op == "acknowledge_sample":
            if not {name, None} & self._takes:
                system.take(name, seq)
            system.readers[name].acknowledge_sample(sample(seq), response)

    def observations(self) -> Json:
        """Return everything observable."""
        system = self._system
        retained = system.retained
        seen: Json = system.seen | {
            "retained": retained,
            "unacked": retained,
            "app_acked": {seq: system.publications.is_complete(seq) for seq in system.numbers},
            "contiguous_watermark": system.retention.released,
            "watermark": Watermarks(self._watermarks),
            "fully_acked": not retained,
            "fully_acked_at_ms": system.done_at if not retained else None,
            "quorum": system.retention.quorum(retained[0] if retained else system.retention.written),
            "not_at_ms": Absent(system.seen["app_ack_sent_at_ms"]),
            "at_ms": max((at for _, at in system.writes.values()), default=None),
            "error": self._error,
        }
        seen |= {f"write_{seq}": result for seq, (result, _) in system.writes.items()}
        if self._waited:
            seen |= {"wait": Series([result for result, _ in self._waited]), "at_ms": self._waited[-1][1]}
        return seen


INTERPRETER = Interpreter(
    prefix="RTI",
    given=frozenset(
        {"ack_kind", "app_ack_period_ms", "depth", "durable_reader", "filter_excludes", "history", "lose_app_ack"}
        | {"lose_conf", "max_blocking_ms", "max_app_ack_response_length", "max_samples"}
        | {"min_app_ack_response_keep_ms", "propagate_no_response", "readers", "reliability", "required"}
        | {"samples_per_app_ack"}
    ),
    steps={
        "acknowledge_all": frozenset({"reader", "response", "role"}),
        "acknowledge_sample": frozenset({"reader", "response", "role", "sn"}),
        **dict.fromkeys(("cached", "return_loan"), frozenset({"reader", "sn"})),
        **dict.fromkeys(("crash", "create_reader", "reader_lost", "restart"), frozenset({"reader"})),
        "wait_for_acknowledgments": frozenset({"max_ms"}),
        "write": frozenset({"key", "sn"}),
    }
    | dict.fromkeys(TAKES, frozenset({"reader", "role", "sn"})),
    expect=frozenset(
        {"app_ack_received", "app_ack_sent_at_ms", "app_acked", "app_acks", "at_ms", "auto_acked", "by_ms"}
        | {"callbacks", "conf", "conf_counts", "conf_sent", "contiguous_watermark", "error", "fully_acked"}
        | {"fully_acked_at_ms", "not_at_ms", "not_before_ms", "quorum", "redelivered", "retained", "unacked"}
        | {"wait", "watermark"}
    ),
    observe=observe,
    more=re.compile(rf"write_\d+|{VARIATION}"),
)
