"""Requests as values: Ditto Protocol commands and messages, ready to be sent.

Source of the forms: Eclipse Ditto, things protocol specification.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from msgspec import UNSET, Raw

from ackstream.protocol.ditto.envelopes import Envelope, raw
from ackstream.protocol.ditto.errors import NOT_FOUND, DittoError
from ackstream.protocol.ditto.topics import TopicPath

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ackstream.client.replies import Reply
    from ackstream.client.requester import Requester


Channel = Literal["twin", "live"]
Action = Literal["create", "retrieve", "modify", "merge", "delete"]
MERGE_PATCH = "application/merge-patch+json"


class Command:
    """Makes envelopes. A ``value`` is any JSON value, or JSON text as ``msgspec.Raw``; paths are JSON pointers."""

    @staticmethod
    def of(
        topic: str | TopicPath, path: str = "/", value: Any = UNSET, headers: Mapping[str, Any] | None = None
    ) -> Envelope:
        """Return any command or message.

        :raises DittoError: the topic path is unknown
        """
        parsed = TopicPath.parse(topic) if isinstance(topic, str) else topic
        return Envelope(parsed, dict(headers or {}), path, json_value(value))

    @staticmethod
    def on_thing(
        action: Action, thing_id: str, path: str = "/", value: Any = UNSET, *, channel: Channel = "twin"
    ) -> Envelope:
        """Return a command on a thing or on what is at ``path`` in it.

        :raises ValueError: the thing id is not ``namespace:name``
        """
        namespace, name = split_id(thing_id)
        headers = {"content-type": MERGE_PATCH} if action == "merge" else {}
        return Envelope(
            TopicPath(namespace, name, "things", channel, "commands", action), headers, path, json_value(value)
        )

    @staticmethod
    def create_thing(thing_id: str, thing: Mapping[str, Any] | None = None, *, channel: Channel = "twin") -> Envelope:
        """Return the command that creates a thing, with attributes and features as in ``thing``."""
        return Command.on_thing("create", thing_id, "/", {**(thing or {}), "thingId": thing_id}, channel=channel)

    @staticmethod
    def retrieve(thing_id: str, path: str = "/", *, channel: Channel = "twin") -> Envelope:
        """Return a query for a thing or for what is at ``path`` in it."""
        return Command.on_thing("retrieve", thing_id, path, channel=channel)

    @staticmethod
    def modify_attribute(thing_id: str, path: str, value: Any, *, channel: Channel = "twin") -> Envelope:
        """Return the command that sets an attribute; ``path`` is within the attributes: ``location/floor``."""
        return Command.on_thing("modify", thing_id, f"/attributes/{path.lstrip('/')}", value, channel=channel)

    @staticmethod
    def modify_property(
        thing_id: str, feature_id: str, path: str, value: Any, *, channel: Channel = "twin"
    ) -> Envelope:
        """Return the command that sets a property of a feature; ``path`` is within its properties."""
        place = f"/features/{feature_id}/properties/{path.lstrip('/')}"
        return Command.on_thing("modify", thing_id, place, value, channel=channel)

    @staticmethod
    def merge(thing_id: str, path: str, patch: Any, *, channel: Channel = "twin") -> Envelope:
        """Return a JSON merge patch (RFC 7396) of a thing or of what is at ``path`` in it."""
        return Command.on_thing("merge", thing_id, path, patch, channel=channel)

    @staticmethod
    def delete(thing_id: str, path: str = "/", *, channel: Channel = "twin") -> Envelope:
        """Return the command that deletes a thing or what is at ``path`` in it."""
        return Command.on_thing("delete", thing_id, path, channel=channel)

    @staticmethod
    def message(
        thing_id: str,
        subject: str,
        payload: Any = UNSET,
        *,
        feature_id: str | None = None,
        box: Literal["inbox", "outbox"] = "inbox",
    ) -> Envelope:
        """Return a live message to a thing (``inbox``) or from it (``outbox``), or to or from one of its features."""
        namespace, name = split_id(thing_id)
        feature = "" if feature_id is None else f"/features/{feature_id}"
        headers = {} if payload is UNSET else {"content-type": "application/json"}
        topic = TopicPath(namespace, name, "things", "live", "messages", None, subject)
        return Envelope(topic, headers, f"{feature}/{box}/messages/{subject}", json_value(payload))


def split_id(thing_id: str) -> tuple[str, str]:
    """Return namespace and name.

    :raises ValueError: one of them is missing
    """
    namespace, _, name = thing_id.partition(":")
    if not namespace or not name:
        raise ValueError(f"A thing id is namespace:name, such as org.acme:lamp; this one is {thing_id!r}.")
    return namespace, name


def json_value(value: Any) -> Any:
    """Return a value as envelopes hold it: JSON text, or ``UNSET``."""
    return value if value is UNSET or isinstance(value, Raw) else raw(value)


# -- Extra fields: what a thing has at the moment, asked of the twin for signals that tell nothing of it.
# Source of the error: Eclipse Ditto, ``SignalEnrichmentFailedException``.


def fields_of(requester: Requester, timeout: float | str | None = None) -> Callable[[str, str], dict[str, Any]]:
    """Return what a ``Subscriber`` takes as ``extra``: each signal with extra fields waits for an answer of the twin.

    :param timeout: seconds, or a text of the protocol
    """

    def extra(thing_id: str, fields: str) -> dict[str, Any]:
        return fields_in(requester.request(retrieval(thing_id, fields), timeout=timeout), thing_id)

    return extra


def retrieval(thing_id: str, fields: str) -> Envelope:
    """Return the query for some fields of a thing."""
    command = Command.retrieve(thing_id)
    command.fields = fields
    return command


def fields_in(reply: Reply, thing_id: str) -> dict[str, Any]:
    """Return the fields in the reply to such a query; a thing that is not there has none.

    :raises DittoError: the twin could not be asked
    """
    if reply.ok and isinstance(reply.value, dict):
        return reply.value
    if reply.status == NOT_FOUND:
        return {}
    raise DittoError(
        reply.status,
        "connectivity:signal.enrichment.failed",
        "Signal enrichment failed.",
        f"The extra fields of the thing {thing_id} could not be retrieved.",
    )
