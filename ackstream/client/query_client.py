"""Commands over the messages that are stored: queries, subscriptions with replay, deletes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from ackstream.client.bookmarks import MemoryBookmarks, SqliteBookmarks
from ackstream.client.query_link import QueryLink
from ackstream.kafka.clients import Closing
from ackstream.protocol.queries import MOST_RECENT
from ackstream.settings import Kafka

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ackstream.client.message_stream import Message, MessageStream
    from ackstream.protocol.messages import CommandAck

TIMEOUT = 60.0
HEARTBEAT = 30.0
_QUERY = {"processed", "completed", "stats"}


class QueryClient(Closing):
    """Sends commands to the query job, and hands over what they bring.

    Each command waits for ``processed``: one that is refused raises the error of its reason (``RefusedError``). A
    client that is not heard for twice its heartbeat loses its subscriptions; so does one whose name is taken by
    another. Safe to use from several threads.
    """

    def __init__(
        self,
        kafka: Kafka | None = None,
        *,
        client: str,
        bookmarks: Path | str | None = None,
        timeout: float = TIMEOUT,
        heartbeat: float = HEARTBEAT,
        conflation_ms: int | None = None,
        on_ack: Callable[[CommandAck], None] | None = None,
        bootstrap: str = "localhost:9092",
        topic_prefix: str = "",
    ) -> None:
        """Connect and log on; what an earlier client of this name had subscribed to ends.

        :param kafka: the broker as in the settings; else ``bootstrap`` and ``topic_prefix``
        :param client: the name that results come to, the same in every run
        :param bookmarks: a file in which the progress of subscriptions survives the process; ``None``: memory
        :param timeout: seconds that a command waits for ``processed``
        :param heartbeat: seconds between two signs of life
        :param conflation_ms: how often the log's end is told to subscriptions at most; ``None``: as it comes
        :param on_ack: gets every acknowledgement as it came, in the thread that reads
        :raises UnreachableError: no broker, or a topic is missing
        :raises StoreError: the file cannot be used
        :raises CommandTimeout: nobody answers: start the job (``ackstream submit query``)
        """
        kafka = kafka or Kafka(bootstrap=bootstrap, topic_prefix=topic_prefix)
        self._bookmarks = MemoryBookmarks() if bookmarks is None else SqliteBookmarks(Path(bookmarks), client)
        try:
            self._link = QueryLink(kafka, client, self._bookmarks, timeout=timeout, heartbeat=heartbeat, on_ack=on_ack)
        except BaseException:
            self._bookmarks.close()
            raise
        try:
            options = [f"heartbeat={max(1, round(heartbeat * 1000))}ms"]
            if conflation_ms is not None:
                options.append(f"ack_conflation={conflation_ms}ms")
            answer = self._link.execute("logon", {"processed"}, {"options": ",".join(options)})
            self.effective_conflation_ms = answer.wait("processed").effective_conflation_ms
            """How often the log's end is told where the service cannot do it as often as asked."""
        except BaseException:
            self.close()
            raise

    # -- commands ----------------------------------------------------------------------------------------------------

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
        """Ask for the state of the world: of each key the newest message.

        :param filter: such as ``/order/price > 10 AND /state = 'open'``, or RQL: ``gt(order/price,10)``
        :param order_by: paths, ``/price DESC, /id``; else the order in which the messages came
        :param top_n: how many at most; 0 to have them counted alone (``stats``)
        :param keys: only these
        :raises RefusedError: with the reason
        :raises CommandTimeout: it was not processed in time
        """
        said = _said(topic=topic, filter=filter, order_by=order_by, top_n=top_n, sow_keys=",".join(keys))
        return self._link.execute("sow", _QUERY, said, timeout)

    def sow_and_subscribe(
        self,
        topic: str,
        filter: str | None = None,  # noqa: A002
        *,
        order_by: str | None = None,
        top_n: int | None = None,
        sub_id: str | None = None,
        replace: bool = False,
        handler: Callable[[Message], None] | None = None,
        timeout: float | None = None,
    ) -> MessageStream:
        """Ask for the state of the world and for everything that comes after it, without a gap; see :meth:`sow`."""
        said = _said(topic=topic, filter=filter, order_by=order_by, top_n=top_n, sub_id=sub_id)
        return self._link.execute("sow_and_subscribe", _QUERY, said | _replace(replace), timeout, handler)

    def subscribe(
        self,
        topic: str,
        filter: str | None = None,  # noqa: A002
        *,
        bookmark: str | None = None,
        sub_id: str | None = None,
        replace: bool = False,
        handler: Callable[[Message], None] | None = None,
        timeout: float | None = None,
    ) -> MessageStream:
        """Ask for messages as they come, from a bookmark on those that were there before.

        :param bookmark: ``EPOCH``, ``NOW``, ``MOST_RECENT`` (where the application has got to, by ``discard``), a
            message's bookmark (it begins behind that), or a range such as ``[A:B]``, which ends
        :param sub_id: the subscription's name, the same in every run for ``MOST_RECENT``
        :param replace: take the place of a subscription with that name
        :param handler: called with each message in the thread that reads, instead of an iteration
        :raises RefusedError: with the reason
        :raises CommandTimeout: it was not processed in time; it is taken back
        """
        asked = {"processed", "completed", "persisted"} if bookmark else {"processed"}
        if bookmark == MOST_RECENT and sub_id is not None:
            bookmark = self._bookmarks.most_recent(sub_id)
        said = _said(topic=topic, filter=filter, bookmark=bookmark, sub_id=sub_id)
        return self._link.execute("subscribe", asked, said | _replace(replace), timeout, handler)

    def unsubscribe(self, stream: MessageStream | None = None, timeout: float | None = None) -> None:
        """Give a subscription up, or all of them."""
        sub_id = "all" if stream is None else str(stream.sub_id)
        self._link.execute("unsubscribe", {"processed"}, {"sub_id": sub_id}, timeout)
        for one in self._link.live() if stream is None else [stream]:
            self._link.forget(one)

    def sow_delete(
        self,
        topic: str,
        filter: str | None = None,  # noqa: A002
        *,
        keys: Iterable[str] = (),
        timeout: float | None = None,
    ) -> CommandAck:
        """Take records out of the state of the world, those of a filter or of keys; the log keeps their messages.

        :return: the numbers: ``topic_matches``, ``matches``, ``records_deleted``
        :raises CommandTimeout: it is not known to be durable
        """
        said = _said(topic=topic, filter=filter, sow_keys=",".join(keys))
        answer = self._link.execute("sow_delete", {*_QUERY, "persisted"}, said, timeout)
        answer.wait("persisted", self._link.timeout if timeout is None else timeout)
        return answer.stats

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all commands before are done, and what they have changed is durable."""
        answer = self._link.execute("flush", {"processed", "persisted"}, {}, timeout)
        answer.wait("persisted", self._link.timeout if timeout is None else timeout)

    def execute(
        self, command: str, asked: Iterable[str], *, timeout: float | None = None, **headers: str | int
    ) -> MessageStream:
        """Send any command and ask for any acknowledgements; the other methods are easier.

        :param headers: as they stand in the record, such as ``topic``, ``filter``, ``seq``
        :raises RefusedError: with the reason
        """
        return self._link.execute(command, {*asked, "processed"}, _said(**headers), timeout)

    @property
    def silent_for(self) -> float:
        """For how many seconds nothing has been heard of the service, which answers every heartbeat."""
        return time.monotonic() - self._link.heard_at

    def close(self) -> None:
        """Give up the subscriptions and disconnect; may be called twice."""
        self._link.close()
        self._bookmarks.close()


def _said(**headers: str | int | None) -> dict[str, str]:
    return {name: str(value) for name, value in headers.items() if value not in (None, "")}


def _replace(replace: bool) -> dict[str, str]:  # noqa: FBT001
    return {"options": "replace"} if replace else {}
