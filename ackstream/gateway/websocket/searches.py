"""The searches of one WebSocket: pages are queried as the client requests them.

Source of the rules: Eclipse Ditto, ``SubscriptionManager`` and ``SubscriptionActor``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Raw

from ackstream.gateway.errors import internal_error, too_many_searches
from ackstream.protocol.ditto.correlation_ids import RecentIds
from ackstream.protocol.ditto.envelopes import encode
from ackstream.protocol.ditto.twin.searches import (
    Cancel,
    Page,
    RequestPages,
    Search,
    Subscribe,
    failed,
    read_search,
    subscription_cancelled,
    subscription_not_found,
    subscription_timeout,
)
from ackstream.protocol.errors import DittoError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from ackstream.gateway.streaming import UnreadMessages
    from ackstream.protocol.ditto.envelopes import Envelope

log = logging.getLogger(__name__)

MAX_OPEN_SEARCHES = 100
IDLE_SECONDS = 60.0
"""How long a search waits for the client's next request."""

ENDED_SECONDS = 10.0
"""How long the id of a search that has ended is remembered, so that its end and a request that crosses it fit."""


class _OpenSearch(Search):
    """A search, and the task that queries its pages."""

    task: asyncio.Task[None]

    def __init__(self, identity: str, wanted: Subscribe, headers: dict[str, Any]) -> None:
        super().__init__(identity, wanted, headers)
        self.requested = asyncio.Event()


class Searches:
    """Answers the search commands of one client; for the event loop of its session."""

    def __init__(
        self,
        ask: Callable[[Envelope], Awaitable[Envelope]],
        unread: UnreadMessages,
        start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        """Serve a session.

        :param ask: sends a query without headers on behalf of the client, and returns its reply
        :param unread: the messages to the client; a page waits until there is room for it, an answer does not
        :param start: starts a task that ends with the session
        """
        self._ask = ask
        self._unread = unread
        self._start = start
        self._turn = asyncio.Lock()
        self._identities = map(str, count())
        self._open: dict[str, _OpenSearch] = {}
        self._ended = RecentIds(ENDED_SECONDS)

    def take(self, envelope: Envelope) -> None:
        """Handle a search command; raises if it cannot be read, or the client has too many searches."""
        match read_search(envelope):
            case Subscribe() as wanted:
                if len(self._open) >= MAX_OPEN_SEARCHES:
                    raise too_many_searches(MAX_OPEN_SEARCHES)
                search = _OpenSearch(next(self._identities), wanted, envelope.headers)
                self._open[search.identity] = search
                search.task = self._start(self._run(search))
                self._put(search.event("created"))
            case RequestPages(identity, demand):
                self._request(identity, demand, envelope.headers)
            case Cancel(identity):
                if (found := self._open.get(identity)) is not None:
                    self._end(found)
                    found.task.cancel()
                elif not self._has_ended(identity):
                    self._put(failed(identity, envelope.headers, subscription_not_found(identity)))

    def _request(self, identity: str, demand: int, headers: dict[str, Any]) -> None:
        search = self._open.get(identity)
        if search is None:
            error = subscription_cancelled() if self._has_ended(identity) else subscription_not_found(identity)
            self._put(failed(identity, headers, error))
            return
        try:
            search.request(demand, headers)
            search.requested.set()
        except DittoError as error:
            search.task.cancel()
            self._fail(search, error)

    async def _run(self, search: _OpenSearch) -> None:
        """Query page after page until the last one or an error; wait where the client has requested no more."""
        try:
            while search.identity in self._open:
                if not search.demand:
                    search.requested.clear()
                    await asyncio.wait_for(search.requested.wait(), IDLE_SECONDS)
                await self._page(search)
        except asyncio.TimeoutError:
            self._fail(search, subscription_timeout(search.identity))
        except DittoError as error:
            self._fail(search, error)
        except Exception:
            log.exception("The search %s failed.", search.identity)
            self._fail(search, internal_error())

    async def _page(self, search: _OpenSearch) -> None:
        # one page at a time, in whichever search: each one waits until the client has read those before
        async with self._turn:
            await self._unread.room()
            self._receive(search, await self._ask(search.query()))

    def _receive(self, search: _OpenSearch, reply: Envelope) -> None:
        if reply.value is UNSET or reply.topic.criterion == "errors":
            self._fail(search, internal_error() if reply.value is UNSET else reply.value)
            return
        page = msgspec.json.decode(reply.value, type=Page)
        if page.cursor is None:
            self._end(search)
        for event in search.receive(page):
            self._put(event)

    def _fail(self, search: _OpenSearch, error: DittoError | Raw) -> None:
        self._end(search)
        self._put(failed(search.identity, search.headers, error))

    def _put(self, event: Envelope) -> None:
        self._unread.put(encode(event).decode())

    def _end(self, search: _OpenSearch) -> None:
        self._open.pop(search.identity, None)
        self._ended.add(search.identity, time.monotonic())

    def _has_ended(self, identity: str) -> bool:
        """Return whether a search ended a moment ago."""
        return self._ended.known(identity, time.monotonic())
