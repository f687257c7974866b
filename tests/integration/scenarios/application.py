"""A real publisher and its application's callbacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ackstream.client import AcknowledgementTimeout, FailedMessage, FlushTimeout, Publisher, Receipt, WouldBlockError
from ackstream.client.errors import RefusedError
from ackstream.settings.kafka import KafkaOptions
from tests.conformance.scenarios.observations import AT
from tests.integration.scenarios.rules import VALUE, Json, now

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackstream.protocol.messages import CommandAck
    from tests.harness.persistence import Persistence

LINGER = KafkaOptions(python={"linger.ms": "1000"})
"""Messages sent within this time arrive together."""

NO_RESENDING_SECONDS = 60.0


class Application:
    """A real publisher, and the callbacks to its application."""

    def __init__(self, persistence: Persistence, client: str, on_logon: Callable[[], None] = lambda: None) -> None:
        """Begin without a publisher.

        :param on_logon: called when a logon was answered, before the publisher sends the messages of its store
        """
        self.acks: list[tuple[CommandAck, int]] = []
        self.counts: list[int] = []
        self.receipts: list[Receipt] = []
        self.failed: list[FailedMessage] = []
        self.blocked: list[int] = []
        self._kafka = persistence.kafka.model_copy(update={"options": LINGER})
        self._client = client
        self._on_logon = on_logon
        self._publisher: Publisher | None = None

    @property
    def publisher(self) -> Publisher:
        assert self._publisher is not None
        return self._publisher

    def connect(self, **options: Any) -> None:
        self._publisher = Publisher(
            self._kafka,
            name=self._client,
            on_ack=self._on_ack,
            on_receipt=self.receipts.append,
            on_failed_write=self.failed.append,
            **({"ack_timeout": NO_RESENDING_SECONDS} | options),
        )

    def close(self) -> None:
        if self._publisher is not None:
            self._publisher.close()

    def publish(self) -> None:
        self.publisher.publish(VALUE, topic="open")

    def take(self, step: Json, subject: str) -> None:
        if step["op"] == "publish_await_ack":
            self.publisher.publish_await_acknowledgement(VALUE, step["timeout_ms"] / 1000, topic=subject)
            return
        try:
            self.publisher.publish(VALUE, topic=subject, ack_immediately=step.get("ack_immediately", False))
        except WouldBlockError:
            self.blocked.append(step["id"])

    def heard(self, step: Json) -> bool:
        wanted = (step["seq"], step["status"], step.get("reason"))
        return any((ack.seq, ack.status, ack.reason) == wanted for ack, _ in self.acks if ack.ack_type == "persisted")

    def _on_ack(self, ack: CommandAck) -> None:
        if ack.ack_type == "processed":
            self._on_logon()
        self.acks.append((ack, now()))
        if self._publisher is not None:
            self.counts.append(self._publisher.unpersisted_count)


def outcome(act: Callable[[], None], began: int) -> Json:
    """Do something; return how it failed, and when."""
    try:
        act()
    except AcknowledgementTimeout:
        return {"error": "timeout", "outcome": "unknown", AT: now() - began}
    except FlushTimeout:
        return {"error": "timed_out", AT: now() - began}
    except RefusedError as error:
        return {"error": "rejected", "outcome": "rejected", "reason": error.reason, AT: now() - began}
    return {}
