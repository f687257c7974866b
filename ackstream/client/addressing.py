"""What a sender adds to a command: its deadline, whom it waits for, and its correlation-id."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import msgspec

from ackstream.client.records import CORRELATION_ID, header
from ackstream.protocol.durations import Duration
from ackstream.protocol.headers import REQUESTED_ACKS, RESPONSE_REQUIRED, TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackstream.protocol.envelopes import Envelope


def address(
    command: Envelope,
    *,
    timeout: float | str | None = None,
    acks: Iterable[str] | None = None,
    response_required: bool | None = None,
    correlation_id: str | None = None,
) -> tuple[Envelope, str]:
    """Return a copy of the command with its headers set, and its correlation-id; ``None`` leaves a header as it is.

    :param timeout: seconds, or a text of the protocol such as ``"500ms"``
    :param acks: labels of the acknowledgements to wait for
    :param correlation_id: else that of the command's headers, else a new one
    :raises DittoError: a negative number of seconds
    """
    identity = str(correlation_id or header(command.headers, CORRELATION_ID) or uuid.uuid4())
    headers = {name: value for name, value in command.headers.items() if name.lower() != CORRELATION_ID}
    headers[CORRELATION_ID] = identity
    if timeout is not None:
        headers[TIMEOUT] = timeout if isinstance(timeout, str) else str(Duration.of_milliseconds(round(timeout * 1000)))
    if acks is not None:
        headers[REQUESTED_ACKS] = list(acks)
    if response_required is not None:
        headers[RESPONSE_REQUIRED] = response_required
    return msgspec.structs.replace(command, headers=headers), identity
