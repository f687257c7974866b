"""One writer, its readers and what settle knows of them; the link between them may lose messages."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ackstream.client.publishing._acks import Callback, WriterAcknowledgements
from ackstream.client.reading._reader_history import ReaderHistory
from ackstream.client.reading.samples import ReaderQos, Sample, WriterQos
from ackstream.jobs.settle.completion import Retention
from ackstream.protocol.messages import StoredRange
from ackstream.protocol.readers import AppAck, KnownWriter, ReaderStart, SamplesDone, WriterState
from tests.jobs.settle.logs import receive

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.conformance.scenarios.scenario import Json

FLAGS = {True: "0x0100", False: "0x0000"}
WRITER = "P"


class System:
    """A writer, the retention of its samples, and its readers."""

    def __init__(
        self,
        readers: Sequence[str],
        reader_qos: ReaderQos,
        writer_qos: WriterQos,
        given: Json,
        *,
        roles: Mapping[str, str],
        start: int,
    ) -> None:
        required = given.get("required", {})
        self.names = list(readers)
        self._qos = reader_qos
        self._roles = roles
        self._filtered = set(given.get("filter_excludes", []))
        self._lost_app_acks = set(given.get("lose_app_ack", []))
        self._lost_confs = set(given.get("lose_conf", []))
        durable = bool(given.get("durable_reader"))
        self._kept = {name: durable or roles.get(name) in required for name in readers}
        self.publications = WriterAcknowledgements(
            writer_qos,
            WRITER,
            lambda _: self.publications.receive(WriterState(WRITER, 0, 0)),
            lambda callback: self._seen["callbacks"].append(_callback(callback, self.now)),
        )
        self.publications.begin(start, start, (), timeout=1)
        self._max_blocking_ms = writer_qos.max_blocking_ms
        self.retention = Retention(WRITER, required, start=start)
        self.readers: dict[str, ReaderHistory] = {}
        self._epochs: dict[str, int] = {}
        self.now = 0
        for name in readers:
            self._join(name)
        self.numbers: list[int] = []
        self.requested = start - 1
        self.writes: dict[int, tuple[str, int]] = {}
        self._blocked: list[tuple[int, int, list[str]]] = []
        self._loans: dict[tuple[str, int | None], list[Sample]] = {}
        self.done_at: int | None = None
        self._received = 0
        self._seen: dict[str, list[Any]] = {
            word: [] for word in ("app_acks", "auto_acked", "callbacks", "conf_counts", "redelivered")
        }

    def _join(self, name: str) -> None:
        role, epoch = self._roles.get(name), self._epochs.get(name, 0) + 1
        self._epochs[name] = epoch
        self.retention.join(name, role, durable=self._kept[name])
        known = self.retention.readers[name].acknowledged
        self.readers[name] = ReaderHistory(
            self._qos,
            ReaderStart(name, epoch, role),
            wanted=lambda sample: sample.seq not in self._filtered,
            on_acknowledged=lambda *_: None,
            clock=lambda: self.now,
        )
        undelivered = self.retention.undelivered(name) if self._kept[name] else []
        self.readers[name].begin(
            KnownWriter(WRITER, known.start, self.retention.written, tuple(known), tuple(undelivered))
        )

    # -- the writer ---------------------------------------------------------------------------------------------------

    def write(self, number: int, now: int, arriving: list[str]) -> None:
        """Write the sample with this number, or begin to wait for room."""
        self.requested = max(number, self.requested)
        self._blocked.append((number, now + self._max_blocking_ms, arriving))
        self._write_blocked(now)

    def _write_blocked(self, now: int) -> None:
        while self._blocked:
            number, deadline, arriving = self._blocked[0]
            self._skip(number - 1)
            if not self.publications.full:
                self.publications.write()
                self.writes[number] = ("OK", now)
                self._written(number, now, arriving)
            elif now >= deadline:
                self.writes[number] = ("TIMEOUT", now)
            else:
                return
            del self._blocked[0]

    def _skip(self, last: int) -> None:
        """Leave out numbers that no step writes, or whose write timed out."""
        if last > self.publications.written:
            gap = (self.publications.written + 1, last)
            self.publications.written = last
            self.publications.receive(SamplesDone(WRITER, (gap,), 0))
            self.retention.write(last)
            self.retention.done.add(*gap)
            self._tell(StoredRange(WRITER, *gap, 0, (gap,)))

    def _written(self, number: int, now: int, arriving: list[str]) -> None:
        self.numbers.append(number)
        self.retention.write(number)
        self._tell(StoredRange(WRITER, number, number, 0))
        self._learn(now)
        for name in arriving:
            self.arrive(name, number)

    def _tell(self, stored: StoredRange) -> None:
        for reader in self.readers.values():
            reader.mark_stored(stored)

    @property
    def retained(self) -> list[int]:
        """The samples that the writer keeps."""
        return [seq for first, last in self.publications.retained for seq in range(first, last + 1)]

    # -- the readers --------------------------------------------------------------------------------------------------

    def arrive(self, name: str, number: int) -> None:
        """Let a sample reach a reader."""
        if name in self.readers and number in self.numbers:
            self.readers[name].add(sample(number))

    def take(self, name: str, number: int | None, how: str = "take") -> None:
        """Let the application take or read all samples, or those up to a number."""
        reader = self.readers[name]
        ways = {"take_loan": reader.loan, "read": partial(reader.read, unread=True)}
        hand_out = ways.get(how, reader.take)
        taken: list[Sample] = []
        while (number is None or number not in [one.seq for one in taken]) and (more := hand_out(1, 0)):
            taken += more
        if how == "take_loan":
            self._loans[name, number] = taken

    def return_loan(self, name: str, number: int | None) -> None:
        """Let the application return what it was lent."""
        self.readers[name].return_loan(self._loans.get((name, number)) or self._loans.get((name, None), []))

    def lose(self, name: str, now: int, *, crashed: bool) -> None:
        """Take a reader away, for good or until it starts again."""
        self.readers.pop(name, None)
        if not (crashed and self._kept[name]):
            self.retention.leave(name)
            self._learn(now)

    def restart(self, name: str) -> None:
        """Restart a reader under its name; it receives the samples retained for it."""
        self._join(name)
        for first, last in self.retention.undelivered(name) if self._kept[name] else []:
            for number in range(first, last + 1):
                self._seen["redelivered"].append(number)
                self.arrive(name, number)

    # -- between them -------------------------------------------------------------------------------------------------

    @property
    def deadline(self) -> int | None:
        """When :meth:`pump` must be called again."""
        deadlines = [reports.deadline for reader in self.readers.values() for reports in reader.reports.values()]
        deadlines += [deadline for _, deadline, _ in self._blocked[:1]]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def pump(self, now: int) -> None:
        """Transfer everything due now."""
        for reader in list(self.readers.values()):
            for report in reader.due():
                if isinstance(report, AppAck):
                    self._carry(reader, report, now)
                else:
                    receive(self.retention, report)
                    self._learn(now)
        self._write_blocked(now)

    def _carry(self, reader: ReaderHistory, report: AppAck, now: int) -> None:
        app_acks = self._seen["app_acks"]
        app_acks.append(_app_ack(report, now))
        if len(app_acks) in self._lost_app_acks:
            return
        self._received += 1
        receipt = receive(self.retention, report)
        for event in receipt.events:
            if event.auto:
                self._seen["auto_acked"] += [
                    {"sn": seq, "why": event.auto, "reader": event.reader, "t_ms": now}
                    for seq in range(event.first, event.last + 1)
                ]
            self.publications.receive(event)
        self._learn(now)
        if receipt.conf is not None:
            self._seen["conf_counts"].append(receipt.conf.count)
            if len(self._seen["conf_counts"]) not in self._lost_confs:
                reader.confirm(receipt.conf)

    def _learn(self, now: int) -> None:
        kept = bool(self.publications.retained)
        self.publications.receive(SamplesDone(WRITER, tuple(self.retention.done), 0))
        if kept and not self.publications.retained:
            self.done_at = now

    @property
    def seen(self) -> Json:
        """What passed between them."""
        confs = len(self._seen["conf_counts"])
        return self._seen | {
            "app_ack_sent_at_ms": [app_ack["t_ms"] for app_ack in self._seen["app_acks"]],
            "app_ack_received": self._received,
            "conf": confs,
            "conf_sent": confs,
        }


def sample(number: int) -> Sample:
    """Return a sample of the writer."""
    return Sample(WRITER, None, None, None, {}, 0, number, 0, number)


def _app_ack(report: AppAck, now: int) -> Json:
    return {
        "t_ms": now,
        "at_ms": now,
        "reader": report.reader,
        "count": report.count,
        "intervals": [[interval.first, interval.last] for interval in report.intervals],
        "flags": [FLAGS[interval.reported] for interval in report.intervals],
    }


def _callback(callback: Callback, now: int) -> Json:
    return {
        "t_ms": now,
        "at_ms": now,
        "reader": callback.reader,
        "role": callback.role,
        "sn": callback.seq,
        "response": None if callback.response is None else list(callback.response),
        "valid": callback.valid_response,
        "auto": callback.auto,
    }
