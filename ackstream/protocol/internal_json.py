"""Ditto's internal JSON of acknowledgements: what its services hand each other, and what people find in its logs.

``{type, label, entityId, entityType, status, payload?, headers}``, and for an aggregate
``{type, entityId, entityType, statusCode, acknowledgements: {label: …}}``. Source of the rules: Eclipse Ditto,
``AcknowledgementJsonParser``, ``AcknowledgementsJsonParser``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ackstream.protocol.acknowledgements import Acknowledgement, combined_status, read_entry
from ackstream.protocol.envelopes import STATUS_MAX, STATUS_MIN, json_text, raw
from ackstream.protocol.errors import json_field_missing, json_invalid, json_type_invalid

if TYPE_CHECKING:
    from collections.abc import Sequence

ACK_TYPE = "acknowledgement"
ACKS_TYPE = "acknowledgements"
_TITLES = {str: "String", int: "Integer", dict: "JsonObject"}


def ack_to_json(ack: Acknowledgement, thing_id: str) -> dict[str, Any]:
    """Return the internal JSON of an acknowledgement."""
    body = {"type": ACK_TYPE, "label": ack.label, "entityId": thing_id, "entityType": "thing", "status": ack.status}
    if ack.payload is not msgspec.UNSET:
        body["payload"] = msgspec.json.decode(ack.payload)
    return body | {"headers": ack.headers}


def ack_from_json(body: dict[str, Any]) -> Acknowledgement:
    """Read the internal JSON of an acknowledgement.

    :raises DittoError: 400 ``json.field.missing`` or ``json.invalid``
    """
    label: str = _field(body, "label", str)
    _field(body, "entityId", str)
    _field(body, "entityType", str)
    return read_entry(label, {name: raw(value) for name, value in body.items()})


def acks_to_json(entries: Sequence[Acknowledgement], thing_id: str) -> dict[str, Any]:
    """Return the internal JSON of an aggregate; of a label that occurs twice the last entry stays."""
    return {
        "type": ACKS_TYPE,
        "entityId": thing_id,
        "entityType": "thing",
        "statusCode": combined_status([ack.status for ack in entries]),
        "acknowledgements": {ack.label: ack_to_json(ack, thing_id) for ack in entries},
    }


def acks_from_json(body: dict[str, Any]) -> list[Acknowledgement]:
    """Read the internal JSON of an aggregate; its status must be the one its entries give.

    :raises DittoError: 400 ``json.field.missing`` or ``json.invalid``
    """
    entity_id = _field(body, "entityId", str)
    _field(body, "entityType", str)
    found = _field(body, "acknowledgements", dict)
    status: int = _field(body, "statusCode", int)
    if not STATUS_MIN <= status <= STATUS_MAX:
        raise json_invalid(f"Provided HTTP status code <{status}> is not within the range of 100 to 599.")
    entries = []
    for value in found.values():
        if not isinstance(value, dict):
            raise json_invalid(f"<{json_text(value)}> is not an Acknowledgement JSON object representation!")
        ack = ack_from_json(value)
        if value["entityId"] != entity_id:
            raise json_invalid(
                f"The entity ID <{value['entityId']}> of parsed acknowledgement <{ack.label}> differs from the"
                f" expected <{entity_id}>!"
            )
        entries.append(ack)
    expected = combined_status([ack.status for ack in entries])
    if status != expected:
        raise json_invalid(f"The read status code <{status}> differs from the expected <{expected}>!")
    return entries


def _field(body: dict[str, Any], name: str, kind: type) -> Any:
    value = body.get(name)
    if value is None:
        raise json_field_missing(f"/{name}")
    if not isinstance(value, kind) or isinstance(value, bool):
        raise json_type_invalid(json_text(value), f"/{name}", _TITLES[kind])
    return value
