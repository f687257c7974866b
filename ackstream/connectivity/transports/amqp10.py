"""AMQP 1.0 as a transport, on Qpid Proton: dispositions of deliveries, both ways.

A message is settled as accepted, or rejected as modified (delivery-failed; the broker delivers it again) or rejected.
Source of the rules: Eclipse Ditto, ``AmqpConsumerActor``, ``AmqpPublisherActor`` (ditto.md 7).
"""

import time
from typing import Any, NamedTuple

from proton import Delivery
from proton.reactor import AtLeastOnce, AtMostOnce

from ackstream.connectivity.transports import brokers, transport
from ackstream.connectivity.transports.amqp10_link import Link, Node, condition_text, proton_message, received_message
from ackstream.connectivity.transports.brokers import ConfirmingPublisher, Confirms, PushedSource, RejectedError
from ackstream.connectivity.transports.transport import Confirm, OutgoingMessage, Published, not_published
from ackstream.protocol.ditto.acknowledgements import OK
from ackstream.protocol.ditto.connection_rules import Settlement
from ackstream.protocol.errors import BAD_REQUEST, UNAVAILABLE
from ackstream.settings import Kafka
from ackstream.settings.connections import Amqp10Connection


class Amqp10Source(PushedSource):
    """Consumes the queues of a source, each with its share of the messages in flight as credit."""

    def start(self) -> None:
        """Connect and consume."""
        # by delivery, in order of arrival
        self._unsettled: dict[Any, None] = {}
        # events of the links that the broker has opened
        attached: list[Any] = []
        link = Link(self._settings, on_link_opened=attached.append, on_delivery=self._delivered)
        mode = AtMostOnce() if self._source.qos == 0 else AtLeastOnce()
        for address in self._source.addresses:
            receiver = link.container.create_receiver(link.connection, address, options=[mode, Node("queue")])
            receiver.flow(self._share)
        link.wait(lambda: len(attached) == len(self._source.addresses))
        self._link = link
        self._thread.start()

    def _disconnect(self) -> None:
        if self._link is None:
            return
        untaken = {delivery for delivery, _, _ in self._arrived}
        for delivery in self._unsettled:
            if delivery in untaken:
                delivery.update(Delivery.RELEASED)
                delivery.settle()
            else:
                # the broker would not mark it as delivered before
                settle(delivery, "reject-with-redelivery")
        self._link.close()

    def _settle(self, delivery: Any, settlement: Settlement) -> None:
        self._unsettled.pop(delivery, None)
        settle(delivery, settlement)
        # room for one more
        delivery.link.flow(1)

    def _delivered(self, event: Any) -> None:
        """Take a message before proton decodes it for ``on_message``, which raises if it cannot."""
        delivery, link = event.delivery, event.link
        if not delivery.readable or delivery.partial or delivery.aborted:
            return
        encoded = bytes(link.recv(delivery.pending) or b"")
        link.advance()
        message, delivered = received_message(encoded, link.source.address)
        if self._source.qos > 0:
            self._unsettled[delivery] = None
        self._arrived.append((delivery, message, delivered))
        # to be taken before waiting for more
        event.container.yield_()


def settle(delivery: Any, settlement: Settlement) -> None:
    """Settle a delivery: accepted, rejected, or modified with its delivery counted as failed."""
    if settlement == "settle":
        delivery.update(Delivery.ACCEPTED)
    elif settlement == "reject-without-redelivery":
        delivery.update(Delivery.REJECTED)
    else:
        delivery.local.failed = True
        delivery.update(Delivery.MODIFIED)
    delivery.settle()


MAX_LINKS = 256
"""Links kept for further messages to their addresses."""

_OF_ADDRESS = frozenset({"amqp:not-allowed", "amqp:not-found", "amqp:unauthorized-access"})
_UNFIT = ("decode-error", "invalid-field", "link:message-size-exceeded", "not-implemented", "precondition-failed")
_OF_MESSAGE = frozenset(f"amqp:{name}" for name in _UNFIT)
"""Conditions that a retry does not change; after any other, such as a full queue, it may. With one of the second kind a
link is closed because of one message."""

_TOPIC = "topic://"


def refusal(condition: Any, final: frozenset[str] = _OF_ADDRESS | _OF_MESSAGE) -> Published:
    """Return the result of a message that the broker rejected, or whose link it closed: 400 if that is ``final``."""
    status = BAD_REQUEST if condition is not None and condition.name in final else UNAVAILABLE
    return not_published(RejectedError(condition_text(condition)), status)


class _AddressLink(NamedTuple):
    sender: Any
    confirms: Confirms


class Amqp10Publisher(ConfirmingPublisher):
    """Publishes durable messages over a link per address."""

    def __init__(self, connection: Amqp10Connection, _own: Kafka) -> None:
        super().__init__(connection.id)
        # by address, in order of their last use
        self._links: dict[str, _AddressLink] = {}
        self._attached = 0
        self._link: Link = Link(
            connection,
            on_sendable=self._sendable,
            on_accepted=lambda event: self._confirm(event, Published(OK)),
            on_rejected=lambda event: self._confirm(event, refusal(event.delivery.remote.condition)),
            on_released=lambda event: self._confirm(event, refusal(None)),
            on_link_error=self._link_closed,
        )
        self._thread.start()

    def _unconfirmed(self) -> list[Confirms]:
        return [link.confirms for link in self._links.values()]

    def _turn(self) -> None:
        while self._accepted:
            self._send(*self._accepted.popleft())
        self._link.turn(brokers.POLL_SECONDS)
        self._look()

    def _look(self) -> None:
        """Give up the messages to an address that the broker, which may grant it no credit, did not take in time."""
        now = time.monotonic()
        for address in [address for address, link in self._links.items() if link.confirms.overdue(now)]:
            self._links[address].sender.close()
            self._abandon(address, not_published(TimeoutError("The broker did not take it in time."), UNAVAILABLE))

    def _abandon(self, address: str, result: Published) -> None:
        for left in self._links.pop(address).confirms.give_up():
            left.done(result)

    def _send(self, message: OutgoingMessage, done: Confirm) -> None:
        address = message.address
        link = self._links.pop(address, None)
        if link is None:
            if len(self._links) >= MAX_LINKS:
                for idle in [each for each, other in self._links.items() if other.confirms.idle][:1]:
                    self._links.pop(idle).sender.close()
            link = self._attach(address, Confirms())
        self._links[address] = link
        link.confirms.add(message, done)
        self._drain(link)

    def _attach(self, address: str, confirms: Confirms) -> _AddressLink:
        options = [AtLeastOnce(), Node("topic" if address.startswith(_TOPIC) else "queue")]
        # a name of its own: that of proton would be the one of the link before, which may not be detached yet
        self._attached += 1
        name, target = f"sender-{self._attached}", address.removeprefix(_TOPIC)
        container, connection = self._link.container, self._link.connection
        return _AddressLink(container.create_sender(connection, target, address, name=name, options=options), confirms)

    def _drain(self, link: _AddressLink) -> None:
        sender = link.sender
        while sender.credit > 0 and (unconfirmed := link.confirms.take()) is not None:
            try:
                # before there is a delivery, which the next message would fill
                encoded = proton_message(unconfirmed.message).encode()
            except Exception as error:  # noqa: BLE001 - a header that AMQP cannot carry
                unconfirmed.done(not_published(error, BAD_REQUEST))
                continue
            tag = sender.delivery_tag()
            link.confirms.sent(tag, unconfirmed)
            sender.delivery(tag)
            sender.stream(encoded)
            sender.advance()

    # called by proton; the source address of a link is the address of its messages

    def _sendable(self, event: Any) -> None:
        if (link := self._link_of(event)) is not None:
            self._drain(link)

    def _link_closed(self, event: Any) -> None:
        if (link := self._link_of(event)) is None:
            return
        address, condition = event.link.source.address, event.link.remote_condition
        if condition is not None and condition.name in _OF_MESSAGE and link.confirms.sending:
            refused = link.confirms.channel_closed()
            if refused is not None:
                refused.done(refusal(condition))
            # sends the others when the broker grants credit
            self._links[address] = self._attach(address, link.confirms)
            return
        # a waiting message is not a reason
        self._abandon(address, refusal(condition, _OF_ADDRESS))

    def _confirm(self, event: Any, result: Published) -> None:
        link = self._link_of(event)
        unconfirmed = None if link is None else link.confirms.confirm(event.delivery.tag, stored=result.succeeded)
        if link is not None and unconfirmed is not None:
            unconfirmed.done(result)
            self._drain(link)

    def _link_of(self, event: Any) -> _AddressLink | None:
        """Return the link of an event, unless it was replaced."""
        link = self._links.get(event.link.source.address)
        return link if link is not None and link.sender == event.link else None


TRANSPORT = transport.Transport(Amqp10Publisher, Amqp10Source)
