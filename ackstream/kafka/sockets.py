"""How the Kafka clients connect, again and again if need be, and wait for their sockets."""

from __future__ import annotations

import logging
import selectors
from typing import Any

from kafka.net.compat import KafkaNetClient
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector


def _matters(record: logging.LogRecord) -> bool:
    """Return whether a record of the library's log is about more than a socket that a client has closed meanwhile."""
    error = record.exc_info[1] if record.exc_info else None
    return not (isinstance(error, AttributeError) and error.obj is None and error.name in ("recv", "send"))


# it reads once more, finds no socket, and logs a stack trace
logging.getLogger("kafka.net.transport").addFilter(_matters)
# it warns of each turn of its own loop that took a tenth of a second, as all do on a machine that is busy
logging.getLogger("kafka.net.selector").setLevel(logging.ERROR)


class Sockets(selectors.DefaultSelector):
    """Waits for sockets, and does not describe those that it does not know.

    The library looks each socket up before it waits for it, which fails every time; to put the socket into the text of
    that error asks the system for its addresses, and takes longer than to wait.
    """

    def __init__(self) -> None:
        """Wait for nothing yet."""
        super().__init__()
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        """Return what is waited for; ``KeyError``: nothing."""
        return self._keys[fileobj]

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Begin to wait."""
        self._keys[fileobj] = key = super().register(fileobj, events, data)
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Wait for other events."""
        self._keys[fileobj] = key = super().modify(fileobj, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        """End it."""
        self._keys.pop(fileobj, None)
        return super().unregister(fileobj)


class _Passing(dict[Any, Any]):
    """Failures, each of which is reported once."""

    def get(self, key: Any, default: Any = None) -> Any:
        return self.pop(key, default)


class _Connections(KafkaConnectionManager):  # type: ignore[misc]  # kafka-python is not typed
    """Connects again after whatever ended a connection, and never in a hurry.

    The library takes a broker for back once something accepts the connection. A proxy or load balancer before a broker
    that is away does so and ends it at once: each client would connect hundreds of times a second. Here the pause grows
    until a broker has answered. And the library would report the first refusal of a login for ever, such as of a token
    whose key the broker does not know yet, and never try that broker again.
    """

    def __init__(self, sockets: Any, **options: Any) -> None:
        super().__init__(sockets, **options)
        self._auth_failures = _Passing()

    async def _connect(self, node: Any, conn: Any, *arguments: Any, **options: Any) -> None:
        before = self._backoff.get(node.node_id)
        await super()._connect(node, conn, *arguments, **options)
        if not conn.connected and node.node_id not in self._backoff:
            if before is not None:
                self._backoff[node.node_id] = before
            self.update_backoff(node.node_id)


class PatientClient(KafkaNetClient):  # type: ignore[misc]  # kafka-python is not typed
    """What a consumer, a producer or an admin client connects by."""

    def __init__(self, **options: Any) -> None:
        """Connect to nothing yet."""
        sockets = NetworkSelector(**options)
        super().__init__(sockets, _Connections(sockets, **options))
