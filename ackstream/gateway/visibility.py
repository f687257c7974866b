"""What a subject gets to see of signals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from ackstream.protocol.access import OPEN
from ackstream.protocol.envelopes import raw

if TYPE_CHECKING:
    from ackstream.protocol.access import Access
    from ackstream.protocol.subscriptions import Publication


def seen_by(access: Access, subjects: tuple[str, ...], signal: Publication) -> Publication | None:
    """Return a signal as the subjects may see it, ``None`` where they may not.

    Of an event that is what they may read of what has changed; commands and messages they see whole or not at all.
    """
    envelope = signal.envelope
    if access is OPEN or access.may("READ", subjects, signal.thing_id, envelope.path):
        return signal
    if signal.stream not in ("events", "live-events") or envelope.value is UNSET:
        return None
    value = access.visible(subjects, signal.thing_id, envelope.path, msgspec.json.decode(envelope.value))
    if value is UNSET:
        return None
    return msgspec.structs.replace(signal, envelope=msgspec.structs.replace(envelope, value=raw(value)))
