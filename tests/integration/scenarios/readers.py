"""A real publisher and its readers, with persist and settle between them.

Steps come at their times or later, never nearer to each other: a sample is waited for where a step needs it, and so is
the report of what a step acknowledged, where each acknowledgement has one of its own. Who waits for what comes is given
the time that the engine takes on top.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any

from ackstream.client import Publisher, SampleReader
from ackstream.client.errors import ReaderTimeout
from ackstream.client.reading.samples import ReaderQos, Sample, WriterQos
from ackstream.errors import InconsistentQosError
from ackstream.protocol.readers import AppAck, AppAckConf, SamplesDone, WriterState
from tests.conformance.scenarios.connext import KINDS, TAKES, Watermarks
from tests.conformance.scenarios.observations import AT, Absent
from tests.conformance.scenarios.scenario import timed
from tests.harness.waiting import PATIENCE_SECONDS, eventually
from tests.integration.scenarios.losses import Losses
from tests.integration.scenarios.rules import Json, now, sleep_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ackstream.client.publishing._acks import Callback
    from tests.conformance.scenarios import Scenario
    from tests.harness.settlement import Settlement

ENGINE_SECONDS = 60.0
"""From a step to what it brings about, on a machine that does much else."""
FLAGS = {True: "0x0100", False: "0x0000"}

VARIATIONS = {
    "with_KEEP_ALL_unacked": ("unacked", {"history": "KEEP_ALL"}),
    "without_required_retained": ("retained", {"required": {}}),
}
"""Words of ``expect``, the word they vary, and the changes to ``given``."""


def required(scenario: Scenario) -> list[Json]:
    """Return the roles of a scenario as settings of settle: for its own writer."""
    roles = scenario.given.get("required", {}).items()
    return [{"role": role, "quorum": quorum, "writers": [scenario.id]} for role, quorum in roles]


def observe(settlement: Settlement, scenario: Scenario) -> Json:
    """Run a scenario, and its variations; each writer has a name of its own."""
    try:
        seen = _run(settlement, scenario.id, scenario.given, scenario.when, scenario.expect)
    except InconsistentQosError as error:
        return {"error": error.code}
    for word in scenario.expect.keys() & VARIATIONS.keys():
        about, changes = VARIATIONS[word]
        varied = _run(settlement, f"{scenario.id}-{word}", scenario.given | changes, scenario.when, scenario.expect)
        seen[word] = varied[about]
    return seen


def _run(settlement: Settlement, writer: str, given: Json, when: list[Json], expect: Json) -> Json:
    with ExitStack() as stack:
        system = _System(settlement, stack, writer, given, when, comes=expect.get("wait") != "TIMEOUT")
        return system.run(watched="watermark" in expect)


class _System:
    """One writer with its readers."""

    def __init__(
        self, settlement: Settlement, stack: ExitStack, writer: str, given: Json, when: list[Json], *, comes: bool
    ) -> None:
        """Begin with no step taken.

        :param comes: whether what is waited for comes
        """
        self._settlement, self._stack, self._writer, self._given = settlement, stack, writer, given
        self._qos = _reader_qos(given)
        self._losses: list[Losses] = []
        self._watermarks: list[tuple[int, int]] = []
        self._steps = timed(when)
        self._takes = {step.get("reader") for step in when if step["op"] in TAKES}
        # who shall not be waited for once it is lost is temporary
        self._loses = any(step["op"] == "reader_lost" for step in when)
        self._roles = {step["reader"]: step["role"] for step in when if "role" in step}
        self._readers: dict[str, SampleReader] = {}
        self._taken: dict[tuple[str, int], Sample] = {}
        self._loans: dict[str, ExitStack] = {}
        self._late = 0
        self._callbacks: list[Json] = []
        self._extra_seconds = ENGINE_SECONDS if comes else 0.0
        self._waits: list[Thread] = []
        self._seen: Json = {}
        self._numbers: list[int] = []
        for name in self._names(when):
            self._join(name)
        names = ("propagate_no_response", "max_samples", "max_blocking_ms")
        options = {name: given[name] for name in names if name in given}
        self._publisher = stack.enter_context(
            Publisher(
                settlement.kafka,
                name=writer,
                writer_qos=WriterQos(reliable=given.get("reliability") != "BEST_EFFORT", **options),
                on_application_acknowledgment=self._on_acknowledged,
            )
        )
        self._began = now()
        if all(step["op"] != "write" for step in when):
            for seq in range(1, max(step["sn"] for step in when) + 1):
                self._write({"sn": seq})

    def run(self, *, watched: bool) -> Json:
        """Take the steps; then wait until nothing is left to happen.

        :param watched: wait for the effect of each acknowledgement, and note the watermark
        """
        for at, step in self._steps:
            sleep_until(self._began + self._late + at)
            name = step.get("reader") or next(iter(self._readers), "")
            getattr(self, f"_{step['op']}")(
                step, *([] if step["op"] in ("write", "wait_for_acknowledgments") else [name])
            )
            if self._qos.samples_per_app_ack == 1:
                # a reader sends its reports every 20 ms, if the machine lets it: two samples may share one
                eventually(self._all_told, "reports")
            if watched:
                eventually(lambda: self._publisher.is_sample_app_acknowledged(step["sn"]), "an effect")  # noqa: B023
                self._watermarks.append((step["sn"], self._watermark))
            # steps keep their distances: what one of them waited for, the next ones come later
            self._late = max(self._late, now() - self._began - at)
        for wait in self._waits:
            wait.join()
        self._publisher.publish_flush(PATIENCE_SECONDS)
        eventually(self._all_arrived, "the samples to arrive")
        eventually(self._all_confirmed, "confirmations")
        eventually(lambda: all(losses.over for losses in self._losses), "what was lost")
        if "persistence" in self._given:
            self._ask_persistence()
        # its answer is behind everything that was told before
        eventually(self._is_known, "settle to know what is written")
        return self._observation()

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _write(self, step: Json) -> None:
        assert self._publisher.next_seq == step["sn"]
        try:
            self._publisher.publish(b"sample", key=step.get("key", "k").encode())
        except ReaderTimeout:
            self._seen |= {f"write_{step['sn']}": "TIMEOUT", AT: now() - self._began}
        else:
            self._numbers.append(step["sn"])

    def _wait_for_acknowledgments(self, step: Json) -> None:
        def wait() -> None:
            try:
                self._publisher.wait_for_acknowledgments(step["max_ms"] / 1000 + self._extra_seconds)
            except ReaderTimeout:
                self._seen["wait"] = "TIMEOUT"
            else:
                self._seen["wait"] = "OK"
            self._seen[AT] = now() - self._began

        self._waits.append(Thread(target=wait))
        self._waits[-1].start()

    def _cached(self, step: Json, name: str) -> None:
        reader = self._readers[name]
        eventually(lambda: reader.statistics.received >= step["sn"], "a sample to be here")

    def _take(self, step: Json, name: str) -> None:
        self._access(name, step["sn"], self._readers[name].take)

    _take_copy = _take

    def _read(self, step: Json, name: str) -> None:
        self._access(name, step["sn"], partial(self._readers[name].read, unread=True))

    def _access(self, name: str, number: int, access: Callable[..., list[Sample]]) -> None:
        while (name, number) not in self._taken:
            for sample in access(1, ENGINE_SECONDS):
                self._taken[name, sample.seq] = sample

    def _take_loan(self, step: Json, name: str) -> None:
        loan = self._loans[name] = self._stack.enter_context(ExitStack())
        (sample,) = loan.enter_context(self._readers[name].loan(1, PATIENCE_SECONDS))
        assert sample.seq == step["sn"]

    def _return_loan(self, _step: Json, name: str) -> None:
        self._loans.pop(name).close()

    def _acknowledge_sample(self, step: Json, name: str) -> None:
        if not {name, None} & self._takes:
            self._take(step, name)
        response = step.get("response")
        self._readers[name].acknowledge_sample(
            self._taken[name, step["sn"]], None if response is None else bytes(response)
        )

    def _acknowledge_all(self, step: Json, name: str) -> None:
        response = step.get("response")
        self._readers[name].acknowledge_all(None if response is None else bytes(response))

    def _reader_lost(self, _step: Json, name: str) -> None:
        self._readers.pop(name).close()

    def _crash(self, _step: Json, name: str) -> None:
        self._readers.pop(name).close(leave=False)

    def _restart(self, _step: Json, name: str) -> None:
        self._join(name)
        # one more, behind all that comes again
        last = self._publisher.next_seq
        self._publisher.publish(b"last")
        again: list[int] = []
        while last not in again:
            again += [sample.seq for sample in self._readers[name].take(1, ENGINE_SECONDS)]
        self._seen["redelivered"] = again[:-1]

    def _ask_persistence(self) -> None:
        """Start the readers again: what they acknowledged to the writer does not come from the table either."""
        for name in list(self._readers):
            self._reader_lost({}, name)
            self._restart({}, name)
        told = {"writer": self._callbacks, "persistence": self._confs()}
        self._seen["persistence_resends"] = self._seen["redelivered"]
        self._seen["ack_sent_to"] = [party for party, acks in told.items() if acks]

    def _join(self, name: str) -> None:
        given = self._given
        excluded = given.get("filter_excludes", ())
        reader = self._readers[name] = self._stack.enter_context(
            SampleReader(
                self._settlement.kafka,
                name=f"{self._writer}-{name}",
                qos=self._qos,
                role=self._roles.get(name),
                durable=not self._loses,
                writers=[self._writer],
                filter=lambda sample: sample.seq not in excluded,
                start_timeout=PATIENCE_SECONDS,
            )
        )
        if given.keys() & {"lose_app_ack", "lose_conf"}:
            self._losses.append(Losses(reader, given))

    def _names(self, when: list[Json]) -> list[str]:
        named = [step["reader"] for step in when if "reader" in step]
        found = list(dict.fromkeys([*self._given.get("readers", []), *named]))
        return found or ([] if self._given.get("required") else ["R1"])

    # -- what was seen -------------------------------------------------------------------------------------------------

    def _on_acknowledged(self, callback: Callback) -> None:
        self._callbacks.append(
            {
                "reader": callback.reader.removeprefix(f"{self._writer}-"),
                "role": callback.role,
                "sn": callback.seq,
                "response": None if callback.response is None else list(callback.response),
                "valid": callback.valid_response,
                "auto": callback.auto,
                AT: now() - self._began,
            }
        )

    def _app_acks(self) -> Iterator[tuple[AppAck, int]]:
        for record, at in self._settlement.reports():
            if isinstance(record, AppAck) and record.writer == self._writer:
                yield record, at - self._began

    def _confs(self) -> list[AppAckConf]:
        answers = [answer for answer, _ in self._settlement.answers()]
        return [answer for answer in answers if isinstance(answer, AppAckConf) and answer.writer == self._writer]

    def _is_known(self) -> bool:
        self._publisher.waiting_for(PATIENCE_SECONDS)
        states = [answer for answer, _ in self._settlement.answers() if isinstance(answer, WriterState)]
        return max(state.written for state in states if state.writer == self._writer) >= len(self._numbers)

    def _all_arrived(self) -> bool:
        return "redelivered" in self._seen or all(
            reader.statistics.received >= len(self._numbers) for reader in self._readers.values()
        )

    def _all_confirmed(self) -> bool:
        """Tell whether every acknowledgement of the readers is confirmed."""
        confirmed = {(conf.reader, conf.epoch, conf.count) for conf in self._confs()}
        return self._cover(ack for ack, _ in self._app_acks() if (ack.reader, ack.epoch, ack.count) in confirmed)

    def _all_told(self) -> bool:
        """Tell whether every acknowledgement of the readers is on its way."""
        return self._cover(ack for ack, _ in self._app_acks())

    def _cover(self, reports: Iterable[AppAck]) -> bool:
        """Tell whether these reports acknowledge all that the readers did."""
        if self._qos.kind == "protocol":
            return True
        covered: dict[str, set[int]] = {}
        for ack in reports:
            covered.setdefault(ack.reader, set()).update(_numbers(ack))
        for name, reader in self._readers.items():
            statistics = reader.statistics
            said = statistics.acknowledged + statistics.filtered + statistics.replaced
            if said > len(covered.get(f"{self._writer}-{name}", ())):
                return False
        return True

    @property
    def _watermark(self) -> int:
        oldest = self._publisher.first_unacknowledged
        return (self._publisher.next_seq if oldest is None else oldest) - 1

    def _quorum(self, seq: int) -> dict[str, list[int]]:
        """Return how many readers of each required role have acknowledged a sample, and how many must."""
        rows = [row for row in self._settlement.deliveries(self._writer) if row["first"] <= seq <= row["last"]]
        return {
            role: [len({row["reader"] for row in rows if row["role"] == role}), quorum]
            for role, quorum in self._given.get("required", {}).items()
        }

    def _observation(self) -> Json:
        publisher = self._publisher
        app_acks: list[Json] = []
        said: set[tuple[str, int, int]] = set()
        # a report that waits for its period is timed from the steps, which may be late
        late = self._late if self._qos.samples_per_app_ack > 1 else 0
        covered: dict[str, set[int]] = {}
        for ack, at in self._app_acks():
            # what is new: until the engine has confirmed it, it is said again
            if (numbers := _numbers(ack)) != covered.get(ack.reader):
                covered[ack.reader] = numbers
                said.add((ack.reader, ack.epoch, ack.count))
                runs = [[run.first, run.last] for run in ack.intervals]
                flags = [FLAGS[run.reported] for run in ack.intervals]
                app_acks.append({"count": ack.count, "intervals": runs, "flags": flags, AT: at - late})
        confs = sorted({(conf.reader, conf.epoch, conf.count) for conf in self._confs()} & said)
        unacked = [seq for seq in self._numbers if not publisher.is_sample_app_acknowledged(seq)]
        done = [at for answer, at in self._settlement.answers() if _is_about(answer, self._writer)]
        seen = self._losses[0].observation() if self._losses else {}
        return {
            **seen,
            "not_at_ms": Absent(seen.get("app_ack_sent_at_ms", [])),
            "quorum": self._quorum(next(iter([*unacked, *reversed(self._numbers)]), 0)),
            "watermark": Watermarks(self._watermarks),
            "app_acks": app_acks,
            "conf": len(confs),
            "conf_counts": [count for _, _, count in confs],
            "callbacks": self._callbacks,
            "auto_acked": self._settlement.automatic(self._writer),
            "app_acked": {seq: seq not in unacked for seq in self._numbers},
            "retained": unacked,
            "unacked": unacked,
            "contiguous_watermark": self._watermark,
            "fully_acked": not unacked,
            # later than the last step is late enough
            "fully_acked_at_ms": min(done[-1] - self._began, self._steps[-1][0]) if done and not unacked else None,
            **self._seen,
        }


def _numbers(ack: AppAck) -> set[int]:
    return {seq for run in ack.intervals for seq in range(run.first, run.last + 1)}


def _is_about(answer: Any, writer: str) -> bool:
    return isinstance(answer, SamplesDone) and answer.writer == writer


def _reader_qos(given: Json) -> ReaderQos:
    names = {
        "samples_per_app_ack": "samples_per_app_ack",
        "app_ack_period_ms": "app_ack_period_ms",
        "max_app_ack_response_length": "max_response_length",
        "min_app_ack_response_keep_ms": "response_keep_ms",
        "depth": "depth",
    }
    best_effort = given.get("reliability") == "BEST_EFFORT"
    return ReaderQos(
        kind=KINDS[given.get("ack_kind", "PROTOCOL" if best_effort else "APPLICATION_EXPLICIT")],  # type: ignore[arg-type]
        history=given.get("history", "KEEP_ALL").lower().replace("_", "-"),
        **{name: given[word] for word, name in names.items() if word in given},
    )
