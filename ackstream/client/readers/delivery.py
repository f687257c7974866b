"""A reader: which samples the application was handed, and when they count as acknowledged.

Pure; rules: brokers.md R1 to R5, R7; Connext 31.12.1. What it cannot know, a crash for example, is the business of
``retention``.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from ackstream.client.readers.reports import AppAcks
from ackstream.errors import PreconditionNotMetError
from ackstream.protocol.intervals import Intervals
from ackstream.protocol.readers import AppAck, ProtocolAck

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ackstream.client.readers.qos import ReaderQos
    from ackstream.protocol.readers import AppAckConf, AutoReason

Report: TypeAlias = AppAck | ProtocolAck


class SampleId(msgspec.Struct, frozen=True):
    """A sample's identity, and the key that KEEP_LAST counts by."""

    writer: str
    seq: int
    key: str | None = None


class Loan:
    """Samples lent to the application; with ``application-auto`` they are acknowledged when it gives them back."""

    def __init__(self, samples: list[SampleId]) -> None:
        self.samples = samples
        self.returned = False


class _WriterSamples:
    """What the reader knows of one writer."""

    def __init__(self, app_acks: AppAcks) -> None:
        self.app_acks = app_acks
        # the numbers it ever had here: later copies are dropped
        self.received = Intervals(app_acks.acknowledged, start=app_acks.acknowledged.start)
        self.reported = self.received.watermark
        self.skipped = Intervals(start=self.received.start)


class SampleDelivery:
    """One reader of any number of writers.

    Use: :meth:`receive` what arrives, :meth:`take` or :meth:`loan` for the application, the ``acknowledge`` calls, then
    send what :meth:`due` returns, again at :attr:`deadline`, and :meth:`confirm` the answers.
    """

    def __init__(
        self,
        qos: ReaderQos,
        name: str,
        *,
        epoch: int = 1,
        role: str | None = None,
        acknowledged: Mapping[str, Intervals] | None = None,
        told: Callable[[SampleId, bytes | None, AutoReason | None], None] | None = None,
    ) -> None:
        """Begin an epoch.

        :param name: its durable identity: what it had acknowledged under this name it does not get again
        :param epoch: greater at each start under this name
        :param role: the required subscription it serves
        :param acknowledged: by writer, what earlier epochs had confirmed
        :param told: called for each sample that is acknowledged, with its response and the reason of an automatic one
        """
        self._qos = qos
        self._name = name
        self._epoch = epoch
        self._role = role
        self._earlier = dict(acknowledged or {})
        self._told = told
        self._writers: dict[str, _WriterSamples] = {}
        self._cache: dict[SampleId, None] = {}
        self._handed_out: dict[tuple[str, int], SampleId] = {}

    def _writer(self, name: str) -> _WriterSamples:
        if name not in self._writers:
            earlier = self._earlier.pop(name, None)
            app_acks = AppAcks(self._qos, self._name, name, epoch=self._epoch, role=self._role, acknowledged=earlier)
            self._writers[name] = _WriterSamples(app_acks)
        return self._writers[name]

    def begin(self, writer: str, acknowledged: Intervals) -> None:
        """Take up a writer that nothing came from yet, with what earlier epochs had confirmed."""
        self._earlier[writer] = acknowledged
        self._writer(writer)

    # -- samples -------------------------------------------------------------------------------------------------------

    def receive(self, sample: SampleId, now: int, *, filtered: bool = False) -> bool:
        """Take a sample off the wire; return whether the application may be handed it.

        A copy is dropped. What the reader's filter excludes, and with KEEP_LAST what loses its place before the
        application saw it, is acknowledged with that reason: otherwise the writer would keep it for ever.
        """
        writer = self._writer(sample.writer)
        if not writer.received.add(sample.seq):
            return False
        if filtered:
            self._acknowledge(sample, now, auto="filtered")
            return False
        self._cache[sample] = None
        if self._qos.history == "keep-last":
            same_key = [held for held in self._cache if held.key == sample.key]
            for replaced in same_key[: -self._qos.depth]:
                del self._cache[replaced]
                self._acknowledge(replaced, now, auto="replaced")
        return True

    def skip(self, writer: str, first: int, last: int) -> None:
        """Note that numbers are no samples, or none for this reader: it does not wait for them."""
        known = self._writer(writer)
        known.received.add(first, last)
        known.skipped.add(first, last)

    @property
    def available(self) -> list[SampleId]:
        """The samples that the application has not been handed, in the order of arrival."""
        return list(self._cache)

    def first(self, limit: int) -> list[SampleId]:
        """Return the first of the samples that are :attr:`available`."""
        return list(islice(self._cache, limit))

    def take(self, now: int, samples: Iterable[SampleId] | None = None) -> list[SampleId]:
        """Hand samples to the application as copies: those of ``samples`` that are available, or all."""
        taken = self._hand_out(samples)
        if self._qos.kind == "application-auto":
            self._acknowledge_all(taken, now)
        return taken

    def loan(self, samples: Iterable[SampleId] | None = None) -> Loan:
        """Lend samples to the application, as :meth:`take` chooses them."""
        return Loan(self._hand_out(samples))

    def return_loan(self, loan: Loan, now: int) -> None:
        """Take a loan back.

        :raises PreconditionNotMetError: it was returned before
        """
        if loan.returned:
            raise PreconditionNotMetError("This loan was returned before; return each loan once.")
        loan.returned = True
        if self._qos.kind == "application-auto":
            self._acknowledge_all(loan.samples, now)

    def _hand_out(self, samples: Iterable[SampleId] | None) -> list[SampleId]:
        taken = [sample for sample in (self.available if samples is None else samples) if sample in self._cache]
        for sample in taken:
            del self._cache[sample]
            if self._qos.kind != "protocol":
                self._handed_out[sample.writer, sample.seq] = sample
        return taken

    # -- acknowledgements ----------------------------------------------------------------------------------------------

    def acknowledge_sample(self, writer: str, seq: int, now: int, response: bytes | None = None) -> None:
        """Acknowledge one sample that was handed out; of one that is acknowledged already nothing changes.

        Readers of other kinds than ``application-explicit`` have their own time for it: the call is without effect.

        :raises PreconditionNotMetError: the application was not handed this sample (R4)
        :raises BadParameterError: the response is too long
        """
        if self._qos.kind == "protocol":
            return
        sample = self._handed_out.get((writer, seq))
        if sample is None:
            if seq in self._writer(writer).app_acks.acknowledged:
                return
            raise PreconditionNotMetError(
                f"{self._name} cannot acknowledge sample {seq} of {writer}: the application was not handed it."
            )
        if self._qos.kind == "application-explicit":
            self._acknowledge(sample, now, response=response)

    def acknowledge_all(self, now: int, response: bytes | None = None) -> None:
        """Acknowledge every sample that was handed out and is not acknowledged; never those that only wait here.

        :raises BadParameterError: the response is too long
        """
        if self._qos.kind == "application-explicit":
            self._acknowledge_all(list(self._handed_out.values()), now, response)

    def _acknowledge_all(self, samples: Iterable[SampleId], now: int, response: bytes | None = None) -> None:
        for sample in sorted(samples, key=lambda sample: (sample.writer, sample.seq)):
            self._acknowledge(sample, now, response=response)

    def _acknowledge(
        self, sample: SampleId, now: int, *, response: bytes | None = None, auto: AutoReason | None = None
    ) -> None:
        if self._qos.kind != "protocol":
            app_acks = self._writer(sample.writer).app_acks
            app_acks.acknowledge(sample.seq, sample.seq, now, response=response, auto=auto)
        self._handed_out.pop((sample.writer, sample.seq), None)
        if self._told is not None:
            self._told(sample, response, auto)

    # -- reports -------------------------------------------------------------------------------------------------------

    def due(self, now: int) -> list[Report]:
        """Return what to send now."""
        if not self._qos.reliable:
            return []
        if self._qos.kind == "protocol":
            return [self._protocol_ack(name, writer) for name, writer in self._writers.items() if _advanced(writer)]
        app_acks = [writer.app_acks.due(now) for writer in self._writers.values()]
        return [app_ack for app_ack in app_acks if app_ack is not None]

    def flush(self, now: int) -> list[Report]:
        """Return what to send at the end: all that is not confirmed."""
        if not self._qos.reliable or self._qos.kind == "protocol":
            return self.due(now)
        app_acks = [writer.app_acks.flush(now) for writer in self._writers.values()]
        return [app_ack for app_ack in app_acks if app_ack is not None]

    def _protocol_ack(self, name: str, writer: _WriterSamples) -> ProtocolAck:
        writer.reported = writer.received.watermark
        return ProtocolAck(self._name, name, self._epoch, writer.reported, self._role, writer.received.start)

    @property
    def deadline(self) -> int | None:
        """When :meth:`due` must be asked again."""
        if not self._qos.reliable or self._qos.kind == "protocol":
            return None
        deadlines = [writer.app_acks.deadline for writer in self._writers.values()]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def confirm(self, conf: AppAckConf) -> bool:
        """Take a confirmation; ``False`` where it is of no AppAck of this reader and epoch."""
        writer = self._writers.get(conf.writer)
        return conf.reader == self._name and writer is not None and writer.app_acks.confirm(conf)

    def settled(self, writer: str, seq: int) -> bool:
        """Tell whether a sample is not needed after a restart: what is confirmed or sent says so, or it is none."""
        known = self._writers.get(writer)
        if known is None:
            return False
        told = seq <= known.reported if self._qos.kind == "protocol" else seq in known.app_acks.confirmed
        return told or seq in known.skipped


def _advanced(writer: _WriterSamples) -> bool:
    return writer.received.watermark > writer.reported
