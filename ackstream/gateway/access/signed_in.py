"""Who the client of a WebSocket is, from its handshake on: until its token expires or its user changes."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ackstream.gateway.middleware.audit import Sender
from ackstream.protocol.errors import DittoError

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import HTTPConnection

    from ackstream.gateway.access.authentication import Authenticator, Identity


class SignedIn:
    """The identity of one session; for the event loop that serves it."""

    def __init__(
        self,
        authenticator: Authenticator,
        connection: HTTPConnection,
        identity: Identity,
        end: Callable[[str], None],
    ) -> None:
        """Begin; ``end`` is called with the reason why the session must not go on."""
        self._authenticator, self._connection, self._end = authenticator, connection, end
        self._identity = identity
        self._expiry: asyncio.TimerHandle | None = None
        self._expire(identity.expires)
        self._unwatch = authenticator.watch(in_loop(self._look))
        # the user may have changed since the handshake
        self._look()

    @property
    def subjects(self) -> tuple[str, ...]:
        """The subjects and roles of the client, as they are now."""
        return self._identity.subjects

    @property
    def sender(self) -> Sender:
        """The same for the audit."""
        return Sender.of(self._connection, self.subjects)

    async def renew(self, token: str) -> None:
        """Continue with the roles and the expiry of a new token; one that is unfit or another subject's is the end."""
        try:
            identity = await self._authenticator.renew(self._connection, token)
        except DittoError as error:
            self._end(error.message)
            return
        if identity.subjects[0] != self.subjects[0]:
            self._end("The token belongs to another subject.")
            return
        self._identity = identity
        self._expire(identity.expires)

    def close(self) -> None:
        """Look at nothing more."""
        self._expire(None)
        self._unwatch()

    def _expire(self, moment: float | None) -> None:
        """End the session at a time (epoch seconds) instead of any earlier choice; ``None``: do not."""
        if self._expiry is not None:
            self._expiry.cancel()
        if moment is not None:
            loop, seconds = asyncio.get_running_loop(), moment - time.time()
            self._expiry = loop.call_later(seconds, self._end, "The token has expired.")

    def _look(self) -> None:
        if not self._authenticator.holds(self._identity):
            self._end("The user has changed: sign in again.")


def in_loop(work: Callable[[], Any]) -> Callable[[], None]:
    """Return a function for other threads, which has the running event loop do the work."""
    loop = asyncio.get_running_loop()

    def start() -> None:
        # the loop may have been closed already
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(work)

    return start
