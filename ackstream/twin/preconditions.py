"""Preconditions of a command: entity tags and a condition on the thing.

Source of the rules: Eclipse Ditto, ``ConditionalHeadersValidator``, ``EntityTag``, ``ThingConditionValidator``.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Any

from ackstream.protocol.errors import header_type_invalid, thing_precondition_failed
from ackstream.protocol.rql import matches
from ackstream.twin.errors import condition_failed, not_modified

IF_MATCH, IF_NONE_MATCH, CONDITION = "if-match", "if-none-match", "condition"

_TAG = re.compile(r'\s*(\*|(?:W/)?"[^"*]*")\s*(?:,|$)')


def read_tags(header: str, text: str) -> tuple[str, ...]:
    """Read the entity tags of a header: ``*``, or ``"rev:1"``, ``W/"rev:1"``, several with commas between.

    :raises DittoError: 400 ``header.invalid``
    """
    tags: list[str] = []
    position = 0
    while position < len(text) or not tags:
        found = _TAG.match(text, position)
        if found is None:
            raise header_type_invalid(header, text, "entity-tag")
        tags.append(found[1])
        position = found.end()
    return tuple(tags)


def check_tags(
    if_match: tuple[str, ...] | None, if_none_match: tuple[str, ...] | None, tag: str | None, *, action: str
) -> None:
    """Compare the entity tags of a command with that of what it is about.

    :param tag: the entity tag; ``None`` where nothing is there
    :param action: of the command; where nothing is there, a query or a delete has another error to tell
    :raises DittoError: 412 ``things:precondition.failed``; for a query 304 ``things:precondition.notmodified``
    """
    if tag is None and action in ("retrieve", "delete"):
        return
    if if_match is not None and (tag is None or not _any(if_match, tag)):
        raise thing_precondition_failed(IF_MATCH, ",".join(if_match), tag or "null")
    if if_none_match is not None and tag is not None and _any(if_none_match, tag):
        expected = ",".join(if_none_match)
        raise (
            not_modified(expected, tag)
            if action == "retrieve"
            else thing_precondition_failed(IF_NONE_MATCH, expected, tag)
        )


def check_condition(condition: str, thing: dict[str, Any], now: int) -> None:
    """Check an RQL condition on a thing.

    :param now: what ``time:now`` means, epoch milliseconds
    :raises DittoError: 412 ``things:condition.failed``; 400 ``rql.expression.invalid``
    """
    if not matches(condition, thing, time=datetime.fromtimestamp(now / 1000, timezone.utc)):
        raise condition_failed()


def _any(tags: tuple[str, ...], tag: str) -> bool:
    # all our tags are strong: a weak one of the requester fits none
    return "*" in tags or tag in tags
