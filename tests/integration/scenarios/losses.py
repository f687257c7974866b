"""A link between a reader and settle that loses what a scenario says. Kafka itself loses nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ackstream.protocol import readers
from ackstream.protocol.readers import AppAck, AppAckConf
from tests.integration.scenarios.rules import Json, now

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackstream.client import SampleReader


class Losses:
    """Loses AppAcks of a reader, and confirmations of them, by their numbers; the first is 1."""

    def __init__(self, reader: SampleReader, given: Json) -> None:
        self._lost_app_acks = set(given.get("lose_app_ack", ()))
        self._lost_confs = set(given.get("lose_conf", ()))
        self._period = given["app_ack_period_ms"]
        self._sent: list[tuple[int, int]] = []
        self._confs: list[int] = []
        self._confirmed: tuple[int, int] | None = None
        producer, history = reader._link.producer, reader._history
        self._put, self._confirm = producer.put, history.confirm
        producer.put, history.confirm = self._carry, self._return  # type: ignore[method-assign]

    @property
    def over(self) -> bool:
        """Tell whether a confirmation has reached the reader."""
        return self._confirmed is not None

    def observation(self) -> Json:
        """Return when AppAcks were sent, and how many had come each way until the reader was confirmed."""
        assert self._confirmed is not None
        count, confirmed_at = self._confirmed
        began = self._sent[0][1]
        # later is late enough, earlier is not; what is sent before the engine confirms is not too much
        times = [
            min(at - began, number * self._period)
            for number, (_, at) in enumerate(self._sent)
            if number <= len(self._lost_app_acks) or at > confirmed_at
        ]
        arrived = [sent for number, (sent, _) in enumerate(self._sent, 1) if number not in self._lost_app_acks]
        return {
            "app_ack_sent_at_ms": times,
            "app_ack_received": sum(sent <= count for sent in arrived),
            "conf_sent": sum(sent <= count for sent in self._confs),
        }

    def _carry(self, stored: Callable[[Any], None], failed: Callable[[Any], None], topic: str, **sent: Any) -> None:
        record = readers.read(sent["value"]) if topic.endswith("app-acks") else None
        if isinstance(record, AppAck):
            self._sent.append((record.count, now()))
            if len(self._sent) in self._lost_app_acks:
                stored(None)
                return
        self._put(stored, failed, topic, **sent)

    def _return(self, conf: AppAckConf) -> None:
        self._confs.append(conf.count)
        if len(self._confs) in self._lost_confs:
            return
        self._confirmed = self._confirmed or (conf.count, now())
        self._confirm(conf)
