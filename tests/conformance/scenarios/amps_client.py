"""The client of an AMPS scenario: its publish store, its commands, its bookmarks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ackstream.client import errors
from ackstream.client.bookmarks import SubscriptionProgress
from ackstream.client.command_session import CommandSession
from ackstream.client.publish_window import FailedWrite, GapError, PublishStore, SequenceError
from ackstream.client.storage import MemoryMessages
from ackstream.protocol import queries
from ackstream.protocol.messages import CommandAck
from tests.conformance.scenarios.observations import Counted, Series

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conformance.scenarios.scenario import Json

_PAYLOAD = b"message"
_WIRE = {"ack_type": "a", "seq": "s"}


class Client:
    """Connected from the start, as long as nothing else is said."""

    def __init__(self, given: Json) -> None:
        kept = given.get("store_unacked", [])
        discarded: int = given.get("store_discarded_up_to", kept[0] - 1 if kept else 0)
        messages = MemoryMessages(discarded)
        self.store = PublishStore(messages, error_on_gap=given.get("error_on_publish_gap", False))
        for seq in kept:
            self.store.add(seq, _PAYLOAD)
        self.session = CommandSession()
        self.session.connected = True
        self._counts = [len(kept)]
        self._failed: list[FailedWrite] = []
        self._resent: list[int] = []
        self._missing: range = range(0)
        self._result: str | None = None
        self._progress = SubscriptionProgress(0)
        self._received: list[int] = given.get("received", [])
        if not self._received and "delivered_all_discarded" in given:
            self._received = [int(given["last_matching" if "last_matching" in given else "log_end"])]
        for position in self._received:
            self._progress.received(position)
        done = self._received if given.get("delivered_all_discarded") else given.get("discarded", [])
        for position in done:
            self._progress.discard(position)
        self._resume_after: int | None = None
        self._delivered: list[int] = []
        self._suppressed: list[int] = []

    # -- the publish store -------------------------------------------------------------------------------------------

    def published(self, seq: int) -> None:
        """Keep what is published; a number that comes again is the same message."""
        try:
            self.store.add(seq, _PAYLOAD)
        except SequenceError:
            return

    def logged_on(self, last: int) -> None:
        """Take the server's word how far it is."""
        self._missing = self.store.missing_at(last)
        try:
            self._resent += [seq for seq, _ in self.store.logged_on(last)]
        except GapError:
            self._result = "publish_gap_error"
        else:
            self._result = "connected"

    def answer(self, cid: str | None) -> None:
        """Note that the logon was answered well, unless the client does not want this server."""
        self.session.answered(CommandAck(ack_type="processed", cid=cid))
        self.session.connected = self._result == "connected"

    def take(self, ack: CommandAck) -> None:
        """Take an ack about messages or bookmarks."""
        if ack.ack_type != "persisted":
            return
        if ack.seq is not None:
            failed = self.store.acknowledged(ack)
            if failed is not None:
                self._failed.append(failed)
        elif isinstance(ack.bookmark, int):
            self._progress.persisted(ack.bookmark)

    def note(self) -> None:
        """Remember how much is kept now."""
        self._counts.append(self.store.unpersisted_count)

    # -- bookmarks ---------------------------------------------------------------------------------------------------

    def forget(self) -> None:
        """Go on under another subscription id: nothing is known of it."""
        self._progress = SubscriptionProgress(0)

    def resume(self, start: str | int, log_end: int, matching: Callable[[int], bool]) -> None:
        """Subscribe again, and see what comes."""
        places = {queries.MOST_RECENT: self._progress.resume_after, queries.EPOCH: 0, queries.NOW: log_end}
        self._resume_after = places[start] if start in places else int(start)
        for position in range(self._resume_after + 1, log_end + 1):
            if matching(position):
                shown = self._progress.received(position)
                (self._delivered if shown else self._suppressed).append(position)

    # -- what was seen -----------------------------------------------------------------------------------------------

    def observation(self) -> Json:
        """Return what a scenario may expect of the client."""
        if self._counts[-1] != self.store.unpersisted_count:
            self.note()
        return {
            "resent": Counted(self._resent),
            "unpersisted_count": Series(self._counts),
            "store_after": self.store.unpersisted,
            "failed_write_callbacks": [
                {"seq": failed.seq, "reason": failed.reason, "has_payload": failed.message is not None}
                for failed in self._failed
            ],
            "result": self._result,
            "missing_on_server": list(self._missing),
            "connected": self.session.connected,
            "resume_after": self._resume_after,
            "delivered_to_app": self._delivered,
            "suppressed": self._suppressed,
        }

    @staticmethod
    def read_ack(fields: Json) -> CommandAck:
        """Read an ack that a scenario gives."""
        wire = {_WIRE.get(name, name): value for name, value in fields.items()}
        return msgspec.convert({"c": "ack", "a": "persisted"} | wire, CommandAck)

    @staticmethod
    def plain(ack: CommandAck) -> dict[str, Any]:
        """Return all fields of an ack, also those without a value."""
        return msgspec.structs.asdict(ack)

    @staticmethod
    def error_name(reason: str) -> str:
        """Return the name of the library's error."""
        return errors.error_name(reason)
