"""Parts of a connection: the labels that its sources declare and its targets issue, and its targets' addresses.

Source of the rules: Eclipse Ditto, ``ConnectionValidator``, ``ImmutableFilteredTopic`` (ditto.md 6, 10),
``KafkaPublishTarget``, ``KafkaValidator``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

import msgspec

from ackstream.protocol.ditto.errors import label_invalid, label_not_unique, target_address_invalid
from ackstream.protocol.ditto.labels import LIVE_RESPONSE, parse_label
from ackstream.protocol.ditto.placeholders import Context, PlaceholderError, Template
from ackstream.protocol.ditto.subscriptions import Stream, Subscription, subscription
from ackstream.protocol.errors import DittoError

if TYPE_CHECKING:
    from collections.abc import Sequence


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
    """Return the labels of a connection, with ``{{connection:id}}`` resolved.

    :param declared: by its sources, which may share labels
    :param issued: by its targets; only these may be ``live-response``
    :raises DittoError: 400 ``acknowledgement:label.invalid``: a label does not start with the connection's id and a
        colon; 409 ``acknowledgement:label.not.unique``: two targets issue the same label
    """
    labels = ConnectionLabels(
        tuple(resolve_label(connection_id, label) for label in declared),
        tuple(resolve_label(connection_id, label) for label in issued),
    )
    custom = [label for label in labels.issued if label != LIVE_RESPONSE]
    for label in (*labels.declared, *custom):
        if not label.startswith(f"{connection_id}:"):
            raise _unprefixed(label)
    if len(custom) > len(set(custom)):
        raise _issued_twice()
    return labels


def resolve_label(connection_id: str, label: str) -> str:
    """Return a label with ``{{connection:id}}`` resolved.

    :raises DittoError: 400 ``acknowledgement:label.invalid``
    """
    parse_label(label)
    try:
        resolved = Template.parse(label).resolve(Context({}, connection_id))
    except PlaceholderError:
        raise label_invalid(label) from None
    return parse_label(resolved or "")


def _unprefixed(label: str) -> DittoError:
    error = label_invalid(label)
    error.description = "Declared acknowledgement labels of a connection must have the form <id>:<alphanumeric-suffix>"
    return error


def _issued_twice() -> DittoError:
    error = label_not_unique()
    return DittoError(
        error.status,
        error.error,
        "An issued acknowledgement label may only be used for one target of the connection.",
        "Please choose unique suffixes for your configured issued acknowledgement labels.",
    )


_STREAMS: dict[str, Stream] = {
    "_/_/things/twin/events": "events",
    "_/_/things/live/commands": "live-commands",
    "_/_/things/live/events": "live-events",
    "_/_/things/live/messages": "messages",
}


_PARAMETERS = ("namespaces", "filter", "extraFields")


def target_subscription(text: str) -> Subscription:
    """Read the subscription of a target, such as ``_/_/things/twin/events?namespaces=org.acme&filter=exists(…)``.

    :raises DittoError: 400; the filter cannot be parsed
    :raises ValueError: it does not have this form
    """
    name, _, query = text.partition("?")
    stream = _STREAMS.get(name)
    if stream is None:
        raise ValueError(f"{name!r} is not a topic of targets; known are {', '.join(_STREAMS)}")
    parameters = dict(parse_qsl(query))
    unknown = sorted(parameters.keys() - set(_PARAMETERS))
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not a parameter of a target's topic; known are {', '.join(_PARAMETERS)}")
    namespaces = [namespace for namespace in parameters.get("namespaces", "").split(",") if namespace]
    return subscription(
        stream,
        namespaces=namespaces,
        filter=parameters.get("filter"),
        extra_fields=parameters.get("extraFields"),
    )


_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_PARTITION = re.compile(r"[0-9]{1,9}")


class TargetAddress(msgspec.Struct, frozen=True):
    """The Kafka address of a target: ``topic``, ``topic/key`` or ``topic#partition``."""

    topic: str
    key: str | None = None
    partition: int | None = None

    @staticmethod
    def parse(text: str) -> TargetAddress:
        """Read an address: split at its first slash, else at its first hash; an empty key or partition is ignored.

        :raises DittoError: 400 ``connectivity:connection.configuration.invalid``: not a topic name or partition number
        """
        topic, slash, key = text.partition("/")
        partition = ""
        if not slash:
            topic, _, partition = text.partition("#")
        if _TOPIC.fullmatch(topic) is None:
            raise target_address_invalid(text, f"<{topic}> is not the name of a Kafka topic.")
        if partition and _PARTITION.fullmatch(partition) is None:
            raise target_address_invalid(text, f"<{partition}> is not the number of a partition.")
        return TargetAddress(topic, key or None, int(partition) if partition else None)
