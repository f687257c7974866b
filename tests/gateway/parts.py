"""A gateway without Kafka: routes and all, and an exchange that the test itself answers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx
from msgspec import UNSET
from msgspec.structs import replace

from ackstream.client.requests.replies import Reply
from ackstream.gateway.access.authentication import Authenticator, access_of
from ackstream.gateway.errors import shutting_down
from ackstream.gateway.exchange import Dependencies
from ackstream.gateway.middleware.audit import Audit
from ackstream.gateway.server import application
from ackstream.protocol.ditto.acknowledgements import Acknowledgement
from ackstream.protocol.ditto.aggregates import write_acks
from ackstream.protocol.ditto.envelopes import Envelope, encode, error_envelope, raw
from ackstream.settings import Gateway, Quota, Settings
from ackstream.settings.gateway import with_access_file

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from ackstream.observe.outcomes import RequestOutcome
    from ackstream.protocol.ditto.twin.access import Access
    from ackstream.protocol.errors import DittoError
    from ackstream.protocol.ledger import AuditRow

URL = "http://localhost:8080"


class Exchange:
    """Keeps what was sent, and answers with what a function says."""

    def __init__(self, answer: Callable[[Envelope], Any]) -> None:
        self.sent: list[Envelope] = []
        self.waits: list[float] = []
        self.updates: list[list[tuple[str, int, Any]]] = []
        self.refusal: DittoError | None = None
        self.failure: DittoError | None = None
        self.during: Callable[[], Any] = list
        self._answer = answer
        self.interrupted = False

    async def receive(self, body: Coroutine[Any, Any, bytes], _seconds: float) -> bytes:
        return await body

    async def ask(self, command: Envelope) -> Reply:
        self.sent.append(command)
        # the client of Kafka gives an id to a command that has none
        known = replace(command, headers={"correlation-id": "of-its-own", **command.headers})
        envelope, completed_by = self._answer(known)
        return Reply(known.headers["correlation-id"], "r-1", envelope.status or 200, completed_by, encode(envelope), 0)

    def stream(self, command: Envelope) -> AsyncIterator[Reply]:
        """Give the updates of the test, and the answer; or raise the error of the test, at once or in its place."""
        if self.refusal is not None:
            raise self.refusal
        return self._replies(command)

    async def _replies(self, command: Envelope) -> AsyncIterator[Reply]:
        for acks in self.updates:
            envelope, _ = aggregate(*acks)(command)
            identity = command.headers["correlation-id"]
            yield Reply(identity, "r-1", 102, "progress", encode(replace(envelope, status=102)), 0)
        self.during()
        if self.failure is not None:
            raise self.failure
        yield await self.ask(command)

    async def publish(self, command: Envelope) -> None:
        self.sent.append(command)

    async def settle(self, command: Envelope, seconds: float) -> RequestOutcome | None:
        self.sent.append(command)
        self.waits.append(seconds)
        return self._answer(command)

    async def within(self, what: Coroutine[Any, Any, Any], _seconds: float) -> Any:
        """Wait for nothing: what is not there at once does not come."""
        awaited = asyncio.ensure_future(what)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if awaited.done():
            return awaited.result()
        awaited.cancel()
        if self.interrupted:
            raise shutting_down()
        return None


def response(status: int, value: Any = UNSET, **headers: Any) -> Callable[[Envelope], Any]:
    """Answer with a plain command or message response."""

    def answer(command: Envelope) -> Any:
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        found = {"correlation-id": command.headers["correlation-id"], "response-required": False, **named}
        return Envelope(
            command.topic, found, command.path, UNSET if value is UNSET else raw(value), status=status
        ), "response"

    return answer


def aggregate(*acks: tuple[str, int, Any]) -> Callable[[Envelope], Any]:
    """Answer with an aggregate."""

    def answer(command: Envelope) -> Any:
        identity = command.headers["correlation-id"]
        entries = [
            Acknowledgement(label, status, UNSET if value is UNSET else raw(value), {"correlation-id": identity})
            for label, status, value in acks
        ]
        return write_acks(
            entries, thing_id=command.topic.thing_id, channel="twin", headers={"correlation-id": identity}
        ), "acknowledgements"

    return answer


def failure(error: DittoError) -> Callable[[Envelope], Any]:
    """Answer with an error."""

    def answer(command: Envelope) -> Any:
        identity = {"correlation-id": command.headers["correlation-id"]}
        return error_envelope(error, thing_id=command.topic.thing_id, channel="twin", headers=identity), "error"

    return answer


NO_CONTENT = response(204)


class Web:
    """A client of a gateway with these settings."""

    def __init__(
        self,
        answer: Callable[[Envelope], Any] = NO_CONTENT,
        live: Any = None,
        quotas: tuple[Quota, ...] = (),
        **gateway: Any,
    ) -> None:
        self._settings, self._live = Settings(gateway=Gateway(**gateway), quotas=quotas), live
        self.exchange = Exchange(answer)
        self.rows: list[AuditRow] = []
        self.audit = Audit(self._settings.gateway.audit, self.rows.append)
        known = with_access_file(self._settings.gateway)
        authenticator = Authenticator(known, self.audit.failed)
        self.use(authenticator, access_of(known, authenticator))

    def use(self, authenticator: Authenticator, access: Access) -> None:
        """Serve with these."""
        given: Any = (self._settings, authenticator, access, self.exchange, self._live, None, self.audit)
        self.dependencies = Dependencies(*given)
        self._app = application(self.dependencies)

    @property
    def sent(self) -> Envelope:
        """The one message that was sent."""
        (found,) = self.exchange.sent
        return found

    def __call__(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Make a request below ``/api/2``; ``path`` may begin with two slashes for one outside of it.

        :param base: the address of the gateway, if it is not :data:`URL`
        """
        base = options.pop("base", URL)
        url = path[1:] if path.startswith("//") else f"/api/2{path}"

        async def go() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url=base) as client:
                return await client.request(method, url, **options)

        return asyncio.run(go())
