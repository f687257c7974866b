"""The reports of one reader to one writer: AppAcks, which are repeated until they are confirmed.

Pure: times are milliseconds of any clock that only goes forward, and the caller sends the reports. Rules: brokers.md
R11 to R17; Connext 31.12.5, 31.12.6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ackstream.errors import BadParameterError
from ackstream.protocol.intervals import Intervals
from ackstream.protocol.readers import AckInterval, AppAck, AutoReason

if TYPE_CHECKING:
    from ackstream.client.readers.qos import ReaderQos
    from ackstream.protocol.readers import AppAckConf


class _AckRun(msgspec.Struct):
    """Unconfirmed samples that were acknowledged alike; ``sent`` is the count of the first AppAck that had them."""

    first: int
    last: int
    at: int
    response: bytes | None
    auto: AutoReason | None
    sent: int = 0

    def continues(self, first: int, at: int, response: bytes | None, auto: AutoReason | None) -> bool:
        """Return whether a run can be appended; the time matters only for how long a response is repeated."""
        alike = (self.last + 1, self.response, self.auto) == (first, response, auto)
        return alike and not self.sent and (response is None or self.at == at)


class AckReports:
    """What one reader has acknowledged to one writer, and which part of it is confirmed.

    Use: :meth:`acknowledge`, send what :meth:`due` returns, ask again at :attr:`deadline`, :meth:`confirm` the answers.
    """

    def __init__(
        self,
        qos: ReaderQos,
        reader: str,
        writer: str,
        *,
        epoch: int = 1,
        role: str | None = None,
        acknowledged: Intervals | None = None,
    ) -> None:
        """Begin an epoch.

        :param acknowledged: what earlier epochs had confirmed; its start is the first sample the reader expects
        """
        self.acknowledged = Intervals() if acknowledged is None else acknowledged
        self.confirmed = Intervals(self.acknowledged, start=self.acknowledged.start)
        self._qos = qos
        self._reader = reader
        self._writer = writer
        self._epoch = epoch
        self._role = role
        self._open: list[_AckRun] = []
        self._waiting = 0
        self._waiting_since: int | None = None
        self._count = 0
        self._sent_at: int | None = None

    def acknowledge(
        self, first: int, last: int, now: int, *, response: bytes | None = None, auto: AutoReason | None = None
    ) -> None:
        """Acknowledge samples; those that are acknowledged already stay as they are.

        :raises BadParameterError: the response is longer than ``max_response_length``
        """
        if response is not None and len(response) > self._qos.max_response_length:
            raise BadParameterError(
                f"The response has {len(response)} bytes; max_response_length allows {self._qos.max_response_length}."
            )
        for begin, end in self.acknowledged.add(first, last):
            self._waiting += end - begin + 1
            self._waiting_since = now if self._waiting_since is None else self._waiting_since
            if self._open and self._open[-1].continues(begin, now, response, auto):
                self._open[-1].last = end
            else:
                self._open.append(_AckRun(begin, end, now, response, auto))

    @property
    def deadline(self) -> int | None:
        """When to call :meth:`due` again; ``None`` while nothing is waiting or unconfirmed."""
        since = [time for time in (self._waiting_since, self._sent_at) if time is not None]
        return min(since) + self._qos.app_ack_period_ms if since else None

    def due(self, now: int) -> AppAck | None:
        """Return the AppAck to send now, if enough samples are waiting or the period is over."""
        deadline = self.deadline
        if self._waiting >= self._qos.samples_per_app_ack or (deadline is not None and now >= deadline):
            return self.flush(now)
        return None

    def flush(self, now: int) -> AppAck | None:
        """Return an AppAck with everything that is waiting or unconfirmed, as on closing; ``None`` if nothing is."""
        if not self._open:
            return None
        self._count += 1
        intervals = self._intervals(now)
        for run in self._open:
            run.sent = run.sent or self._count
        self._waiting, self._waiting_since, self._sent_at = 0, None, now
        return AppAck(
            self._reader, self._writer, self._epoch, self._count, intervals, self._role, self.acknowledged.start
        )

    def _intervals(self, now: int) -> tuple[AckInterval, ...]:
        """Return everything acknowledged, ascending; neighbours that differ in nothing are one interval (R15)."""
        intervals = [AckInterval(first, last, reported=True) for first, last in self.confirmed]
        for run in self._open:
            expired = run.sent > 0 and now - run.at > self._qos.response_keep_ms
            intervals.append(
                AckInterval(run.first, run.last, None if expired else run.response, run.auto, run.sent > 0)
            )
        intervals.sort(key=lambda interval: interval.first)
        merged: list[AckInterval] = []
        for interval in intervals:
            before = merged[-1] if merged else None
            if before is not None and before.last + 1 == interval.first and _alike(before, interval):
                merged[-1] = msgspec.structs.replace(before, last=interval.last)
            else:
                merged.append(interval)
        return tuple(merged)

    def confirm(self, conf: AppAckConf) -> bool:
        """Apply a confirmation to its AppAck and to all before it, since each repeats the contents of the earlier ones.

        :return: ``False`` if it is of another epoch, or of no AppAck that was sent
        """
        if conf.epoch != self._epoch or not 1 <= conf.count <= self._count:
            return False
        still_open = []
        for run in self._open:
            if 1 <= run.sent <= conf.count:
                self.confirmed.add(run.first, run.last)
            else:
                still_open.append(run)
        self._open = still_open
        if not any(run.sent for run in still_open):
            self._sent_at = None
        return True


def _alike(one: AckInterval, other: AckInterval) -> bool:
    return (one.response, one.auto, one.reported) == (other.response, other.auto, other.reported)
