"""Who sent a signal: the header ``ditto-originator``, and the signature without which no reader believes it.

A record of Kafka does not show who wrote it. Gateway and connections know their clients: they name the sender in the
message, and sign the record with a key (``kafka.originator_key``) that they share with those who read it. A header
without such a signature is taken out, as Ditto takes internal headers out of what comes from outside.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Any

from ackstream.protocol.ditto.headers import ORIGINATOR

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_LENGTH = len(ORIGINATOR)
_LENGTH_BYTES = 4


def signature(key: str, correlation_id: str, value: bytes) -> bytes:
    """Return the signature of a record, for its header ``originator-signature``.

    It covers the whole value, and the correlation-id of the record header, so it fits no other command.
    """
    identity = correlation_id.encode()
    return hmac.digest(key.encode(), len(identity).to_bytes(_LENGTH_BYTES, "big") + identity + value, "sha256")


def names_sender(headers: Iterable[str]) -> bool:
    """Return whether a header names the sender."""
    # of most messages no header has a name of this length
    return _LENGTH in map(len, headers) and any(name.lower() == ORIGINATOR for name in headers)


def believed(
    headers: Mapping[str, Any], key: str | None, correlation_id: str, value: bytes | None, signed: bytes | None
) -> Mapping[str, Any]:
    """Return the headers of a message, without the sender unless the record is signed.

    :param key: ``None``: nothing is believed
    :param correlation_id: that of the record header
    :param value: the message as it is in the record
    :param signed: the record header ``originator-signature``
    """
    if ORIGINATOR not in headers and not names_sender(headers):
        return headers
    if key and value and signed is not None and hmac.compare_digest(signature(key, correlation_id, value), signed):
        return headers
    kept = dict(headers)
    kept.pop(ORIGINATOR, None)
    if names_sender(kept):
        kept = {name: text for name, text in kept.items() if name.lower() != ORIGINATOR}
    return kept
