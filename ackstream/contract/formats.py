"""What a record is made of: the terms in which the contract of each topic is written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

Json: TypeAlias = dict[str, Any]

JSON = "application/json"
DITTO = "application/vnd.eclipse.ditto+json"
BYTES = "application/octet-stream"
TEXT = "text/plain"


@dataclass(frozen=True)
class Example:
    """A record as it is written.

    :param about: what it shows
    :param value: a record of ``protocol/``, or a JSON value; ``None`` if the record has no value
    :param headers: its record headers, as text
    """

    about: str
    value: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def payload(self) -> Any:
        """The value as a JSON reader sees it."""
        return msgspec.json.decode(msgspec.json.encode(self.value))


@dataclass(frozen=True, kw_only=True)
class RecordFormat:
    """One kind of record of a topic.

    :param name: unique in its topic
    :param about: what it says, and who acts on it
    :param value: a type of ``protocol/``; a JSON Schema; ``None``: the record has no value
    :param schema: the name of the schema in the document, where ``value`` is no type
    :param fixed: record headers whose values tell it from the other kinds of its topic
    :param required: further record headers that it always has
    :param optional: record headers that it may have
    :param absent: a record header that it never has, which tells other kinds from it
    """

    name: str
    about: str
    value: Any = None
    schema: str = ""
    content_type: str = JSON
    fixed: Mapping[str, str] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    absent: str = ""
    examples: tuple[Example, ...] = ()

    @property
    def component(self) -> str:
        """The name of its value's schema."""
        return self.schema or self.value.__name__


@dataclass(frozen=True)
class TopicFormat:
    """What a topic carries.

    :param about: one sentence
    :param key: what the key of its records is
    :param formats: the kinds of records that it has; each fits exactly one of them
    """

    about: str
    key: str
    formats: tuple[RecordFormat, ...]
