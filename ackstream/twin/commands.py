"""Twin commands: what an envelope asks the twin to do.

Source of the rules: Eclipse Ditto, the commands of ``things/model`` and their mapping strategies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Raw

from ackstream.protocol.errors import json_field_missing, unknown_topic_path
from ackstream.protocol.headers import read_headers
from ackstream.twin import resources
from ackstream.twin.errors import (
    id_not_deletable,
    id_not_settable,
    merge_invalid,
    policy_id_not_deletable,
    unknown_path,
)
from ackstream.twin.preconditions import CONDITION, IF_MATCH, IF_NONE_MATCH, read_tags
from ackstream.twin.resources import Resource, resource
from ackstream.twin.things import read_value

if TYPE_CHECKING:
    from ackstream.protocol.envelopes import Envelope

ACTIONS = ("create", "retrieve", "modify", "merge", "delete")


class Command(msgspec.Struct, frozen=True):
    """A command for one thing.

    ``value`` is JSON, ``UNSET`` for retrieve and delete; ``timestamp`` is the broker's, in epoch milliseconds;
    ``fields`` is the selector of a retrieve.
    """

    thing_id: str
    action: str
    resource: Resource
    timestamp: int
    value: Any = UNSET
    if_match: tuple[str, ...] | None = None
    if_none_match: tuple[str, ...] | None = None
    condition: str | None = None
    fields: str | None = None


def read_command(envelope: Envelope, timestamp: int) -> Command:
    """Read a command for one thing.

    :raises DittoError: 400; the id, the path or the value is not one
    """
    topic = envelope.topic
    action = topic.action
    if action not in ACTIONS:
        raise unknown_topic_path(str(topic), f"The twin does not know the action <{action}>.")
    resources.check_id(topic.thing_id)
    part = resource(envelope.path)
    if (action == "create" and part.kind != "thing") or (action == "delete" and part.kind == "policyId"):
        raise unknown_path(envelope.path)
    headers = read_headers(envelope.headers)
    if_match, if_none_match = headers.get(IF_MATCH), headers.get(IF_NONE_MATCH)
    return Command(
        topic.thing_id,
        action,
        part,
        timestamp,
        UNSET if action in ("retrieve", "delete") else _value(envelope.value, topic.thing_id, action, part),
        None if if_match is None else read_tags(IF_MATCH, if_match),
        None if if_none_match is None else read_tags(IF_NONE_MATCH, if_none_match),
        headers.get(CONDITION),
        envelope.fields,
    )


def _value(raw: Raw | msgspec.UnsetType, thing_id: str, action: str, part: Resource) -> Any:
    if raw is UNSET:
        raise json_field_missing("/value")
    value = read_value(raw)
    if action == "merge":
        _check_patch(part, value, thing_id)
        return value
    if part.kind == "thing":
        return resources.thing_content(value, thing_id)
    resources.check(part, value)
    return value


def _check_patch(part: Resource, patch: Any, thing_id: str) -> None:
    """Refuse what no patch may do; the rest is judged by what comes out."""
    if part.kind == "policyId" and patch is None:
        raise policy_id_not_deletable()
    if part.kind != "thing":
        return
    if not isinstance(patch, dict) or not patch:
        raise merge_invalid("The patch of a whole thing must be a JSON object with at least one member.")
    if patch.get("policyId", thing_id) is None:
        raise policy_id_not_deletable()
    if patch.get("thingId", thing_id) is None:
        raise id_not_deletable()
    if patch.get("thingId", thing_id) != thing_id:
        raise id_not_settable()
