"""What one reader tells one writer: AppAcks, sent again until they are confirmed.

Pure: the caller passes the time (milliseconds) and sends what it gets. Rules: brokers.md R11 to R17; Connext 31.12.5,
31.12.6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ackstream.errors import BadParameterError
from ackstream.protocol.intervals import Intervals
from ackstream.protocol.readers import AckInterval, AppAck, AutoReason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ackstream.client.readers.qos import ReaderQos
    from ackstream.protocol.readers import AppAckConf


class _Ack(msgspec.Struct):
    """A run of samples that were acknowledged alike and are not confirmed; ``sent``: the first AppAck that said so."""

    first: int
    last: int
    at: int
    response: bytes | None
    auto: AutoReason | None
    sent: int = 0

    def goes_on(self, first: int, at: int, response: bytes | None, auto: AutoReason | None) -> bool:
        """Tell whether it can be longer by a run: the time matters only for how long a response is repeated."""
        alike = (self.last + 1, self.response, self.auto) == (first, response, auto)
        return alike and not self.sent and (response is None or self.at == at)


class AppAcks:
    """The acknowledgements of a reader for a writer.

    Use: :meth:`acknowledge`, then send what :meth:`due` returns; ask it again at :attr:`deadline`; :meth:`confirm` what
    the other side answers.
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
        self._qos = qos
        self._reader = reader
        self._writer = writer
        self._epoch = epoch
        self._role = role
        self.confirmed = Intervals(self.acknowledged, start=self.acknowledged.start)
        self._open: list[_Ack] = []
        self._waiting = 0
        self._waiting_since: int | None = None
        self._count = 0
        self._sent_at: int | None = None

    def acknowledge(
        self, first: int, last: int, now: int, *, response: bytes | None = None, auto: AutoReason | None = None
    ) -> None:
        """Acknowledge samples; of those that are acknowledged already nothing changes.

        :raises BadParameterError: the response is longer than ``max_response_length``
        """
        if response is not None and len(response) > self._qos.max_response_length:
            raise BadParameterError(
                f"The response has {len(response)} bytes; max_response_length allows {self._qos.max_response_length}."
            )
        for begin, end in self.acknowledged.add(first, last):
            self._waiting += end - begin + 1
            self._waiting_since = now if self._waiting_since is None else self._waiting_since
            latest = self._open[-1] if self._open else None
            if latest is not None and latest.goes_on(begin, now, response, auto):
                latest.last = end
            else:
                self._open.append(_Ack(begin, end, now, response, auto))

    @property
    def deadline(self) -> int | None:
        """When :meth:`due` must be asked again; ``None`` where nothing waits or is unconfirmed."""
        since = [time for time in (self._waiting_since, self._sent_at) if time is not None]
        return min(since) + self._qos.app_ack_period_ms if since else None

    def due(self, now: int) -> AppAck | None:
        """Return the AppAck to send now: enough samples wait, or the period is over for something."""
        deadline = self.deadline
        if self._waiting >= self._qos.samples_per_app_ack or (deadline is not None and now >= deadline):
            return self.flush(now)
        return None

    def flush(self, now: int) -> AppAck | None:
        """Return an AppAck with all that waits or is unconfirmed, as on closing; ``None`` where there is nothing."""
        if not self._open:
            return None
        self._count += 1
        intervals = tuple(self._intervals(now))
        for ack in self._open:
            ack.sent = ack.sent or self._count
        self._waiting, self._waiting_since, self._sent_at = 0, None, now
        return AppAck(
            self._reader, self._writer, self._epoch, self._count, intervals, self._role, self.acknowledged.start
        )

    def _intervals(self, now: int) -> Iterator[AckInterval]:
        """Yield the whole picture, ascending; neighbours that differ in nothing are one interval (R15)."""
        told = [AckInterval(first, last, reported=True) for first, last in self.confirmed]
        for ack in self._open:
            lapsed = ack.sent > 0 and now - ack.at > self._qos.response_keep_ms
            told.append(AckInterval(ack.first, ack.last, None if lapsed else ack.response, ack.auto, ack.sent > 0))
        told.sort(key=lambda interval: interval.first)
        before: AckInterval | None = None
        for interval in told:
            if before is None:
                before = interval
                continue
            joined = msgspec.structs.replace(before, last=interval.last)
            if before.last + 1 == interval.first and joined == msgspec.structs.replace(interval, first=before.first):
                before = joined
            else:
                yield before
                before = interval
        if before is not None:
            yield before

    def confirm(self, conf: AppAckConf) -> bool:
        """Take a confirmation: of that AppAck, and of all before it, as each repeats what the earlier ones said.

        Returns ``False`` where it is of another epoch or of no AppAck that was sent.
        """
        if conf.epoch != self._epoch or not 1 <= conf.count <= self._count:
            return False
        still_open = []
        for ack in self._open:
            if 1 <= ack.sent <= conf.count:
                self.confirmed.add(ack.first, ack.last)
            else:
                still_open.append(ack)
        self._open = still_open
        if not any(ack.sent for ack in still_open):
            self._sent_at = None
        return True
