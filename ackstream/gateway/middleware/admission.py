"""The admission of a request, in order: the rate of its address, its sender, the rate of the sender; and other limits.

The limits of one subject, one address and one tenant leave enough of the gateway for all others. All is counted in the
event loop of one gateway, with times in monotonic seconds.
"""

import ipaddress
import math
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import lru_cache
from time import monotonic
from typing import Literal, NamedTuple

from starlette.requests import HTTPConnection

from ackstream.gateway import errors
from ackstream.gateway.middleware.audit import Audit
from ackstream.protocol.errors import DittoError
from ackstream.protocol.rql.patterns import MAX_STEPS, Effort
from ackstream.settings import Gateway, Quota, Settings

BURST_SECONDS = 2.0
"""The requests that are allowed in this time may arrive at once."""

STEPS_PER_SECOND = 100_000.0
"""Steps of all filters of a subject's WebSockets and event streams: at most a third of a processor."""

STEPS_PER_SIGNAL = 5_000
"""Steps of one filter on one signal."""

SEARCHES = 4
"""Concurrent searches of one subject: the twin is blocked while it searches."""

STORIES = 3
"""Concurrent reads of tables for one subject, waiting ones included."""

THIS_MACHINE = "this machine"
"""The address of clients on the gateway's own machine."""

ANONYMOUS = "anonymous"
"""All clients of a gateway without authentication, which are on its machine and have no limit."""

_LINGERING = 20
"""Refused connections that may stay open to read the reason: this many, or a quarter of the maximum if more."""

_SHARE = 4
"""One address may have one in this many connections; this machine, where a proxy may run, has no such limit."""

LOOP_SHARE, LOOP_BURST_SECONDS = 0.5, 0.05
"""The share of the event loop, and the burst, for reading from all connections that exceed their own shares."""

_MAX_KEYS = 50_000
_PREFIX = 64
"""Bits of an IPv6 address that name a network, all of whose addresses one client may have."""


class Rate:
    """A rate limit for each of many keys: an average per second, and a burst at once."""

    def __init__(self, per_second: float, burst: float) -> None:
        # added times lose precision
        self._interval, self._tolerance = 1 / per_second, burst / per_second + 1e-6
        # the time at which past events no longer count, by key
        self._even: OrderedDict[str, float] = OrderedDict()

    def take(self, key: str, now: float, cost: float = 1) -> float:
        """Count an event and return 0, or return the seconds until it is allowed."""
        even = max(self._even.get(key, now), now) + cost * self._interval
        if even - now > self._tolerance:
            return even - now - self._tolerance
        self.spend(key, now, cost)
        return 0.0

    def reserve(self, key: str, now: float, cost: float = 1) -> float:
        """Count an event; return the seconds by which to delay it."""
        self.spend(key, now, cost)
        return max(0.0, self._even.get(key, now) - now - self._tolerance)

    def spend(self, key: str, now: float, cost: float) -> None:
        """Count past events, even above the limit."""
        self._even[key] = max(self._even.get(key, now), now) + cost * self._interval
        self._even.move_to_end(key)
        while self._even and (next(iter(self._even.values())) <= now or len(self._even) > _MAX_KEYS):
            self._even.popitem(last=False)


class ConcurrencyCounter(Counter[str]):
    """The numbers of open connections, searches and others, by key."""

    def remove(self, key: str) -> None:
        """Count one less."""
        self[key] -= 1
        if not self[key]:
            del self[key]

    @contextmanager
    def one(self, most: Mapping[str, int], error: Callable[[str, int], DittoError]) -> Iterator[None]:
        """Count one more of several keys for the block, or raise ``error`` if one of them is at its maximum."""
        for key, maximum in most.items():
            if self[key] >= maximum:
                raise error(key, maximum)
        self.update(most.keys())
        try:
            yield
        finally:
            for key in most:
                self.remove(key)


class Limits:
    """The limits of a gateway, and their use by its clients."""

    def __init__(self, settings: Gateway) -> None:
        most = settings.max_requests
        self._max_sockets, self._max_per_address = settings.max_sockets, settings.max_sockets_per_address
        self._requests = Rate(most, most * BURST_SECONDS)
        self._steps = Rate(STEPS_PER_SECOND, MAX_STEPS)
        self._open = ConcurrencyCounter()

    def arrive(self, connection: HTTPConnection, now: float | None = None) -> None:
        """Count a request of an address, before its sender is known; raises 429 ``too.many.requests``."""
        if (address := address_of(connection)) is not None:
            self._request(f"address {address}", now)

    def admit(self, subject: str, now: float | None = None) -> None:
        """Count a request of a subject; raises 429 ``too.many.requests``."""
        if subject != ANONYMOUS:
            self._request(f"subject {subject}", now)

    def message(self, subject: str, now: float | None = None) -> float:
        """Count a message on a WebSocket; return the seconds until its turn."""
        if subject == ANONYMOUS:
            return 0.0
        return self._requests.reserve(f"subject {subject}", monotonic() if now is None else now)

    def socket(self, connection: HTTPConnection, subject: str) -> AbstractContextManager[None]:
        """Count a WebSocket or event stream for the block; raises 429 at the maximum of its subject or address."""
        most = {} if subject == ANONYMOUS else {f"subject {subject}": self._max_sockets}
        if (address := address_of(connection)) is not None:
            most[f"address {address}"] = self._max_per_address
        return self._open.one(most, errors.too_many_sockets)

    def search(self, subject: str) -> AbstractContextManager[None]:
        """Count a search during the block; raises 429 ``too.many.requests``."""
        text = f"The subject {subject} has {SEARCHES} searches open, which is the maximum."
        return self._open.one({f"searches {subject}": SEARCHES}, lambda *_: errors.too_many_requests(text, 1))

    def story(self, subject: str) -> AbstractContextManager[None]:
        """Count a read of the tables during the block; raises 429 ``too.many.requests``."""
        text = f"The tables are being read for the subject {subject} {STORIES} times already."
        return self._open.one({f"stories {subject}": STORIES}, lambda *_: errors.too_many_requests(text, 1))

    @contextmanager
    def filtering(self, subject: str, now: float | None = None) -> Iterator[Effort]:
        """Yield the effort of a filter on one signal, and count it; raises 429: its subject's filters took too much."""
        key, moment = f"subject {subject}", monotonic() if now is None else now
        if self._steps.take(key, moment, 0):
            raise errors.too_many_requests(f"The filters of the {key} take too much time.", 1)
        effort = Effort(STEPS_PER_SIGNAL)
        try:
            yield effort
        finally:
            self._steps.spend(key, moment, effort.spent)

    def _request(self, key: str, now: float | None) -> None:
        wait = self._requests.take(key, monotonic() if now is None else now)
        if wait:
            raise errors.too_many_requests(f"The {key} sends more requests than gateway.max_requests.", math.ceil(wait))


def address_of(connection: HTTPConnection) -> str | None:
    """Return a client's address or its network, behind a local proxy the forwarded one; ``None``: this machine."""
    client = connection.client
    return None if client is None else network(client.host)


def ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return an address, that of IPv4 where a socket for both versions shows ``::ffff:10.0.0.7``; else ``None``."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def is_in(host: str, networks: Iterable[ipaddress.IPv4Network | ipaddress.IPv6Network]) -> bool:
    """Return whether an address is in one of the networks."""
    address = ip_address(host)
    return address is not None and any(address in network for network in networks)


@lru_cache(maxsize=1024)
def network(host: str) -> str | None:
    """Return an IPv4 address, the network of an IPv6 one, or another text as it is; ``None`` for this machine."""
    address = ip_address(host)
    if address is None:
        return host or None
    if address.is_loopback:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((int(address), _PREFIX), strict=False))
    return str(address)


class Doors:
    """Counts connections, and admits no more than there may be."""

    def __init__(self, most: int, proxies: Iterable[str] = ()) -> None:
        """Admit at most this many; the address of a proxy may have all of them."""
        self._most = most
        self._proxies = [ipaddress.ip_network(address) for address in proxies]
        self._addresses, self.open = ConcurrencyCounter(), 0
        # their share of the event loop, and ten log lines a minute about data that cannot be handled
        self.loop, self.lines = Rate(LOOP_SHARE, LOOP_BURST_SECONDS), Rate(1 / 6, 10)

    def enter(self, host: str) -> DittoError | None:
        """Count a connection until :meth:`leave`; return the reason to refuse it, if any."""
        client, share, error = self._client(host), max(1, self._most // _SHARE), None
        if self.open >= self._most:
            error = errors.too_many_connections("gateway", self._most)
        elif client and self._addresses[client] >= share:
            error = errors.too_many_of_address(f"address {client}", share)
        self.open += 1
        self._addresses[client] += 1
        return error

    def leave(self, host: str) -> None:
        """Count the end of a connection."""
        self.open -= 1
        self._addresses.remove(self._client(host))

    def _client(self, host: str) -> str:
        """Return the address or network that a connection counts for, or an empty text: it has no limit of its own."""
        return "" if is_in(host, self._proxies) else network(host) or ""

    @property
    def crowded(self) -> bool:
        """Whether too many connections are open to send a refusal."""
        return self.open > self._most + max(_LINGERING, self._most // _SHARE)


class OpenCounts:
    """Open requests or sockets by quota; only for the thread of the event loop."""

    def __init__(self, quotas: Iterable[Quota], kind: Literal["requests", "sockets"]) -> None:
        self._kind = "open requests" if kind == "requests" else kind
        limits = [(quota, quota.max_open_requests if kind == "requests" else quota.max_sockets) for quota in quotas]
        self._limits = [(quota, limit) for quota, limit in limits if limit]
        self._open = ConcurrencyCounter()

    def one(self, subjects: tuple[str, ...]) -> AbstractContextManager[None]:
        """Count one more for the block, once in each quota that names a subject; raises 429 if one is full."""
        most = {quota.name: limit for quota, limit in self._limits if quota.has_subject(subjects)}
        return self._open.one(most, lambda name, limit: errors.quota_exhausted(name, limit, self._kind))


class Identity(NamedTuple):
    """The subjects of a client: itself first, then its roles (``role:PREFIX:NAME``)."""

    subjects: tuple[str, ...]
    # the expiry of its credentials (epoch seconds); ``None``: they do not expire
    expires: float | None = None
    # of a user: changes with password and roles
    stamp: bytes | None = None


class ClientAdmission:
    """Admits each request and WebSocket of a gateway; the audit has those that a limit refuses."""

    def __init__(
        self, settings: Settings, identify: Callable[[HTTPConnection], Awaitable[Identity]], audit: Audit
    ) -> None:
        """Apply the limits of the settings; ``identify`` is ``Authenticator.admit``."""
        self.limits = Limits(settings.gateway)
        self.open_requests = OpenCounts(settings.quotas, "requests")
        self._open_sockets = OpenCounts(settings.quotas, "sockets")
        self._identify, self._audit = identify, audit

    async def admit(self, connection: HTTPConnection) -> Identity:
        """Return the sender; raises as ``Authenticator.admit`` does, and 429: its address or subject sends too many."""
        with self._audit.refusals(connection):
            self.limits.arrive(connection)
        identity = await self._identify(connection)
        with self._audit.refusals(connection, identity.subjects):
            self.limits.admit(identity.subjects[0])
        return identity

    @contextmanager
    def socket(self, connection: HTTPConnection, subjects: tuple[str, ...]) -> Iterator[None]:
        """Count a WebSocket or event stream for the block; 429: its subject, address or tenant has its maximum."""
        with ExitStack() as opened:
            with self._audit.refusals(connection, subjects):
                opened.enter_context(self.limits.socket(connection, subjects[0]))
                opened.enter_context(self._open_sockets.one(subjects))
            yield
