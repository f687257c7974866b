"""The admission of a client's command, for HTTP and WebSockets: headers, rights, condition, order; then its reply.

Not every command takes each header. A device does not know the twin, so the gateway queries the twin whether the
condition of a live command or message holds, and whether a query goes to the device. Source of the rules: Eclipse
Ditto, ``SupervisorLiveChannelDispatching``, ``SupervisorSmartChannelDispatching``, ``ThingCommandEnforcement``.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from time import monotonic
from typing import Any, Literal

from msgspec.structs import replace

from ackstream.client import Reply
from ackstream.client.requests.commands import retrieval
from ackstream.gateway.errors import header_unfit
from ackstream.gateway.exchange import Dependencies
from ackstream.observe.outcomes import RequestOutcome
from ackstream.protocol import errors
from ackstream.protocol.ditto import headers as names
from ackstream.protocol.ditto.acknowledgements import with_headers
from ackstream.protocol.ditto.envelopes import Envelope
from ackstream.protocol.ditto.requests import check_available
from ackstream.protocol.ditto.signal_defaults import DEFAULT_TIMEOUT_MS, SMART_EXTRA_MS, SMART_MAXIMUM_MS
from ackstream.protocol.ditto.twin.permissions import Kind, conceal, restrict
from ackstream.protocol.durations import Duration

_CHANGES: frozenset[Kind] = frozenset({"modify", "merge", "delete"})
_OF_TWIN: dict[str, frozenset[Kind]] = {
    names.CONDITION: frozenset({"retrieve", *_CHANGES}),
    **dict.fromkeys(("if-match", "if-none-match"), frozenset({"create", "retrieve", *_CHANGES})),
    names.IF_EQUAL: frozenset({"modify", "merge"}),
}
_OF_LIVE = dict.fromkeys(_OF_TWIN, frozenset[Kind]()) | {
    names.CONDITION: frozenset({"create", "retrieve", "message", *_CHANGES})
}
_OF_SEVERAL_THINGS = frozenset[Kind]({"many", "list", "search", "count", "messages", "whoami", "permissions"})
_TO_DEVICES = frozenset(name for name in names.UNAVAILABLE_HEADERS if names.DEFINITIONS[name].written)
"""Headers for the twin that devices get nevertheless, and may follow; the gateway removes others."""


def is_live(command: Envelope) -> bool:
    """Return whether a command or message is for a device."""
    return command.topic.channel == "live" or command.headers.get(names.CHANNEL) == "live"


def check_headers(kind: Kind | Literal["event"], headers: Mapping[str, Any], *, live: bool = False) -> None:
    """Reject headers without effect on such a request or event, if ``live`` for or from a device: 400, 405, 501."""
    if names.DECLARED_ACKS in headers:
        raise header_unfit(names.DECLARED_ACKS, "labels are declared as a WebSocket connects")
    for error in _unfit(kind, headers, live=live).values():
        raise error
    passed_on = _TO_DEVICES if _reaches_devices(kind, headers, live=live) else ()
    check_available({name: value for name, value in headers.items() if name not in passed_on})


def with_defaults(
    kind: Kind | Literal["event"], own: Mapping[str, Any], defaults: Mapping[str, Any], *, live: bool
) -> dict[str, Any]:
    """Return a message's headers, which all stay for ``check_headers``, with those of its connection that fit."""
    headers = {**defaults, **own}
    unfit = _unfit(kind, headers, live=live).keys() - own.keys()
    return {name: value for name, value in headers.items() if name not in unfit}


def _reaches_devices(kind: str, headers: Mapping[str, Any], *, live: bool) -> bool:
    return live or kind == "message" or headers.get(names.CHANNEL) == "live"


def _unfit(kind: str, headers: Mapping[str, Any], *, live: bool) -> dict[str, errors.DittoError]:
    live = _reaches_devices(kind, headers, live=live)
    reasons = {}
    if live or kind != "retrieve":
        reasons[names.LIVE_CHANNEL_CONDITION] = "the channel is live already"
    if reasons or names.LIVE_CHANNEL_CONDITION not in headers:
        reasons[names.LIVE_CHANNEL_TIMEOUT_STRATEGY] = "there is no live-channel-condition"
    kinds = _OF_LIVE if live else _OF_TWIN
    reasons |= {name: "it would have no effect" for name in kinds if kind not in kinds[name]}
    found = {name: header_unfit(name, reason) for name, reason in reasons.items() if name in headers}
    if kind != "retrieve" and names.LIVE_CHANNEL_CONDITION in headers:
        found[names.LIVE_CHANNEL_CONDITION] = errors.live_channel_condition_unfit()
    if live and kind in _OF_SEVERAL_THINGS:
        unfit = header_unfit(names.CHANNEL, "only the twin answers for several things")
        found = {names.CHANNEL: unfit, **found}
    return found


_SMART = (names.CHANNEL, names.LIVE_CHANNEL_CONDITION, names.LIVE_CHANNEL_TIMEOUT_STRATEGY)


class AdmittedCommand:
    """A command that its sender may send and whose condition holds; each sending has its own, remembered id."""

    def __init__(
        self, parts: Dependencies, subjects: tuple[str, ...], kind: Kind, command: Envelope, new_id: Callable[[], str]
    ) -> None:
        """Begin the time of a command; nothing is checked here: see :func:`admit`."""
        self._access, self._exchange = parts.access, parts.exchange
        self._open = partial(parts.admission.open_requests.one, subjects)
        self._subjects, self._kind = subjects, kind
        self._command, self._new_id = command, new_id
        timeout = command.headers.get(names.TIMEOUT)
        # 0: there is no deadline, since nothing is waited for
        self._timeout_ms = DEFAULT_TIMEOUT_MS if timeout is None else Duration.parse(timeout).capped(SMART_MAXIMUM_MS)
        self._began = monotonic()
        self.conditional = is_live(command) and names.CONDITION in command.headers

    async def ask(self) -> Reply:
        """Send the command, and return the part of its reply that the sender may read; raises 408, 429 (a quota)."""
        with self._open():
            if names.LIVE_CHANNEL_CONDITION in self._command.headers:
                reply = await self._ask_either_channel()
            else:
                reply = await self._exchange.ask(self._sent())
        return self._shown(reply)

    @contextmanager
    def stream(self) -> Iterator[AsyncIterator[Reply]]:
        """Send the command; give its updates as they come and at last its reply, each as of :meth:`ask`; raises 429."""
        with self._open():
            yield (self._shown(reply) async for reply in self._exchange.stream(self._sent()))

    def _shown(self, reply: Reply) -> Reply:
        conceal(self._access, self._subjects, self._kind, self._command, reply.envelope)
        _name_back(reply, self._command.headers[names.CORRELATION_ID])
        return reply

    async def publish(self) -> None:
        """Send the command, which requires no response; return once the broker has stored it."""
        await self._exchange.publish(self._sent())

    async def settle(self, seconds: float) -> RequestOutcome | None:
        """Send the command, which requires no response; return its outcome, ``None`` after ``seconds``; raises 429."""
        with self._open():
            return await self._exchange.settle(self._sent(), seconds)

    async def check_condition(self) -> None:
        """Refuse a command whose condition does not hold for the twin: 412; raises 400, 404 without a twin, 408."""
        if names.CONDITION in self._command.headers and not await self._holds(names.CONDITION):
            raise errors.condition_failed()

    def _limit(self, command: Envelope) -> None:
        """Set the timeout of a command, or a question about its conditions, to the time left; raises 408 without."""
        if not self._timeout_ms:
            return
        left = self._timeout_ms - int((monotonic() - self._began) * 1000)
        if left <= 0:
            raise errors.command_timeout(self._timeout_ms)
        command.headers[names.TIMEOUT] = f"{left}ms"

    def _sent(self) -> Envelope:
        sent = replace(self._command, headers=dict(self._command.headers))
        if self.conditional:
            # its condition and those of earlier commands took part of its time
            self._limit(sent)
            del sent.headers[names.CONDITION]
        sent.headers[names.CORRELATION_ID] = self._new_id()
        return sent

    async def _ask_either_channel(self) -> Reply:
        """Query the device if the twin matches the live-channel-condition of a query, else the twin, each by a new id.

        The device has the rest of the query's timeout; the twin, if it answers in its place, some seconds more.
        """
        query = self._command
        matched = await self._holds(names.LIVE_CHANNEL_CONDITION)
        plain = {name: value for name, value in query.headers.items() if name not in _SMART}

        def twin() -> Envelope:
            return replace(query, headers={**plain, names.CORRELATION_ID: self._new_id()})

        if not matched:
            self._limit(question := twin())
            return _marked(await self._exchange.ask(question), "twin", matched=False)
        await self.check_condition()
        live = replace(query, headers={**plain, names.CHANNEL: "live"}, topic=replace(query.topic, channel="live"))
        live.headers.pop(names.CONDITION, None)
        self._limit(live)
        live.headers[names.CORRELATION_ID] = self._new_id()
        reply = await self._exchange.ask(live)
        strategy = query.headers.get(names.LIVE_CHANNEL_TIMEOUT_STRATEGY)
        if reply.status == errors.REQUEST_TIMEOUT and strategy == names.USE_TWIN:
            question = twin()
            question.headers[names.TIMEOUT] = f"{SMART_EXTRA_MS}ms"
            return _marked(await self._exchange.ask(question), "twin", matched=True)
        return _marked(reply, "live", matched=True)

    async def _holds(self, header: str) -> bool:
        question = retrieval(self._command.topic.thing_id, "thingId")
        question.headers[names.CONDITION] = self._command.headers[header]
        if names.ORIGINATOR in self._command.headers:
            question.headers[names.ORIGINATOR] = self._command.headers[names.ORIGINATOR]
        self._limit(question)
        reply = await self._exchange.ask(question)
        if reply.status == errors.PRECONDITION_FAILED:
            return False
        if not reply.ok:
            problem = reply.value if isinstance(reply.value, dict) else {}
            error, message = (str(problem.get(name, "")) for name in ("error", "message"))
            raise errors.DittoError(reply.status, error, message, problem.get("description"), problem.get("href"))
        return True


def _marked(reply: Reply, channel: str, *, matched: bool) -> Reply:
    reply.envelope.headers |= {"live-channel-condition-matched": matched, names.CHANNEL: channel}
    return reply


async def admit(
    parts: Dependencies, subjects: tuple[str, ...], kind: Kind, command: Envelope, new_id: Callable[[], str]
) -> AdmittedCommand:
    """Admit a command that fits ``check_headers``; its fields are narrowed to those its sender may read.

    :param new_id: returns a correlation-id that correlate does not take for a repeated one
    :raises DittoError: 403, 404: it may not be sent; 412: its condition does not hold; 408: the check took too long
    """
    admitted = AdmittedCommand(parts, subjects, kind, command, new_id)
    restrict(parts.access, subjects, kind, command)
    if admitted.conditional:
        await admitted.check_condition()
    return admitted


class AdmissionOrder:
    """The commands of one client for one thing are sent in the order in which they came."""

    def __init__(self) -> None:
        # the twin may evaluate an earlier condition later: ``unlock`` must not overtake ``lock``
        self._last: dict[str, asyncio.Event] = {}

    async def keep(self, thing_id: str, admission: Awaitable[AdmittedCommand]) -> AdmittedCommand:
        """Await an admission, and those of earlier commands for the thing; conditions are queried at the same time."""
        before = self._last.get(thing_id)
        own = self._last[thing_id] = asyncio.Event()
        try:
            return await admission
        finally:
            try:
                if before is not None:
                    await before.wait()
            finally:
                own.set()
                if self._last.get(thing_id) is own:
                    del self._last[thing_id]


def _name_back(reply: Reply, client_id: str) -> None:
    """Give a reply, and each acknowledgement in it, the correlation-id of the client in place of that on the wire."""
    envelope, on_wire, own = reply.envelope, reply.correlation_id, {names.CORRELATION_ID: client_id}
    envelope.headers |= own
    envelope.value = with_headers(
        envelope, lambda headers: headers | own if headers.get(names.CORRELATION_ID) == on_wire else headers
    )
