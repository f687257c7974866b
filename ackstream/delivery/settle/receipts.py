"""What a report of a reader came to."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from ackstream.protocol.app_acks import AppAckConf, ApplicationAcknowledged
from ackstream.protocol.intervals import Interval

Reason: TypeAlias = Literal[
    "stale-epoch", "stale-count", "role-changed", "reversed", "never-delivered", "too-many-holes", "response-too-long"
]


class Ignored(msgspec.Struct, frozen=True):
    """A report, or one interval of it, that was not used (of ``response-too-long``: without its response), and why."""

    reason: Reason
    first: int | None = None
    last: int | None = None


class Receipt(msgspec.Struct, frozen=True):
    """What a report came to: ``done`` are samples that are done by it; without ``conf`` the reader sends it again."""

    events: tuple[ApplicationAcknowledged, ...] = ()
    done: tuple[Interval, ...] = ()
    conf: AppAckConf | None = None
    ignored: tuple[Ignored, ...] = ()
