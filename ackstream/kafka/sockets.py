"""How the Kafka clients wait for their sockets."""

from __future__ import annotations

import logging
import selectors
from typing import Any


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
