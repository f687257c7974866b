"""Topic paths: which entity a protocol message concerns, and the kind of the message.

``namespace/name/things/(twin|live)/criterion…``, ``namespace/name/policies/criterion…``,
``_/connectionId/connections/announcements/…``. Source of the rules: Eclipse Ditto, ``ImmutableTopicPath``.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from ackstream.protocol.errors import DittoError, unknown_topic_path

GROUPS = ("things", "policies", "connections")
CHANNELS = ("twin", "live", "none")
CRITERIA = ("commands", "events", "search", "streaming", "messages", "errors", "acks", "announcements")
THING_ACTIONS = ("create", "retrieve", "modify", "merge", "delete")
"""The actions that the twin carries out."""
COMMAND_ACTIONS = (*THING_ACTIONS, "migrate")
EVENT_ACTIONS = ("created", "modified", "merged", "deleted", "migrated")
_ACTIONS = (*COMMAND_ACTIONS, *EVENT_ACTIONS, "checkPermissions")
_SUBSCRIPTION_ACTIONS = ("request", "cancel", "complete", "created", "failed", "next", "error")
_SEARCH_ACTIONS = ("subscribe", *_SUBSCRIPTION_ACTIONS)
_STREAMING_ACTIONS = ("subscribeForPersistedEvents", *_SUBSCRIPTION_ACTIONS)

UNKNOWN_THING = "unknown:unknown"
"""The thing of an error or acknowledgement that concerns none, or an unknown one."""

# longer paths are parsed but not cached
_CACHED_LENGTH = 256


class TopicPath(msgspec.Struct, frozen=True):
    """A parsed topic path.

    ``entity`` is the name without its namespace; ``channel`` is ``twin`` or ``live``, ``None`` for policies and
    connections; ``action`` is that of commands and events, ``stream_action`` that of search and streaming; ``subject``
    is the subject of a message, the label of an acknowledgement (``None``: aggregated) or the name of an announcement.
    """

    namespace: str
    entity: str
    group: str
    channel: str | None
    criterion: str
    action: str | None = None
    subject: str | None = None
    stream_action: str | None = None

    @staticmethod
    def parse(text: str) -> TopicPath:
        """Read a topic path. Raises 400 ``protocoladapter:unknown.topicpath`` with the missing or unknown part."""
        parts = text.split("/", 2)
        if len(parts) == 3 and parts[0] and parts[1] and len(parts[2]) <= _CACHED_LENGTH:  # noqa: PLR2004 - see above
            known = _known_suffix(parts[2])
            if known is not None:
                return msgspec.structs.replace(known, namespace=parts[0], entity=parts[1])
        return _read(text)

    @staticmethod
    def parse_whole(text: str) -> TopicPath:
        """Read a topic path that ends with its last part; ``parse`` ignores further ones, as Ditto does. Raises 400."""
        found = TopicPath.parse(text)
        if str(found) != text:
            raise unknown_topic_path(text, f"The topic path continues after <{found}>.")
        return found

    @staticmethod
    def of(thing_id: str | None, channel: str | None, criterion: str, subject: str | None = None) -> TopicPath:
        """Return the topic path of a thing, ``None`` for an unknown one; any channel but ``live`` is ``twin``."""
        namespace, _, name = (thing_id or UNKNOWN_THING).partition(":")
        channel = "live" if channel == "live" else "twin"
        return TopicPath(namespace, name, "things", channel, criterion, None, subject)

    @property
    def thing_id(self) -> str:
        """The id of the entity: ``namespace:name``."""
        return f"{self.namespace}:{self.entity}"

    @property
    def placeholders(self) -> dict[str, dict[str, str]]:
        """The values of placeholders by prefix (``topic``, ``thing``) and name, without those that the topic lacks."""
        own = ("namespace", "group", "channel", "criterion", "action", "subject")
        named = {"full": str(self), "entityName": self.entity, "action-subject": self.action or self.subject}
        named |= {name: getattr(self, name) for name in own}
        identity = {"id": self.thing_id, "namespace": self.namespace, "name": self.entity}
        topic = {name: text for name, text in named.items() if text is not None}
        return {"topic": topic, "thing": identity, "entity": identity}

    def __str__(self) -> str:
        suffix = (self.group, self.channel, self.criterion, self.action, self.stream_action, self.subject)
        return "/".join([self.namespace, self.entity, *[part for part in suffix if part is not None]])


@lru_cache(maxsize=4096)
def _known_suffix(text: str) -> TopicPath | None:
    """Parse the part after some entity; ``None`` if it is wrong, since the error must name the whole topic."""
    try:
        return _read(f"namespace/name/{text}")
    except DittoError:
        return None


def _segments(text: str) -> list[str]:
    """Split at slashes as Ditto does: from an empty segment on, the rest is one segment that starts with a slash."""
    head, empty, rest = text.partition("//")
    segments = head.removesuffix("/").split("/") if text else []
    return [*segments, f"/{rest}"] if empty else segments


def _read(text: str) -> TopicPath:
    rest = iter(_segments(text))

    def named(part: str, title: str = "", known: tuple[str, ...] | None = None) -> str:
        name = next(rest, None)
        if name is None:
            raise unknown_topic_path(text, f"The topic path has no {part} part.")
        if known is not None and name not in known:
            raise unknown_topic_path(text, f"{title} name <{name}> is unknown.")
        return name

    channel = action = stream_action = subject = None
    namespace, entity = named("namespace"), named("entity name")
    group = named("group", "Group", GROUPS)
    if group == "things" and (channel := named("channel", "Channel", CHANNELS)) == "none":
        channel = None
    criterion = named("criterion", "Criterion", CRITERIA)
    if criterion in ("commands", "events"):
        action = named("action", "Action", _ACTIONS)
    elif criterion == "search":
        stream_action = named("search action", "Search action", _SEARCH_ACTIONS)
    elif criterion == "streaming":
        stream_action = named("search action", "Streaming action", _STREAMING_ACTIONS)
    elif criterion != "errors":
        subject = "/".join(rest) or None
    return TopicPath(namespace, entity, group, channel, criterion, action, subject, stream_action)
