"""Queries over many things: by their ids, by an RQL filter, or their count.

They arrive as ``_/_/things/twin/commands/retrieve``: path ``/`` with the value ``{"thingIds": […]}`` as in Ditto, and
``/search/things`` and ``/search/things/count``, the paths of Ditto's HTTP API, with the value ``{"filter"?,
"namespaces"?, "options"?, "fields"?, "only"?, "after"?, "all"?}``. ``only`` are patterns of ids, the access of the
requester: it belongs to no cursor. ``after`` is the id of the thing behind which the page begins. ``all`` is for those
who want all pages: each is as large as an answer may be. Source of the rules: Eclipse Ditto, ``ThingSearchRoute``,
and ``search_page``.

In the order of ids a page ends its search, so all pages together look at each thing once; any other order is that of
all things found, for each page anew. The effort of a search on each thing is limited.
"""

from __future__ import annotations

from datetime import datetime, timezone
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import UNSET

from ackstream.jobs.twin.search_page import (
    SearchCursor,
    SearchPage,
    SearchQuery,
    is_before,
    place,
    place_of,
    rank,
    read_options,
    resume,
)
from ackstream.protocol.ditto.envelopes import decoded, json_text, raw
from ackstream.protocol.ditto.errors import (
    answer_too_large,
    json_field_missing,
    json_invalid,
    json_type_invalid,
    unknown_path,
)
from ackstream.protocol.ditto.twin.things import select_of_thing
from ackstream.protocol.rql.evaluation import checked, matches
from ackstream.protocol.rql.parser import parse
from ackstream.protocol.rql.patterns import MAX_STEPS, Effort, matches_any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ackstream.jobs.twin.changes import Thing
    from ackstream.protocol.ditto.envelopes import Envelope


SEARCH, COUNT = "/search/things", "/search/things/count"
MAX_IDS = 5_000
STEPS_PER_THING = 20
"""The effort of a search per thing: about as long as reading the thing takes, for any filter and order."""

_READ = 10
"""How many times the size of an answer is read for it."""


class _Scope(NamedTuple):
    """What a search looks at: all things, at a time, and the effort that is left for them."""

    things: Mapping[str, Thing]
    now: int
    effort: Effort


def concerns_many(envelope: Envelope) -> bool:
    """Return whether a command addresses no thing in particular."""
    return envelope.topic.namespace == "_" and envelope.topic.entity == "_"


def answer(envelope: Envelope, things: Mapping[str, Thing], now: int, max_bytes: int) -> Any:
    """Answer a query over many things.

    :param things: all things by id, including deleted ones
    :param now: the value of ``time:now``, epoch milliseconds
    :param max_bytes: the limit of the answer; a page that would be larger ends earlier
    :raises DittoError: 400 for an invalid filter, option, path or value, or a search that takes too much effort; 413
    """
    if envelope.topic.action != "retrieve" or envelope.path not in ("/", SEARCH, COUNT):
        raise unknown_path(envelope.path)
    if envelope.path == "/":
        return _by_ids(envelope, things, max_bytes)
    query = _read_query(envelope)
    scope = _Scope(things, now, Effort(max(MAX_STEPS, STEPS_PER_THING * len(things))))
    if envelope.path == COUNT:
        return sum(1 for _ in _filtered(query, things, scope))
    page = read_options(query.options)
    if page.cursor is not None:
        resume(query, page, SearchCursor.read(page.cursor))
    found = (_by_id if page.by_id else _by_keys)(query, page, scope)
    return _shown_page(islice(found, page.offset, None), query, page, max_bytes)


def _read_query(envelope: Envelope) -> SearchQuery:
    if envelope.value is UNSET:
        return SearchQuery()
    try:
        return msgspec.json.decode(envelope.value, type=SearchQuery)
    except msgspec.ValidationError as error:
        raise json_invalid(f"The value of the search is not valid: {error}.") from error


def _by_ids(envelope: Envelope, things: Mapping[str, Thing], max_bytes: int) -> list[msgspec.Raw]:
    value = decoded(envelope.value)
    ids = value.get("thingIds") if isinstance(value, dict) else None
    if ids is None:
        raise json_field_missing("/value/thingIds")
    if not isinstance(ids, list) or not all(isinstance(identity, str) for identity in ids):
        raise json_type_invalid(json_text(ids), "/value/thingIds", "JsonArray")
    if len(ids) > MAX_IDS:
        raise json_invalid(f"More than {MAX_IDS} things are asked for at once.")
    found = [things[identity] for identity in dict.fromkeys(ids) if identity in things]
    items, size, read = [], 0, 0
    for thing in found:
        if thing.content is not None:
            read += len(thing.content)
            items.append(_shown(thing.whole(), envelope.fields))
            size += len(memoryview(items[-1]))
            if size > max_bytes or read > _READ * max_bytes:
                raise answer_too_large(max_bytes / 1024)
    return items


def _by_id(query: SearchQuery, page: SearchPage, scope: _Scope) -> Iterator[dict[str, Any]]:
    """Find things in the order of their ids, from the position of a page; each is looked at as it is needed."""
    begin = query.after if page.position is None else page.position[-1]
    if begin is None:
        ids = list(scope.things)
    elif page.descending:
        ids = [identity for identity in scope.things if identity < begin]  # type: ignore[operator]  # texts
    else:
        ids = [identity for identity in scope.things if identity > begin]  # type: ignore[operator]  # texts
    ids.sort(reverse=page.descending)
    return _filtered(query, ids, scope)


def _by_keys(query: SearchQuery, page: SearchPage, scope: _Scope) -> Iterator[dict[str, Any]]:
    """Find all things, and put them in the order of a page, from its position."""
    placed = [(place(thing, page, scope.effort), thing) for thing in _filtered(query, scope.things, scope)]
    if page.position is None and query.after is not None:
        page.position = place_of(query.after, (position for position, _ in placed))
    if page.position is not None:
        placed = [entry for entry in placed if is_before(page.position, entry[0], page)]
    # always the same order: the pages of one search fit together
    placed.sort(key=lambda entry: str(entry[0][-1]))
    for index in reversed(range(len(page.sort))):
        placed.sort(key=lambda entry: rank(entry[0][index]), reverse=page.sort[index][1])
    return (thing for _, thing in placed)


def _filtered(query: SearchQuery, ids: Iterable[str], scope: _Scope) -> Iterator[dict[str, Any]]:
    """Find the things that a query matches, in the order of the ids; DittoError 400, at once, for an invalid filter."""
    tree = None if query.filter is None else checked(parse(query.filter))
    time = datetime.fromtimestamp(scope.now / 1000, timezone.utc)
    namespaces, only = None if query.namespaces is None else frozenset(query.namespaces), query.only
    wanted = (id_ for id_ in ids if namespaces is None or id_.partition(":")[0] in namespaces)
    allowed = wanted if only is None else (id_ for id_ in wanted if matches_any(only, id_))
    known = (scope.things[identity] for identity in allowed)
    wholes = (thing.whole() for thing in known if thing.content is not None)
    return (whole for whole in wholes if tree is None or matches(tree, whole, time=time, effort=scope.effort))


def _shown_page(
    found: Iterable[dict[str, Any]], query: SearchQuery, page: SearchPage, max_bytes: int
) -> dict[str, Any]:
    """Return as many of the things found as fit, and where the rest begins if there is one."""
    items: list[msgspec.Raw] = []
    last: dict[str, Any] | None = None
    size, most = 0, None if query.all else page.size
    for thing in found:
        item = _shown(thing, query.fields)
        size += len(memoryview(item))
        if len(items) == most or (items and size > max_bytes):
            break
        items.append(item)
        last = thing
    else:
        last = None
    result: dict[str, Any] = {"items": items}
    if last is None:
        return result
    if page.offset is not None:
        result["nextPageOffset"] = page.offset + len(items)
    else:
        position = place(last, page)
        result["cursor"] = SearchCursor(query.filter, query.namespaces, page.sort_text, position).write()
    return result


def _shown(whole: dict[str, Any], fields: str | None) -> msgspec.Raw:
    if fields is not None:
        return raw(select_of_thing(whole, fields))
    return raw({name: value for name, value in whole.items() if not name.startswith("_")})
