"""Queries over many things: by their ids, by an RQL filter, or their count.

They arrive as ``_/_/things/twin/commands/retrieve``: path ``/`` with the value ``{"thingIds": […]}`` as in Ditto, and
``/search/things`` and ``/search/things/count``, the paths of Ditto's HTTP API, with the value ``{"filter"?,
"namespaces"?, "options"?, "fields"?}``. Source of the rules: Eclipse Ditto, ``ThingSearchRoute``, ``RqlOptionParser``;
``ImmutableJsonFieldSelectorFactory`` and ``Thing#toJson`` for field selectors.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone
from functools import cmp_to_key, lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from ackstream.protocol import json
from ackstream.protocol.ditto.envelopes import json_text, raw
from ackstream.protocol.ditto.errors import json_field_missing, json_invalid, json_type_invalid
from ackstream.protocol.ditto.thing_errors import answer_too_large, option_invalid, unknown_path
from ackstream.protocol.errors import BAD_REQUEST, DittoError, shown
from ackstream.protocol.rql.evaluation import SignalFact, checked, field_of, find, matches
from ackstream.protocol.rql.parser import MAX_DEPTH, parse
from ackstream.protocol.rql.values import compare, scalars

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ackstream.jobs.twin.changes import Thing
    from ackstream.protocol.ditto.envelopes import Envelope


SEARCH, COUNT = "/search/things", "/search/things/count"
PAGE, LARGEST_PAGE = 25, 200
WILDCARD = "*"
"""Any feature in a field selector: ``features/*/properties``."""

_OPTION = re.compile(r"(sort|size|limit|cursor)\(([^()]*)\)")
_CURSOR = re.compile(r"[0-9]{1,9}")
_SELECTED = re.compile(r"([^(),]*)([(),]|$)")


class _SearchQuery(msgspec.Struct):
    filter: str | None = None
    namespaces: list[str] | None = None
    options: list[str] = []
    fields: str | None = None


class _Page(msgspec.Struct):
    """The requested page: sort keys (field, descending), size, and offset of its first thing."""

    sort: tuple[tuple[json.Keys, bool], ...] = ()
    size: int = PAGE
    offset: int = 0


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
    found = _filtered(query, things, now)
    if envelope.path == COUNT:
        return len(found)
    return _page(found, _read_options(query.options), query.fields, max_bytes)


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
                page.sort = tuple(map(_sort_key, arguments))
            case "size", [size]:
                page.size = _number(size, option, LARGEST_PAGE)
            case "limit", [offset, size]:
                page.offset, page.size = _number(offset, option), _number(size, option, LARGEST_PAGE)
            case "cursor", [cursor]:
                page.offset = _number(cursor, option)
            case _:
                raise option_invalid(f"The option <{option}> has the wrong arguments.")
    return page


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


def _filtered(query: _SearchQuery, things: Mapping[str, Thing], now: int) -> list[dict[str, Any]]:
    tree = None if query.filter is None else checked(parse(query.filter))
    time = datetime.fromtimestamp(now / 1000, timezone.utc)
    namespaces = None if query.namespaces is None else frozenset(query.namespaces)
    found = []
    for identity, thing in things.items():
        if thing.content is None or (namespaces is not None and identity.partition(":")[0] not in namespaces):
            continue
        whole = thing.whole()
        if tree is None or matches(tree, whole, time=time):
            found.append(whole)
    return found


def _page(found: list[dict[str, Any]], page: _Page, fields: str | None, max_bytes: int) -> dict[str, Any]:
    # always the same order: the pages of one search fit together
    found.sort(key=lambda thing: thing["thingId"])
    for field, descending in reversed(page.sort):
        found.sort(key=cmp_to_key(_comparison(field)), reverse=descending)
    items: list[msgspec.Raw] = []
    size = 0
    for thing in found[page.offset : page.offset + page.size]:
        item = _shown(thing, fields)
        size += len(memoryview(item))
        if items and size > max_bytes:
            break
        items.append(item)
    result: dict[str, Any] = {"items": items}
    end = page.offset + len(items)
    if end < len(found) and items:
        result["cursor"] = str(end)
    return result


def _shown(whole: dict[str, Any], fields: str | None) -> msgspec.Raw:
    if fields is not None:
        return raw(select(whole, fields))
    return raw({name: value for name, value in whole.items() if not name.startswith("_")})


def _sort_key(argument: str) -> tuple[json.Keys, bool]:
    field = field_of(argument[1:], whole=False) if argument[:1] in ("+", "-") else None
    if field is None or isinstance(field, SignalFact):
        raise option_invalid(f"<{argument}> is not a sort key: write + or - and a field of the thing.")
    return field, argument[0] == "-"


def _comparison(field: json.Keys) -> Callable[[dict[str, Any], dict[str, Any]], int]:
    """Return a comparison of things by a field, as in RQL; things without the field come first."""

    def sign(left: dict[str, Any], right: dict[str, Any]) -> int:
        one, other = (next(scalars(find(field, thing).values), None) for thing in (left, right))
        if one is None or other is None:
            return (one is not None) - (other is not None)
        return compare(one, other)

    return sign


def _number(text: str, option: str, maximum: int | None = None) -> int:
    if _CURSOR.fullmatch(text) is None:
        raise option_invalid(f"The option <{option}> has <{text}> instead of a number.")
    if maximum is not None and int(text) > maximum:
        raise option_invalid(f"The option <{option}> asks for more than {maximum} things.")
    return int(text)


def select(value: Any, selector: str) -> Any:
    """Reduce a JSON object to the fields of a selector, in the object's own order; return other values unchanged.

    :param selector: such as ``thingId,attributes(model,location/city),features/*/properties``
    :raises DittoError: 400 ``json.fieldselector.invalid``, ``json.pointer.invalid``
    """
    paths = _parse_selector(selector)
    return _select(value, paths) if isinstance(value, dict) else value


@lru_cache(maxsize=512)
def _parse_selector(selector: str) -> tuple[json.Keys, ...]:
    if not selector.strip() or selector.count("(") != selector.count(")") or selector.count("(") > MAX_DEPTH:
        raise _invalid(selector)
    paths: list[json.Keys] = []
    outer: list[json.Keys] = [()]
    closed = False
    for text, end in _SELECTED.findall(selector):
        # nothing but the next field follows a closing parenthesis
        if closed and (text.strip() or end == "("):
            raise _invalid(selector)
        if end == "(":
            outer.append(outer[-1] + json.parse_pointer(text.lstrip()))
        elif keys := json.parse_pointer(text.strip()):
            paths.append(outer[-1] + keys)
        closed = end == ")"
        if closed:
            outer.pop()
        if not outer:
            raise _invalid(selector)
    return tuple(dict.fromkeys(paths))


def _select(value: dict[str, Any], paths: tuple[json.Keys, ...], *, depth: int = 0) -> dict[str, Any]:
    result = {}
    for key, entry in value.items():
        deeper = [path[1:] for path in paths if path[0] == key or (path[0] == WILDCARD and depth == 1)]
        if () in deeper:
            result[key] = entry
        elif isinstance(entry, dict) and any(_leads(entry, path) for path in deeper):
            # a path that leads nowhere creates no empty objects
            result[key] = _select(entry, tuple(deeper), depth=depth + 1)
    return result


def _leads(value: Any, path: json.Keys) -> bool:
    if WILDCARD in path[:1] and isinstance(value, dict):
        return any(_leads(entry, path[1:]) for entry in value.values())
    return json.find(value, path[:1]) is not UNSET and (len(path) == 1 or _leads(value[path[0]], path[1:]))


def _invalid(selector: str) -> DittoError:
    return DittoError(
        BAD_REQUEST,
        "json.fieldselector.invalid",
        f"The field selector <{shown(selector)}> is invalid!",
        "Check, for example, if the amount of opening parentheses '(' matches the amount of closing ones ')'.",
    )
