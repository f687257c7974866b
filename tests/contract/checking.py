"""Checks records against the document, as a reader of any language would: by its schemas alone."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from jsonschema import Draft7Validator

from ackstream.local import machine


class Contract:
    """The document of a system with the default settings."""

    def __init__(self) -> None:
        self._validators: dict[int, Draft7Validator] = {}

    @cached_property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(machine.installed("docs/asyncapi.json").read_text("utf-8"))
        return found

    def fits(self, topic: str, headers: Iterable[tuple[str, bytes]], value: bytes | None) -> list[str]:
        """Return the kinds of records of a topic that a record is one of."""
        messages = self.document["channels"][topic]["messages"]
        return [name for name, message in messages.items() if self._fits(message, headers, value)]

    def errors(self, schema: dict[str, Any], value: Any) -> list[str]:
        """Return what is wrong with a value."""
        return [error.message for error in self._validator(schema).iter_errors(value)]

    def _fits(self, message: dict[str, Any], headers: Iterable[tuple[str, bytes]], value: bytes | None) -> bool:
        properties = message["headers"]["properties"]
        shown = {name: _text(properties.get(name, {}), content) for name, content in headers}
        try:
            payload = _payload(message["contentType"], value)
        except ValueError:
            return False
        return not self.errors(message["headers"], shown) and not self.errors(message["payload"], payload)

    def _validator(self, schema: dict[str, Any]) -> Draft7Validator:
        # of a part of the document, which stays as it is
        known = self._validators.get(id(schema))
        if known is None:
            whole = {"allOf": [schema], "components": self.document["components"]}
            known = self._validators[id(schema)] = Draft7Validator(whole)
        return known


def _text(schema: dict[str, Any], content: bytes) -> str:
    # a message says nothing of a header that is not its own
    errors = "strict" if schema else "replace"
    return base64.b64encode(content).decode() if "contentEncoding" in schema else content.decode(errors=errors)


def _payload(content_type: str, value: bytes | None) -> Any:
    if content_type == "application/octet-stream":
        return None if value is None else base64.b64encode(value).decode()
    if not value:
        return "" if value == b"" and content_type == "text/plain" else None
    if content_type == "text/plain":
        text = value.decode()
        return int(text) if len(text) > 1 and text.isdecimal() else text
    return json.loads(value)
