"""Queries over many things: by their ids, by an RQL filter, or their count.

They arrive as ``_/_/things/twin/commands/retrieve``: path ``/`` with the value ``{"thingIds": […]}`` as in Ditto, and
``/search/things`` and ``/search/things/count``, the paths of Ditto's HTTP API, with the value ``{"filter"?,
"namespaces"?, "options"?, "fields"?, "only"?, "after"?, "all"?}``. ``only`` is a second filter, the access of the
requester: it belongs to no cursor. ``after`` is the id of the thing behind which the page begins. ``all`` is for those
who want all pages: each is as large as an answer may be. Source of the rules: Eclipse Ditto, ``ThingSearchRoute``,
``RqlOptionParser``, ``ThingsSearchCursor``.

In the order of ids a page ends its search, so all pages together look at each thing once; any other order is that of
all things found, for each page anew.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import datetime, timezone
from functools import cmp_to_key
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from ackstream.protocol import json
from ackstream.protocol.ditto.envelopes import json_text, raw
from ackstream.protocol.ditto.errors import json_field_missing, json_invalid, json_type_invalid
from ackstream.protocol.ditto.field_selectors import select_of_thing
from ackstream.protocol.ditto.thing_errors import answer_too_large, cursor_invalid, option_invalid, unknown_path
from ackstream.protocol.rql.evaluation import SignalFact, checked, field_of, find, matches
from ackstream.protocol.rql.parser import parse
from ackstream.protocol.rql.values import compare, scalars

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ackstream.jobs.twin.changes import Thing
    from ackstream.protocol.ditto.envelopes import Envelope


SEARCH, COUNT = "/search/things", "/search/things/count"
PAGE, LARGEST_PAGE = 25, 200
_OPTION = re.compile(r"(sort|size|limit|cursor)\(([^()]*)\)")
_NUMBER = re.compile(r"[0-9]{1,9}")
_ID: json.Keys = ("thingId",)
_DIFFERS = "The {} must not differ from the original query of the cursor."

Position = list[str | int | float | bool | None]
"""The place of a thing in the order of a search: its value of each sort key, and its id."""


class _SearchQuery(msgspec.Struct):
    filter: str | None = None
    namespaces: list[str] | None = None
    options: list[str] = []
    fields: str | None = None
    only: str | None = None
    after: str | None = None
    all: bool = False


class _Cursor(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The search of a page, which continues in the next one, and the position of the page's last thing."""

    filter: str | None
    namespaces: list[str] | None
    sort: str
    position: Position

    def write(self) -> str:
        """Return the text of the cursor."""
        return urlsafe_b64encode(msgspec.json.encode(self)).decode().rstrip("=")

    @classmethod
    def read(cls, text: str) -> _Cursor:
        """Read a cursor.

        :raises DittoError: 400
        """
        try:
            return msgspec.json.decode(urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=cls)
        except (ValueError, msgspec.MsgspecError) as error:
            raise cursor_invalid("It is not the cursor of a search.") from error


class _Page(msgspec.Struct):
    """The requested page: the sort keys and what they were read from, the size, and where it begins."""

    sort: tuple[tuple[json.Keys, bool], ...] = ()
    sort_text: str = ""
    size: int = PAGE
    offset: int | None = None
    cursor: str | None = None
    position: Position | None = None

    @property
    def by_id(self) -> bool:
        """Whether ids alone decide the order."""
        return not self.sort or self.sort[0][0] == _ID

    @property
    def descending(self) -> bool:
        """Whether the order of ids is the reverse one."""
        return bool(self.sort) and self.sort[0][1]


def concerns_many(envelope: Envelope) -> bool:
    """Return whether a command addresses no thing in particular."""
    return envelope.topic.namespace == "_" and envelope.topic.entity == "_"


def answer(envelope: Envelope, things: Mapping[str, Thing], now: int, max_bytes: int) -> Any:
    """Answer a query over many things.

    :param things: all things by id, including deleted ones
    :param now: the value of ``time:now``, epoch milliseconds
    :param max_bytes: the limit of the answer; a page that would be larger ends earlier
    :raises DittoError: 400 for an invalid filter, option, path or value; 413
    """
    if envelope.topic.action != "retrieve" or envelope.path not in ("/", SEARCH, COUNT):
        raise unknown_path(envelope.path)
    if envelope.path == "/":
        return _by_ids(envelope, things, max_bytes)
    query = _read_query(envelope)
    if envelope.path == COUNT:
        return sum(1 for _ in _filtered(query, things, things, now))
    page = _read_options(query.options)
    if page.cursor is not None:
        _continue(query, page, _Cursor.read(page.cursor))
    found = (_by_id if page.by_id else _by_keys)(query, page, things, now)
    return _shown_page(islice(found, page.offset, None), query, page, max_bytes)


def _read_options(options: Iterable[str]) -> _Page:
    """Read the options of a search: ``sort(+thingId,-attributes/x)``, ``size(n)``, ``cursor(c)``, ``limit(from,n)``.

    :raises DittoError: 400 ``thing-search:search.option.invalid``, ``rql.expression.invalid``
    """
    page = _Page()
    for option in options:
        found = _OPTION.fullmatch(option.strip())
        if found is None:
            raise option_invalid(f"The option <{option}> is not one of sort(…), size(…), cursor(…), limit(…).")
        name, arguments = found[1], [argument.strip() for argument in found[2].split(",")]
        match name, arguments:
            case "sort", _:
                page.sort, page.sort_text = tuple(map(_sort_key, arguments)), ",".join(arguments)
            case "size", [size]:
                page.size = _number(size, option, LARGEST_PAGE)
            case "limit", [offset, size]:
                page.offset, page.size = _number(offset, option), _number(size, option, LARGEST_PAGE)
            case "cursor", [_] if page.cursor is not None:
                raise cursor_invalid("There may not be more than 1 'cursor' option.")
            case "cursor", [cursor]:
                page.cursor = cursor
            case _:
                raise option_invalid(f"The option <{option}> has the wrong arguments.")
    return page


def _continue(query: _SearchQuery, page: _Page, cursor: _Cursor) -> None:
    """Complete a query with the search of its cursor, from which it must not differ.

    :raises DittoError: 400 ``thing-search:search.option.invalid``
    """
    if query.filter not in (None, cursor.filter):
        raise cursor_invalid(_DIFFERS.format("parameter 'filter'"))
    if query.namespaces is not None and sorted(query.namespaces) != sorted(cursor.namespaces or ()):
        raise cursor_invalid(_DIFFERS.format("parameter 'namespaces'"))
    if page.sort_text not in ("", cursor.sort):
        raise cursor_invalid(_DIFFERS.format("option 'sort'"))
    if page.offset is not None:
        raise cursor_invalid("The options 'cursor' and 'limit' must not be used together.")
    query.filter, query.namespaces = cursor.filter, cursor.namespaces
    page.sort_text = cursor.sort
    page.sort = tuple(map(_sort_key, cursor.sort.split(","))) if cursor.sort else ()
    page.position = cursor.position
    if len(page.position) != len(page.sort) + 1 or not isinstance(page.position[-1], str):
        raise cursor_invalid("It is not the cursor of a search.")


def _position_of(thing_id: str, found: Iterable[dict[str, Any]], page: _Page) -> Position:
    """Return the position of a thing that the search finds: where another one would be is not the requester's business.

    :raises DittoError: 400, it is not found
    """
    for thing in found:
        if thing["thingId"] == thing_id:
            return _position(thing, page)
    raise cursor_invalid(
        f"The thing <{thing_id}>, after which to continue, is not found any more. Start from the beginning."
    )


def _read_query(envelope: Envelope) -> _SearchQuery:
    if envelope.value is UNSET:
        return _SearchQuery()
    try:
        return msgspec.json.decode(envelope.value, type=_SearchQuery)
    except msgspec.ValidationError as error:
        raise json_invalid(f"The value of the search is not valid: {error}.") from error


def _by_ids(envelope: Envelope, things: Mapping[str, Thing], max_bytes: int) -> list[msgspec.Raw]:
    value = None if envelope.value is msgspec.UNSET else msgspec.json.decode(envelope.value)
    ids = value.get("thingIds") if isinstance(value, dict) else None
    if ids is None:
        raise json_field_missing("/value/thingIds")
    if not isinstance(ids, list) or not all(isinstance(identity, str) for identity in ids):
        raise json_type_invalid(json_text(ids), "/value/thingIds", "JsonArray")
    found = [things[identity] for identity in dict.fromkeys(ids) if identity in things]
    items, size = [], 0
    for thing in found:
        if thing.content is not None:
            items.append(_shown(thing.whole(), envelope.fields))
            size += len(memoryview(items[-1]))
            if size > max_bytes:
                raise answer_too_large(max_bytes / 1024)
    return items


def _by_id(query: _SearchQuery, page: _Page, things: Mapping[str, Thing], now: int) -> Iterator[dict[str, Any]]:
    """Find things in the order of their ids, from the position of a page; each is looked at as it is needed."""
    begin = query.after if page.position is None else page.position[-1]
    if begin is None:
        ids = list(things)
    elif page.descending:
        ids = [identity for identity in things if identity < begin]  # type: ignore[operator]  # texts
    else:
        ids = [identity for identity in things if identity > begin]  # type: ignore[operator]  # texts
    ids.sort(reverse=page.descending)
    return _filtered(query, ids, things, now)


def _by_keys(query: _SearchQuery, page: _Page, things: Mapping[str, Thing], now: int) -> Iterator[dict[str, Any]]:
    """Find all things, and put them in the order of a page, from its position."""
    found = list(_filtered(query, things, things, now))
    if page.position is None and query.after is not None:
        page.position = _position_of(query.after, found, page)
    order = cmp_to_key(_comparison(page))
    placed = [(order(_position(thing, page)), thing) for thing in found]
    if page.position is not None:
        before = order(page.position)
        placed = [entry for entry in placed if before < entry[0]]
    placed.sort(key=itemgetter(0))
    return (thing for _, thing in placed)


def _filtered(
    query: _SearchQuery, ids: Iterable[str], things: Mapping[str, Thing], now: int
) -> Iterator[dict[str, Any]]:
    """Find the things that a query matches, in the order of the ids.

    :raises DittoError: 400, at once, for an invalid filter
    """
    trees = [checked(parse(text)) for text in (query.filter, query.only) if text is not None]
    time = datetime.fromtimestamp(now / 1000, timezone.utc)
    namespaces = None if query.namespaces is None else frozenset(query.namespaces)
    wanted = (id_ for id_ in ids if namespaces is None or id_.partition(":")[0] in namespaces)
    known = (things[identity] for identity in wanted)
    wholes = (thing.whole() for thing in known if thing.content is not None)
    return (whole for whole in wholes if all(matches(tree, whole, time=time) for tree in trees))


def _shown_page(found: Iterable[dict[str, Any]], query: _SearchQuery, page: _Page, max_bytes: int) -> dict[str, Any]:
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
        position = _position(last, page)
        result["cursor"] = _Cursor(query.filter, query.namespaces, page.sort_text, position).write()
    return result


def _shown(whole: dict[str, Any], fields: str | None) -> msgspec.Raw:
    if fields is not None:
        return raw(select_of_thing(whole, fields))
    return raw({name: value for name, value in whole.items() if not name.startswith("_")})


def _sort_key(argument: str) -> tuple[json.Keys, bool]:
    field = field_of(argument[1:], whole=False) if argument[:1] in ("+", "-") else None
    if field is None or isinstance(field, SignalFact):
        raise option_invalid(f"<{argument}> is not a sort key: write + or - and a field of the thing.")
    return field, argument[0] == "-"


def _position(thing: dict[str, Any], page: _Page) -> Position:
    keys = (next(scalars(find(field, thing).values), None) for field, _ in page.sort)
    return [*keys, thing["thingId"]]


def _comparison(page: _Page) -> Callable[[Position, Position], int]:
    """Return a comparison of positions, by values as in RQL; things without a value come first, ids decide last."""
    signs = [-1 if descending else 1 for _, descending in page.sort]

    def compared(left: Position, right: Position) -> int:
        for sign, one, other in zip(signs, left, right, strict=False):
            missing = one is None or other is None
            order = (one is not None) - (other is not None) if missing else compare(one, other)  # type: ignore[arg-type]
            if order:
                return sign * order
        # always the same order: the pages of one search fit together
        return (left[-1] > right[-1]) - (left[-1] < right[-1])  # type: ignore[operator]  # texts

    return compared


def _number(text: str, option: str, maximum: int | None = None) -> int:
    if _NUMBER.fullmatch(text) is None:
        raise option_invalid(f"The option <{option}> has <{text}> instead of a number.")
    if maximum is not None and int(text) > maximum:
        raise option_invalid(f"The option <{option}> asks for more than {maximum} things.")
    return int(text)
