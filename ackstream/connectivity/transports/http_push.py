"""HTTP as a transport for targets, on httpx; the response acknowledges. Source: Ditto, ``HttpPublisherActor``."""

from __future__ import annotations

import base64
import logging
import threading
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote, unquote

import httpx
from msgspec import UNSET, Raw, UnsetType

from ackstream.connectivity.transports import transport
from ackstream.kafka.clients import CLOSE_SECONDS
from ackstream.protocol.ditto.acknowledgements import INTERNAL_ERROR
from ackstream.protocol.ditto.envelopes import decode_text, json_or_text, raw
from ackstream.protocol.ditto.headers import CONTENT_TYPE
from ackstream.protocol.errors import BAD_REQUEST, REQUEST_TIMEOUT, UNAVAILABLE
from ackstream.settings.security import Tls

if TYPE_CHECKING:
    from ackstream.connectivity.transports.transport import Confirm, OutgoingMessage
    from ackstream.settings import Kafka
    from ackstream.settings.connections import HttpPushConnection

# a line for each request
logging.getLogger("httpx").setLevel(logging.WARNING)

MAX_BODY_BYTES = 262_144
_TEMPORARY = frozenset({REQUEST_TIMEOUT, 429, 502, UNAVAILABLE, 504})
"""Statuses of a service that accepts nothing at present."""


class HttpPublisher(transport.TargetPublisher):
    """Sends requests from as many threads as the connection allows; from one, in order."""

    def __init__(self, connection: HttpPushConnection, _own: Kafka) -> None:
        self._timeout = connection.timeout / 1000
        user = connection.username
        self._client = httpx.Client(
            base_url=connection.url,
            auth=None if user is None else (user, connection.secret),
            verify=(connection.tls or Tls()).client_context(),
            timeout=httpx.Timeout(self._timeout, connect=min(self._timeout, transport.CONNECT_SECONDS)),
            limits=httpx.Limits(max_connections=connection.parallelism),
        )
        self._halted, self._closed = threading.Event(), threading.Event()
        self._queue: SimpleQueue[tuple[OutgoingMessage, Confirm] | None] = SimpleQueue()
        # daemons, since a request that hangs cannot be interrupted
        self._threads = [
            threading.Thread(target=self._work, name=f"ackstream-{connection.id}-{number}", daemon=True)
            for number in range(connection.parallelism)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def alive(self) -> bool:
        """Whether it still sends requests; after one that the service did not accept, it sends no more."""
        return not self._halted.is_set()

    @staticmethod
    def quoted(text: str) -> str:
        """Quote characters that end the path or separate parameters; slashes stay, as in ``{{ topic:full }}``."""
        return quote(text, safe="/:@")

    def publish(self, message: OutgoingMessage, done: Confirm) -> None:
        """Send a request; see :class:`.TargetPublisher`."""
        self._queue.put((message, done))

    def halt(self) -> None:
        """Send no further request; see :class:`.TargetPublisher`."""
        self._halted.set()

    def close(self) -> None:
        """Wait for the requests that are under way, for at most 5 s; the others are not sent."""
        self.halt()
        until = time.monotonic() + CLOSE_SECONDS
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        self._closed.set()
        self._client.close()

    def _work(self) -> None:
        while (entry := self._queue.get()) is not None:
            if self._halted.is_set():
                continue
            message, done = entry
            result = self._published(message)
            if not self._closed.is_set():
                done(result)

    def _published(self, message: OutgoingMessage) -> transport.Published:
        try:
            return self._request(message)
        except httpx.TimeoutException as error:
            return transport.not_published(error, REQUEST_TIMEOUT)
        except httpx.TransportError as error:
            refused = isinstance(error, httpx.LocalProtocolError | httpx.UnsupportedProtocol)
            return transport.not_published(error, BAD_REQUEST if refused else UNAVAILABLE)
        except Exception as error:  # noqa: BLE001 - an address or header that HTTP cannot carry
            return transport.not_published(error, BAD_REQUEST)

    def _request(self, message: OutgoingMessage) -> transport.Published:
        verb, _, path = message.address.partition(":")
        if leaves(path):
            # a placeholder must not lead to another part of the service
            raise ValueError(f"The path {path} has a segment '..'.")
        until = time.monotonic() + self._timeout
        content = None if verb == "GET" else message.payload
        with self._client.stream(verb, path, content=content, headers=message.headers) as response:
            body = b""
            for part in response.iter_bytes():
                body += part
                if len(body) > MAX_BODY_BYTES:
                    body = f"The body has more than {MAX_BODY_BYTES:,} bytes.".encode()
                    return published(response.status_code, {**response.headers, CONTENT_TYPE: "text/plain"}, body)
                if time.monotonic() > until:
                    raise httpx.ReadTimeout("The body of the response did not arrive in time.")
        return published(response.status_code, dict(response.headers), body)


def leaves(path: str) -> bool:
    """Return whether a path has a segment ``..``, as any server might read it: ``..;x`` and backslashes count, too."""
    segments = unquote(path.partition("?")[0]).replace("\\", "/").split("/")
    return any(segment.partition(";")[0] == ".." for segment in segments)


def published(status: int, headers: dict[str, str], body: bytes) -> transport.Published:
    """Return the result in a response: its status, its body as JSON, a text or base64, its headers."""
    if not 100 <= status <= 599:  # noqa: PLR2004 - the range of statuses
        unknown = ValueError(f"The service answered with the unknown status {status}.")
        return transport.not_published(unknown, INTERNAL_ERROR, away=False)
    return transport.Published(
        status, _payload(headers.get(CONTENT_TYPE, ""), body), headers, away=status in _TEMPORARY
    )


def _payload(kind: str, body: bytes) -> Raw | UnsetType:
    if not body:
        return UNSET
    name, *parameters = (part.strip() for part in kind.lower().split(";"))
    if name == "application/json" or name.endswith("+json"):
        return json_or_text(body)
    if name == "application/octet-stream" or name.startswith(("image/", "audio/", "video/")):
        return raw(base64.b64encode(body).decode())
    named = dict(part.partition("=")[::2] for part in parameters)
    try:
        return raw(decode_text(body, named.get("charset", "utf-8").strip('"'), "replace"))
    except (LookupError, ValueError):
        return raw(body.decode("utf-8", "replace"))


def _no_source(*_: Any) -> NoReturn:
    raise NotImplementedError("HTTP has no sources; the settings refuse them.")


TRANSPORT = transport.Transport(HttpPublisher, _no_source)
