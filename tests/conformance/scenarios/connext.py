"""Scenarios of Connext's application acknowledgements.

What a scenario leaves out is implied: samples that no step writes exist when a step names them, a reader whose steps
never take a sample has taken what it acknowledges, a sample reaches the readers when it is written unless a step says
``cached``, and where no reader is named there is one, ``R1``.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ackstream.client.readers.qos import ReaderQos, WriterQos
from ackstream.errors import DeliveryError, InconsistentQosError
from tests.conformance.scenarios import variations
from tests.conformance.scenarios.connext_system import Hop
from tests.conformance.scenarios.observations import Series, matches
from tests.conformance.scenarios.scenario import Interpreter, Json, Uncovered
from tests.conformance.scenarios.timeline import Absent, timed

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    return variations.observe(_run, given, when, values=values)


def _run(given: Json, when: list[Json]) -> Json:
    try:
        system = _System(given, when)
    except InconsistentQosError as error:
        return {"error": error.code}
    system.run()
    return system.observations()


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
        "required": "required",
        "max_samples": "max_samples",
        "max_blocking_ms": "max_blocking_ms",
    }
    writer: Json = {name: given[word] for word, name in names.items() if word in given}
    return ReaderQos(kind=KINDS[kind], **shared, **reader), WriterQos(reliable=reliable, **shared, **writer)  # type: ignore[arg-type]


class _System:
    """Writers and readers of a scenario, on an ideal clock."""

    def __init__(self, given: Json, when: list[Json]) -> None:
        self._steps = timed(when)
        self._implied_writes = all(step["op"] != "write" for step in when)
        self._takes = {step.get("reader") for step in when if step["op"] in TAKES}
        self._cached = {(step.get("reader"), step["sn"]) for step in when if step["op"] == "cached"}
        numbers = [step["sn"] for step in when if step["op"] == "write"]
        route = given.get("route") or ["P", ""]
        named = [step["reader"] for step in when if "reader" in step]
        readers = list(dict.fromkeys([*given.get("readers", []), *named]))
        if not readers and "required" not in given:
            readers = ["R1"]
        reader_qos, writer_qos = _qos(given)
        roles = {step["reader"]: step["role"] for step in when if "role" in step}
        self.hops = [
            Hop(
                writer,
                [follower] if follower else readers,
                reader_qos,
                writer_qos,
                given,
                roles=roles,
                start=min(numbers, default=1),
            )
            for writer, follower in pairwise(route)
        ]
        self._given = given
        self._error: str | None = None
        self._waits: list[tuple[Any, list[Any]]] = []
        self.waited: list[tuple[str, int]] = []
        self._watermarks: list[tuple[int, int]] = [(0, self.hops[0].retention.released)]
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
                self._watermarks.append((step["sn"], self.hops[0].retention.released))
        self._advance(None)

    def _advance(self, until: int | None) -> None:
        for _ in range(MAX_EVENTS):
            deadlines = [hop.deadline for hop in self.hops] + [wait.deadline for wait, _ in self._waits]
            at = min((deadline for deadline in deadlines if deadline is not None), default=None)
            if at is None or (until is not None and at >= until):
                return
            self._pump(at)

    def _pump(self, now: int) -> None:
        for hop in self.hops:
            hop.pump(now)
        for entry in list(self._waits):
            result = entry[0].result(now)
            if result is not None:
                self._waits.remove(entry)
                self.waited.append((result, now))

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _take(self, step: Json, now: int) -> None:
        op, seq, name = step["op"], step.get("sn"), step.get("reader")
        if self._implied_writes and seq is not None:
            self._write(seq, now)
        if op == "write":
            self._write(seq, now)
        elif op == "wait_for_acknowledgments":
            self._waits.append((self.hops[0].publications.wait(now, step["max_ms"]), []))
        elif op == "create_reader":
            _qos(self._given)
        else:
            hops = [hop for hop in self.hops if name is None or name in hop.names]
            for hop in hops:
                for reader in [name] if name else hop.names:
                    self._at_reader(hop, reader, step, now)

    def _write(self, seq: Any, now: int) -> None:
        for hop in self.hops:
            arriving = [name for name in hop.names if not {(name, seq), (None, seq)} & self._cached]
            for number in range(hop.requested + 1, seq + 1) if self._implied_writes else [seq]:
                hop.write(number, now, arriving)

    def _at_reader(self, hop: Hop, name: str, step: Json, now: int) -> None:
        op: str = step["op"]
        seq: Any = step.get("sn")
        response = bytes(step["response"]) if step.get("response") is not None else None
        if op in ("reader_lost", "crash"):
            hop.lose(name, now, crashed=op == "crash")
        elif op == "restart":
            hop.restart(name, now)
        elif name not in hop.readers:
            return
        elif op == "cached":
            hop.arrive(name, seq, now)
        elif op in TAKES:
            hop.take(name, seq, now, loan=op == "take_loan")
        elif op == "return_loan":
            hop.return_loan(name, seq, now)
        elif op == "acknowledge_all":
            hop.readers[name].acknowledge_all(now, response)
        elif op == "acknowledge_sample":
            if not {name, None} & self._takes:
                hop.take(name, seq, now)
            hop.readers[name].acknowledge_sample(hop.writer, seq, now, response)

    # -- what can be seen ----------------------------------------------------------------------------------------------

    def observations(self) -> Json:
        """Return all of it."""
        first = self.hops[0]
        retained = first.retained
        seen: Json = first.seen | {
            "retained": retained,
            "unacked": retained,
            "app_acked": {seq: first.publications.is_sample_app_acknowledged(seq) for seq in first.numbers},
            "contiguous_watermark": first.retention.released,
            "watermark": Watermarks(self._watermarks),
            "fully_acked": not retained,
            "fully_acked_at_ms": first.done_at if not retained else None,
            "quorum": first.retention.quorum(retained[0] if retained else first.retention.written),
            "not_at_ms": Absent(first.seen["app_ack_sent_at_ms"]),
            "at_ms": max((at for _, at in first.writes.values()), default=None),
            "error": self._error,
        }
        seen |= {f"write_{seq}": result for seq, (result, _) in first.writes.items()}
        seen |= {f"callbacks_at_{hop.writer}": hop.seen["callbacks"] for hop in self.hops}
        if self.waited:
            seen |= {"wait": Series([result for result, _ in self.waited]), "at_ms": self.waited[-1][1]}
        return seen


INTERPRETER = Interpreter(
    prefix="RTI",
    given=frozenset(
        {
            "ack_kind",
            "app_ack_period_ms",
            "depth",
            "durable_reader",
            "filter_excludes",
            "history",
            "lose_app_ack",
            "lose_conf",
            "max_blocking_ms",
            "max_app_ack_response_length",
            "max_samples",
            "min_app_ack_response_keep_ms",
            "persistence",
            "propagate_no_response",
            "readers",
            "reliability",
            "required",
            "route",
            "samples_per_app_ack",
        }
    ),
    steps={
        "acknowledge_all": frozenset({"reader", "response", "role"}),
        "acknowledge_sample": frozenset({"reader", "response", "role", "sn"}),
        "cached": frozenset({"reader", "sn"}),
        "crash": frozenset({"reader"}),
        "create_reader": frozenset({"reader"}),
        "reader_lost": frozenset({"reader"}),
        "restart": frozenset({"reader"}),
        "return_loan": frozenset({"reader", "sn"}),
        "wait_for_acknowledgments": frozenset({"max_ms"}),
        "write": frozenset({"key", "sn"}),
    }
    | dict.fromkeys(TAKES, frozenset({"reader", "role", "sn"})),
    expect=frozenset(
        {
            "ack_sent_to",
            "app_ack_received",
            "app_ack_sent_at_ms",
            "app_acked",
            "app_acks",
            "at_ms",
            "auto_acked",
            "by_ms",
            "callbacks",
            "conf",
            "conf_counts",
            "conf_sent",
            "contiguous_watermark",
            "error",
            "fully_acked",
            "fully_acked_at_ms",
            "not_at_ms",
            "not_before_ms",
            "persistence_resends",
            "quorum",
            "redelivered",
            "retained",
            "unacked",
            "wait",
            "watermark",
        }
    ),
    observe=observe,
    more=re.compile(rf"write_\d+|callbacks_at_.+|{variations.WORDS}"),
)
