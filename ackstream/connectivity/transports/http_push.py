"""HTTP as a transport for targets, on httpx; the response acknowledges. Source: Ditto, ``HttpPublisherActor``."""

import base64
import logging
import re
import socket
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from queue import SimpleQueue
from typing import Any, NoReturn
from urllib.parse import quote, unquote

import httpx
from msgspec import UNSET, Raw, UnsetType

from ackstream.connectivity.transports import transport
from ackstream.kafka.clients import CLOSE_SECONDS
from ackstream.protocol.ditto.acknowledgements import INTERNAL_ERROR
from ackstream.protocol.ditto.envelopes import decode_text, json_or_text, raw
from ackstream.protocol.ditto.headers import CONTENT_TYPE, sendable
from ackstream.protocol.errors import BAD_REQUEST, REQUEST_TIMEOUT, UNAVAILABLE
from ackstream.settings import Kafka
from ackstream.settings.connections import HttpPushConnection
from ackstream.settings.security import Tls

# a line for each request
logging.getLogger("httpx").setLevel(logging.WARNING)

MAX_BODY_BYTES = 262_144
OMITTED = "ditto-omitted-headers"
"""Names the headers of a message that HTTP cannot carry."""
_NAME = re.compile("(?!(?:connection|content-length|te|trailer|transfer-encoding|upgrade)$)[a-z0-9!#$&'*+.^_`|~-]+")
_EMPTY = "\0"
"""An empty text of a placeholder in an address."""
MAX_PAUSE_SECONDS = 3_600.0
_DOUBTFUL = (INTERNAL_ERROR, 501)
_RESUMES: dict[str, float] = {}
"""By URL: the time, in monotonic seconds, before which a service wants no requests (``Retry-After``)."""


class _Line:
    """A connection of one thread, whose request another thread ends at its timeout."""

    def __init__(self, client: httpx.Client) -> None:
        self.client, self.until = client, float("inf")
        self._stream: Any = None

    def trace(self, event: str, info: Any) -> None:
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._stream = info["return_value"]

    def end(self) -> None:
        # wakes the thread that reads or writes, which a close would not
        with suppress(AttributeError, OSError):
            socket.socket.shutdown(self._stream.get_extra_info("socket"), socket.SHUT_RDWR)


class HttpPublisher(transport.TargetPublisher):
    """Sends requests from as many threads as the connection allows; from one, in order."""

    def __init__(self, connection: HttpPushConnection, _own: Kafka) -> None:
        self._url = connection.url
        self._timeout, self._unavailable = connection.timeout / 1000, connection.unavailable_statuses
        self._halted, self._closed = threading.Event(), threading.Event()
        self._queue: SimpleQueue[tuple[transport.OutgoingMessage, transport.Confirm, float] | None] = SimpleQueue()
        # by address: the time of the last request that was not accepted
        self._failed: dict[str, float] = {}
        context, user = (connection.tls or Tls()).client_context(), connection.username
        self._lines = [
            _Line(
                httpx.Client(
                    base_url=connection.url,
                    auth=None if user is None else (user, connection.secret),
                    verify=context,
                    # a body is bounded as it arrives, so it is never inflated
                    headers={"accept-encoding": "identity"},
                    timeout=httpx.Timeout(self._timeout, connect=min(self._timeout, transport.CONNECT_SECONDS)),
                    limits=httpx.Limits(max_connections=1),
                )
            )
            for _ in range(connection.parallelism)
        ]
        self._threads = [
            threading.Thread(target=self._work, args=(line,), name=f"ackstream-{connection.id}-{number}", daemon=True)
            for number, line in enumerate(self._lines)
        ]
        watch = threading.Thread(target=self._watch, name=f"ackstream-{connection.id}-watch", daemon=True)
        for thread in (watch, *self._threads):
            thread.start()

    @property
    def alive(self) -> bool:
        """Whether it still sends requests; after one that the service did not accept, it sends no more."""
        return not self._halted.is_set()

    @property
    def connected(self) -> bool:
        """Whether the service wants requests now, according to its last ``Retry-After``."""
        return not self._wait

    @property
    def _wait(self) -> float:
        return max(0.0, _RESUMES.get(self._url, 0.0) - time.monotonic())

    @staticmethod
    def quoted(text: str) -> str:
        """Quote characters that end the path or separate parameters; slashes stay, as in ``{{ topic:full }}``."""
        return quote(text, safe="/:@") or _EMPTY

    def publish(self, message: transport.OutgoingMessage, done: transport.Confirm) -> None:
        """Send a request; see :class:`.TargetPublisher`."""
        self._queue.put((message, done, time.monotonic()))

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
        for line in self._lines:
            line.end()
            line.client.close()

    def _work(self, line: _Line) -> None:
        while (entry := self._queue.get()) is not None:
            if self._halted.wait(self._wait):
                continue
            message, done, since = entry
            behind = since <= self._failed.get(message.address, 0.0)
            result = transport.BEHIND if behind else self._published(line, message)
            if result.away and (wait := pause(result.headers.get("retry-after", ""))):
                _RESUMES[self._url] = time.monotonic() + wait
            if not self._closed.is_set():
                done(result)
            if result.away and not behind:
                self._failed[message.address] = time.monotonic()
            elif self._queue.empty():
                self._failed.clear()

    def _watch(self) -> None:
        while not self._closed.wait(min(1.0, self._timeout / 10)):
            for line in self._lines:
                if line.until < time.monotonic():
                    line.end()

    def _published(self, line: _Line, message: transport.OutgoingMessage) -> transport.Published:
        line.until = until = time.monotonic() + self._timeout
        try:
            return self._request(line, message)
        except httpx.TransportError as error:
            late = isinstance(error, httpx.TimeoutException) or time.monotonic() > until
            refused = isinstance(error, httpx.LocalProtocolError | httpx.UnsupportedProtocol)
            status = REQUEST_TIMEOUT if late else BAD_REQUEST if refused else UNAVAILABLE
            return transport.not_published(error, status)
        except Exception as error:  # noqa: BLE001 - an address that HTTP cannot carry
            return transport.not_published(error, BAD_REQUEST)
        finally:
            line.until = float("inf")

    def _request(self, line: _Line, message: transport.OutgoingMessage) -> transport.Published:
        verb, _, address = message.address.partition(":")
        path, mark, query = address.partition("?")
        if leaves(path):
            # a placeholder must not lead to another part of the service
            raise ValueError(f"The path {path} has a segment that is empty, '.' or '..'.")
        where = (path + mark + query).replace(_EMPTY, "")
        content, options = None if verb == "GET" else message.payload, {"trace": line.trace}
        headers = carried(message.headers)
        with line.client.stream(verb, where, content=content, headers=headers, extensions=options) as response:
            headers, body = dict(response.headers), b""
            for part in response.iter_raw():
                body += part
                if len(body) > MAX_BODY_BYTES:
                    body = f"The body has more than {MAX_BODY_BYTES:,} bytes.".encode()
                    headers = {**headers, CONTENT_TYPE: "text/plain", "content-encoding": "identity"}
                    break
        if time.monotonic() > line.until:
            raise httpx.ReadTimeout("The response did not arrive in time.")
        return published(response.status_code, headers, body, self._unavailable)


def pause(text: str) -> float:
    """Return the seconds in a header ``Retry-After``, a number or a date: at most an hour, 0 without or in the past."""
    try:
        seconds = float(text) if text.isdecimal() else parsedate_to_datetime(text).timestamp() - time.time()
    except (OverflowError, ValueError):
        return 0.0
    return min(max(seconds, 0.0), MAX_PAUSE_SECONDS)


def carried(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers as HTTP carries them: values percent-encoded if necessary, and the names of those left out."""
    found = {name: sendable(value) for name, value in headers.items() if _NAME.fullmatch(name)}
    left = sorted(headers.keys() - found.keys())
    return found | ({OMITTED: sendable(", ".join(left))} if left else {})


def leaves(path: str) -> bool:
    """Return whether a path has a segment ``.`` or ``..``, or an empty one within it or of a placeholder.

    As any server might read it: ``..;x`` and backslashes count, too.
    """
    _, *segments = unquote(path).replace("\\", "/").split("/")
    names = [segment.partition(";")[0] for segment in segments]
    return "" in names[:-1] or any(name and name.strip(_EMPTY) in ("", ".", "..") for name in names)


def published(
    status: int, headers: dict[str, str], body: bytes, unavailable: Collection[str] = ()
) -> transport.Published:
    """Return the result in a response: its status, its body as JSON, a text or base64, its headers."""
    if not 100 <= status <= 599:  # noqa: PLR2004 - the range of statuses
        unknown = ValueError(f"The service answered with the unknown status {status}.")
        return transport.not_published(unknown, INTERNAL_ERROR, away=False)
    encoded = headers.get("content-encoding", "identity") != "identity"
    kind = "application/octet-stream" if encoded else headers.get(CONTENT_TYPE, "")
    away = not {str(status), f"{status // 100}xx"}.isdisjoint(unavailable)
    return transport.Published(status, _payload(kind, body), headers, away=away, doubtful=status in _DOUBTFUL)


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
