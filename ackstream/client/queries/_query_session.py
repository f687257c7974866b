"""The session of a query client: heartbeats, and a new session with the same subscriptions once it is lost."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from ackstream.client.errors import CommandTimeout, RefusedError, StreamClosedError, TakenOverError, refused
from ackstream.protocol import queries, record_headers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackstream.client.queries._query_link import QueryLink
    from ackstream.client.queries.message_stream import MessageStream
    from ackstream.protocol.messages import CommandAck

log = logging.getLogger(__name__)

LOGON_AGAIN_SECONDS = 5.0


class QuerySession:
    """Keeps a session, in a thread of its own (:meth:`run`).

    :ivar beat: the id of all its heartbeats
    :ivar order: held while a command is sent, and from a new logon until the subscriptions of the session before are
        sent: so a stream that is open then is of the session before, and all answers of that have been read
    :ivar wake: set when there is something to do before the next heartbeat
    :ivar answered_at: when the service last answered anything
    """

    def __init__(self, link: QueryLink, beat: str, heartbeat: float) -> None:
        """Begin before the logon.

        :param heartbeat: seconds between two heartbeats
        """
        self.beat = beat
        self.order = threading.RLock()
        self.wake = threading.Event()
        self.answered_at = time.monotonic()
        self._link = link
        self._heartbeat = heartbeat
        self._options: Mapping[str, str] = {}
        self._lost = False
        # the subscriptions of a session that was lost
        self._unresumed: list[MessageStream] = []

    def log_on(self, options: Mapping[str, str]) -> CommandAck:
        """Begin a session; with these options it is begun again, too."""
        self._options = options
        return self._link.execute("logon", {"processed"}, options).wait("processed")

    def receive(self, ack: CommandAck) -> None:
        """Note the answer to a heartbeat: the session is lost, or its subscriptions have everything up to a position.

        A release that does not name the position names none.
        """
        if ack.status != "success":
            log.warning("The session of %s has expired after missing heartbeats; it is begun again.", self._link.name)
            self._lost = True
            self.wake.set()
        elif isinstance(ack.bookmark, str):
            position, unresumed = queries.parse_bookmark(ack.bookmark), self._unresumed
            for stream in self._link.subscriptions():
                if stream not in unresumed:
                    stream.reach(position)

    def run(self) -> None:
        """Beat until the client is closed or has ended; begin a lost session again."""
        while not self._link.closed:
            # a subscription that waits for its application must not cost the session
            pause = min(LOGON_AGAIN_SECONDS, self._heartbeat) if self._unresumed else self._heartbeat
            self.wake.wait(LOGON_AGAIN_SECONDS if self._lost else pause)
            self.wake.clear()
            if not self._link.connected:
                continue
            if self._lost:
                self._link.life.enter("disconnected")
                self._begin_again()
                continue
            if self._unresumed:
                self._await(self._send_again())
            silent = time.monotonic() - self.answered_at > 2 * self._heartbeat
            self._link.life.enter("disconnected" if silent else "connected")
            options = {record_headers.CID: self.beat, record_headers.OPTIONS: "beat"}
            self._link.send("heartbeat", {"processed"}, options)

    def _begin_again(self) -> None:
        """Log on after the loss of the session, and resume the subscriptions; what fails is tried again.

        :raises RefusedError: the client may not log on any more
        """
        with self.order:
            try:
                self.log_on(self._options)
            except (CommandTimeout, RefusedError, StreamClosedError, TakenOverError) as error:
                if isinstance(error, RefusedError) and error.reason not in queries.TEMPORARY:
                    raise
                log.warning("The session could not be begun again yet: %s", error)
                return
            # refusals of earlier heartbeats, and all answers of the earlier session, have been read before its answer
            self._lost = False
            # one that ends needs no session: Kafka has all its answers
            self._unresumed = [one for one in self._link.subscriptions() if one.live and one.begun]
            sent = self._send_again()
        self._link.life.enter("connected")
        self._await(sent)

    def _send_again(self) -> list[MessageStream]:
        """Subscribe again for each stream that has taken what the earlier session gave it; the others follow then.

        That session's answers to a query are in any order: no position says which of them are missing.
        """
        with self.order:
            # one that is about to be replaced must not be sent behind its successor
            newest = {stream.sub_id: stream for stream in self._link.subscriptions()}
            self._unresumed = [stream for stream in self._unresumed if not stream.over]
            ready = [one for one in self._unresumed if one.caught_up and newest.get(one.sub_id) is one]
            for stream in ready:
                self._subscribe_again(stream)
        return ready

    def _subscribe_again(self, stream: MessageStream) -> None:
        """Subscribe to what follows the position in the log that a stream has reached, or as it was subscribed."""
        kept = (record_headers.TOPIC, record_headers.FILTER, record_headers.BOOKMARK)
        headers = {name: stream.request[name] for name in kept if name in stream.request}
        if stream.reached is not None:
            headers[record_headers.BOOKMARK] = queries.bookmark(stream.reached, headers[record_headers.TOPIC])
        self._link.rename(stream)
        own = {
            record_headers.CID: stream.cid,
            record_headers.SUB_ID: str(stream.sub_id),
            record_headers.OPTIONS: "replace",
        }
        self._link.send("subscribe", {"processed"} | ({"persisted"} & stream.requested), own | headers)

    def _await(self, sent: list[MessageStream]) -> None:
        """Wait until the subscriptions that were sent again are processed."""
        deadline = time.monotonic() + self._link.timeout
        done: list[MessageStream] = []
        for stream in sent:
            try:
                ack = stream.wait("processed", max(0.0, deadline - time.monotonic()))
            except StreamClosedError:
                self._cancel(stream)
            except (CommandTimeout, TakenOverError) as error:
                log.warning("The subscriptions could not be resumed yet: %s", error)
                self._lost = True
                return
            else:
                if ack.reason in queries.TEMPORARY:
                    continue
                if ack.status != "success":
                    stream.end(refused(ack.reason or "no reason given", "The subscription", ack.detail))
            done.append(stream)
        self._unresumed = [stream for stream in self._unresumed if stream not in done]
        if not self._unresumed:
            self._link.life.enter("resubscribed")

    def _cancel(self, stream: MessageStream) -> None:
        """Unsubscribe what was sent again for a stream that the application had cancelled meanwhile."""
        with self.order:
            self._link.remove(stream)
            if all(other.sub_id != stream.sub_id for other in self._link.subscriptions()):
                self._link.send("unsubscribe", (), {record_headers.SUB_ID: str(stream.sub_id)})
