"""Commands on the stored messages: queries, subscriptions with replay, deletes."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path

from ackstream.client.core.arguments import check_length, takes
from ackstream.client.core.connection import connection_of
from ackstream.client.core.lifetime import Client
from ackstream.client.options import QueryOptions
from ackstream.client.publishing.publisher import Publisher
from ackstream.client.queries._query_link import QueryLink
from ackstream.client.queries.bookmarks import Bookmarks, LogMessage
from ackstream.client.queries.message_stream import MessageStream
from ackstream.errors import BadParameterError
from ackstream.protocol import record_headers
from ackstream.protocol.messages import MAX_CLIENT_CHARACTERS, CommandAck
from ackstream.protocol.queries import MOST_RECENT, NOW

_QUERY = {"processed", "completed", "stats"}


class QueryClient(Client):
    """Sends commands to the query job, and returns their answers as streams.

    Each command waits for ``processed``. One that is refused raises the error of its reason (``RefusedError``); one
    that times out raises ``CommandTimeout``, and a subscription that it may leave behind is cancelled. A client that
    was away for more than twice its heartbeat has lost its session: it logs on again by itself, and every subscription
    continues at its position in the log. One whose name is taken ends. Safe to use from several threads.
    """

    @takes(QueryOptions)
    def __init__(self, options: QueryOptions) -> None:
        """Connect and log on; the subscriptions of an earlier client of this name end.

        :param bootstrap_servers: ``host:port,…`` or the Kafka of the settings; without a broker ``BadParameterError``
        :param name: the one that results are addressed to, the same in every run
        :param bookmarks: a file in which the progress of subscriptions survives the process; ``None``: memory
        :param timeout: seconds that a command waits for ``processed``
        :param heartbeat: seconds between two heartbeats
        :param conflation_ms: the shortest interval between two reports of the log's end; ``None``: after each batch
        :param on_ack: receives every acknowledgement as it arrives, in the thread that reads
        :param on_error: called with the error that ends the client, if one does
        :param on_connection: called when the client is ``connected``, ``disconnected`` (no answer for two heartbeats,
            or the session was lost), and when its subscriptions are ``resubscribed`` after that
        :raises UnreachableError: no broker, or a topic is missing
        :raises StoreError: the file cannot be used
        :raises CommandTimeout: no answer: start the job (``ackstream submit query``)
        :raises BadParameterError: a name without or with too many characters
        """
        connection = connection_of(options.bootstrap_servers)
        check_length("name", options.name, MAX_CLIENT_CHARACTERS)
        path = None if options.bookmarks is None else Path(options.bookmarks)
        with ExitStack() as stack:
            self._bookmarks = Bookmarks(options.name, path)
            stack.callback(self._bookmarks.close)
            self._link = QueryLink(connection, options, self._bookmarks)
            self._life = self._link.life
            stack.callback(self._link.close)
            wanted = [f"heartbeat={max(1, round(options.heartbeat * 1000))}ms"]
            if options.conflation_ms is not None:
                wanted.append(f"ack_conflation={options.conflation_ms}ms")
            answer = self._link.log_on({record_headers.OPTIONS: ",".join(wanted)})
            self.effective_conflation_ms = answer.effective_conflation_ms
            """The interval of reports of the log's end, if the service cannot grant the requested one."""
            stack.pop_all()

    def sow(
        self,
        topic: str,
        filter: str | None = None,  # noqa: A002 - the word of the protocol
        *,
        order_by: str | None = None,
        top_n: int | None = None,
        keys: Iterable[str] = (),
        timeout: float | None = None,
    ) -> MessageStream:
        """Query the state of the world: the newest message of each key.

        :param filter: such as ``/order/price > 10 AND /state = 'open'``, or RQL: ``gt(order/price,10)``
        :param order_by: paths, ``/price DESC, /id``; by default in the order of the log
        :param top_n: maximum number of records to return; 0 to only count them (``stats``)
        :param keys: only records with these keys; ``BadParameterError`` if one contains a comma
        """
        headers = _headers(topic=topic, filter=filter, order_by=order_by, top_n=top_n, sow_keys=_joined(keys))
        return self._link.execute("sow", _QUERY, headers, timeout)

    def sow_and_subscribe(
        self,
        topic: str,
        filter: str | None = None,  # noqa: A002
        *,
        order_by: str | None = None,
        top_n: int | None = None,
        sub_id: str | None = None,
        replace: bool = False,
        handler: Callable[[LogMessage], None] | None = None,
        timeout: float | None = None,
    ) -> MessageStream:
        """Query the state of the world and subscribe to everything after it, without a gap; see :meth:`sow`."""
        options = "replace" if replace else None
        headers = _headers(topic=topic, filter=filter, order_by=order_by, top_n=top_n, sub_id=sub_id, options=options)
        return self._link.execute("sow_and_subscribe", _QUERY, headers, timeout, handler)

    def subscribe(
        self,
        topic: str,
        filter: str | None = None,  # noqa: A002
        *,
        bookmark: str | None = None,
        sub_id: str | None = None,
        replace: bool = False,
        handler: Callable[[LogMessage], None] | None = None,
        timeout: float | None = None,
    ) -> MessageStream:
        """Subscribe to new messages; with a bookmark, to those after it first.

        :param bookmark: ``EPOCH``, ``NOW``, ``MOST_RECENT`` (after the messages that the application has discarded), a
            message's bookmark (after that message), or a range such as ``[A:B]``, which ends
        :param sub_id: the subscription's name, the same in every run; ``MOST_RECENT`` needs one
        :param replace: replace a subscription of that name
        :param handler: called with each message in the thread that reads, instead of an iteration
        """
        # without a bookmark the heartbeats report its position, which needs no record of its own
        requested = {"processed", "completed"} | ({"persisted"} if bookmark else set())
        progress = bool(bookmark)
        if bookmark == MOST_RECENT:
            if not sub_id:
                raise BadParameterError("bookmark is MOST_RECENT: give sub_id, by which progress is remembered, too.")
            bookmark = self._bookmarks.most_recent(sub_id)
        options = "replace" if replace else None
        # the same as no bookmark, but ``completed`` then names the position to resume from
        headers = _headers(topic=topic, filter=filter, bookmark=bookmark or NOW, sub_id=sub_id, options=options)
        return self._link.execute("subscribe", requested, headers, timeout, handler, progress=progress)

    def unsubscribe(self, stream: MessageStream | None = None, timeout: float | None = None) -> None:
        """Cancel a subscription, or all of them."""
        sub_id = "all" if stream is None else str(stream.sub_id)
        self._link.execute("unsubscribe", {"processed"}, {record_headers.SUB_ID: sub_id}, timeout)
        for one in self._link.subscriptions() if stream is None else [stream]:
            self._link.remove(one)

    def sow_delete(
        self,
        topic: str,
        filter: str | None = None,  # noqa: A002
        *,
        keys: Iterable[str] = (),
        after: Publisher | None = None,
        timeout: float | None = None,
    ) -> CommandAck:
        """Delete records from the state of the world, by a filter or by keys; the log keeps their messages.

        :param after: delete in order with the messages of a publisher: its earlier messages are in the tables
            before the records are selected, and messages that it publishes after this returns stay
        :return: the counts ``topic_matches``, ``matches``, ``records_deleted``
        :raises CommandTimeout: whether it is durable is unknown
        :raises FlushTimeout: the messages of ``after`` are not in the tables; nothing was deleted
        """
        if after is not None:
            after.publish_flush(self._link.timeout if timeout is None else timeout, stage="persisted")
        headers = _headers(topic=topic, filter=filter, sow_keys=_joined(keys))
        answer = self._link.execute("sow_delete", {*_QUERY, "persisted"}, headers, timeout)
        answer.wait("persisted", self._link.timeout if timeout is None else timeout)
        return answer.stats

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all earlier commands are done, and their changes are durable."""
        answer = self._link.execute("flush", {"processed", "persisted"}, {}, timeout)
        answer.wait("persisted", self._link.timeout if timeout is None else timeout)

    def execute(
        self, /, command: str, requested: Iterable[str], *, timeout: float | None = None, **headers: str | int
    ) -> MessageStream:
        """Send any command with record ``headers`` such as ``topic`` or ``seq``; prefer the other methods."""
        return self._link.execute(command, {*requested, "processed"}, _headers(**headers), timeout)

    def close(self) -> None:
        """Cancel the subscriptions and disconnect; may be called twice."""
        self._link.close()
        self._bookmarks.close()


def _headers(**headers: str | int | None) -> dict[str, str]:
    return {name: str(value) for name, value in headers.items() if value not in (None, "")}


def _joined(keys: Iterable[str]) -> str:
    """Join keys by commas; ``BadParameterError`` if one has a comma, as it would select other records."""
    found = [keys] if isinstance(keys, str) else list(keys)
    for key in found:
        if "," in key:
            raise BadParameterError(f"The key {key!r} contains a comma: select its record by a filter.")
    return ",".join(found)
