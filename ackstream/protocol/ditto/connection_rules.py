"""Connections: the labels they declare and issue, their targets' addresses, and whether a consumed message is settled.

Source of the rules: Eclipse Ditto, ``ConnectionValidator``, ``ImmutableFilteredTopic`` (ditto.md 6, 10),
``KafkaPublishTarget``, ``KafkaValidator``; for settlement ``BaseConsumerActor``, ``ResponseCollectorActor`` (3.3.0).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, TypeAlias
from urllib.parse import parse_qsl

import msgspec

from ackstream.protocol.ditto.aggregates import FAILED_DEPENDENCY, combined_status
from ackstream.protocol.ditto.labels import LIVE_RESPONSE, parse_label
from ackstream.protocol.ditto.placeholders import Context, PlaceholderError, Template
from ackstream.protocol.ditto.twin.subscriptions import PARAMETERS, STREAM_OF, Subscription, subscription_of
from ackstream.protocol.errors import REQUEST_TIMEOUT, issued_label_not_unique, label_invalid, target_address_invalid


class ConnectionLabels(msgspec.Struct, frozen=True):
    """Labels with placeholders resolved; only issued ones may be ``live-response``."""

    declared: tuple[str, ...]
    issued: tuple[str, ...]

    @property
    def to_declare(self) -> tuple[str, ...]:
        """The labels that the connection declares to the system, each once, in order."""
        custom = [label for label in self.issued if label != LIVE_RESPONSE]
        return tuple(dict.fromkeys([*self.declared, *custom]))


def connection_labels(connection_id: str, declared: Sequence[str], issued: Sequence[str]) -> ConnectionLabels:
    """Return the labels of a connection, with ``{{connection:id}}`` resolved."""
    # ``declared``: by its sources, which may share labels; ``issued``: by its targets; only these may be live-response.
    # DittoError 400 acknowledgement:label.invalid: one does not start with the connection's id and a colon; 409
    # acknowledgement:label.not.unique: two targets issue the same label.
    resolved = (tuple(resolve_label(connection_id, label) for label in own) for own in (declared, issued))
    labels = ConnectionLabels(*resolved)
    custom = [label for label in labels.issued if label != LIVE_RESPONSE]
    for label in (*labels.declared, *custom):
        if not label.startswith(f"{connection_id}:"):
            error = label_invalid(label)
            form = "<id>:<alphanumeric-suffix>"
            error.description = f"Declared acknowledgement labels of a connection must have the form {form}"
            raise error
    if len(custom) > len(set(custom)):
        raise issued_label_not_unique()
    return labels


def resolve_label(connection_id: str, label: str) -> str:
    """Return a label with ``{{connection:id}}`` resolved. Raises 400 ``acknowledgement:label.invalid``."""
    parse_label(label)
    try:
        resolved = Template.parse(label).resolve(Context({}, connection_id))
    except PlaceholderError:
        raise label_invalid(label) from None
    return parse_label(resolved or "")


_STREAMS = {f"_/_/things/{channel}/{criterion}": stream for (channel, criterion), stream in STREAM_OF.items()}


def target_subscription(text: str) -> Subscription:
    """Read the subscription of a target, such as ``_/_/things/twin/events?namespaces=org.acme&filter=exists(…)``."""
    # raises 400 for its filter, and ValueError for another form
    name, _, query = text.partition("?")
    stream = _STREAMS.get(name)
    if stream is None:
        raise ValueError(f"{name!r} is not a topic of targets; known are {', '.join(_STREAMS)}")
    parameters = dict(parse_qsl(query))
    unknown = sorted(parameters.keys() - set(PARAMETERS))
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not a parameter of a target's topic; known are {', '.join(PARAMETERS)}")
    return subscription_of(stream, parameters)


_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_PARTITION = re.compile(r"[0-9]{1,9}")


class TargetAddress(msgspec.Struct, frozen=True):
    """The Kafka address of a target: ``topic``, ``topic/key`` or ``topic#partition``."""

    topic: str
    key: str | None = None
    partition: int | None = None

    @staticmethod
    def parse(text: str) -> TargetAddress:
        """Read an address: split at its first slash, else at its first hash; an empty key or partition is ignored."""
        # DittoError 400 connectivity:connection.configuration.invalid: not a topic name or partition number
        topic, slash, key = text.partition("/")
        partition = ""
        if not slash:
            topic, _, partition = text.partition("#")
        if _TOPIC.fullmatch(topic) is None:
            raise target_address_invalid(text, f"<{topic}> is not the name of a Kafka topic.")
        if partition and _PARTITION.fullmatch(partition) is None:
            raise target_address_invalid(text, f"<{partition}> is not the number of a partition.")
        return TargetAddress(topic, key or None, int(partition) if partition else None)


Settlement: TypeAlias = Literal["settle", "reject-with-redelivery", "reject-without-redelivery"]

_PRECONDITION_FAILED = 412


class SettlementAnswer(msgspec.Struct, frozen=True):
    """The answer to one signal of a message: the status of a response or acknowledgement, or those of an aggregate.

    ``live``: a response to a live command or message (not an acknowledgement of one). Its status concerns only
    requester and responder, so only a timeout is a failure.
    """

    statuses: tuple[int, ...]
    live: bool = False

    @property
    def failed(self) -> bool:
        """Return whether this answer prevents the message from being settled."""
        status = combined_status(self.statuses)
        return status == REQUEST_TIMEOUT if self.live else 400 <= status <= 599  # noqa: PLR2004 - client and server errors


def settle(
    expected: int | None,
    responses: Sequence[SettlementAnswer] = (),
    *,
    complete: bool = True,
    error_status: int | None = None,
) -> Settlement:
    """Decide about a message that maps to signals of which ``expected`` await acknowledgements."""
    # ``expected``: None if unknown because the mapping of the whole message failed; ``complete``: False if waiting for
    # more answers was abandoned; ``error_status``: of a Ditto error that arrived instead of an answer
    if error_status is not None and expected is not None:
        if error_status == _PRECONDITION_FAILED:
            # a message excluded by a condition must not be redelivered
            return "settle"
        again = _is_transient(error_status)
    else:
        failed = [answer for answer in responses if answer.failed]
        if complete and len(responses) == expected and not failed:
            return "settle"
        # nothing failed: an answer is missing, and may arrive after a redelivery
        again = not failed or any(_is_transient(status) for answer in failed for status in answer.statuses)
    return "reject-with-redelivery" if again else "reject-without-redelivery"


def _is_transient(status: int) -> bool:
    return status in (REQUEST_TIMEOUT, FAILED_DEPENDENCY) or 500 <= status <= 599  # noqa: PLR2004 - server errors
