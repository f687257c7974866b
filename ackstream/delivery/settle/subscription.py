"""What a writer's retention knows of one reader, and which of its reports count."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ackstream.protocol.app_acks import AckInterval, AppAck, ProtocolAck
from ackstream.protocol.intervals import Intervals

if TYPE_CHECKING:
    from ackstream.delivery.settle.receipts import Reason


class Subscription(msgspec.Struct):
    """One reader of a writer's samples; ``present`` matters for readers without a required role."""

    acknowledged: Intervals
    role: str | None = None
    present: bool = True
    epoch: int = 0
    count: int = 0

    def refusal(self, report: AppAck | ProtocolAck) -> Reason | None:
        """Tell why a report does not count: something newer was said; the same count again is no harm."""
        if report.epoch < self.epoch:
            return "stale-epoch"
        if report.epoch == self.epoch:
            if isinstance(report, AppAck) and report.count < self.count:
                return "stale-count"
            if report.role != self.role:
                return "role-changed"
        return None

    def hear(self, report: AppAck | ProtocolAck) -> None:
        """Note that a report is the newest now."""
        if isinstance(report, AppAck):
            self.count = report.count
        self.epoch, self.present = report.epoch, True

    def intervals(self, report: AppAck | ProtocolAck) -> tuple[AckInterval, ...]:
        """Return what a report says is acknowledged."""
        if isinstance(report, AppAck):
            return report.intervals
        start = self.acknowledged.start
        return (AckInterval(start, report.up_to),) if report.up_to >= start else ()
