"""Queries over many things: by their ids, by an RQL filter, or their count.

They arrive as ``_/_/things/twin/commands/retrieve``: path ``/`` with the value ``{"thingIds": […]}`` as in Ditto, and
``/search/things`` and ``/search/things/count``, the paths of Ditto's HTTP API, with the value ``{"filter"?,
"namespaces"?, "options"?, "fields"?, "only"?, "after"?, "all"?}``. ``only`` are patterns of ids, the access of the
requester: it belongs to no cursor. The page begins after the thing ``after``; with ``all`` it is as large as an answer
may be. Source of the rules: Eclipse Ditto, ``ThingSearchRoute``, ``RqlOptionParser``, ``ThingsSearchCursor``.

In the order of ids all pages together read each thing once; for any other order each page sorts all things found.
"""

from __future__ import annotations

import operator
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from itertools import islice
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import UNSET

from ackstream.jobs.twin.changes import Thing
from ackstream.protocol import errors, json
from ackstream.protocol.ditto.envelopes import Envelope, decoded, json_text, raw
from ackstream.protocol.ditto.twin.things import select_of_thing
from ackstream.protocol.rql.evaluation import SignalFact, checked, field_of, find, matches, scalars
from ackstream.protocol.rql.parser import parse
from ackstream.protocol.rql.patterns import CHARACTERS, MAX_STEPS, Effort, matches_any

SEARCH, COUNT = "/search/things", "/search/things/count"
MAX_IDS = 5_000
STEPS_PER_THING = 20
"""The effort of a search per thing: about as long as reading the thing takes, for any filter and order."""

_READ = 10
"""Multiple of an answer's size that is read for it."""


class _Scope(NamedTuple):
    """The scope of a search: all things, at a time, and the effort that is left for them."""

    things: Mapping[str, Thing]
    now: int
    effort: Effort


def answer(envelope: Envelope, things: Mapping[str, Thing], now: int, max_bytes: int) -> Any:
    """Answer a query over ``things``, all by id with the deleted ones; ``now``: epoch ms; larger pages end earlier."""
    # DittoError 400 for an invalid filter, option, path or value, or a search that takes too much effort; 413
    if envelope.topic.action != "retrieve" or envelope.path not in ("/", SEARCH, COUNT):
        raise errors.unknown_path(envelope.path)
    if envelope.path == "/":
        return _by_ids(envelope, things, max_bytes)
    try:
        query = SearchQuery() if envelope.value is UNSET else msgspec.json.decode(envelope.value, type=SearchQuery)
    except msgspec.ValidationError as error:
        raise errors.json_invalid(f"The value of the search is not valid: {error}.") from error
    scope = _Scope(things, now, Effort(max(MAX_STEPS, STEPS_PER_THING * len(things))))
    if envelope.path == COUNT:
        return sum(1 for _ in _filtered(query, things, scope))
    page = read_options(query.options)
    if page.cursor is not None:
        resume(query, page, SearchCursor.read(page.cursor))
    found = (_by_id if page.by_id else _by_keys)(query, page, scope)
    return _shown_page(islice(found, page.offset, None), query, page, max_bytes)


def _by_ids(envelope: Envelope, things: Mapping[str, Thing], max_bytes: int) -> list[msgspec.Raw]:
    value = decoded(envelope.value)
    ids = value.get("thingIds") if isinstance(value, dict) else None
    if ids is None:
        raise errors.json_field_missing("/value/thingIds")
    if not isinstance(ids, list) or not all(isinstance(identity, str) for identity in ids):
        raise errors.json_type_invalid(json_text(ids), "/value/thingIds", "JsonArray")
    if len(ids) > MAX_IDS:
        raise errors.json_invalid(f"More than {MAX_IDS} things are queried at once.")
    found = [things[identity] for identity in dict.fromkeys(ids) if identity in things]
    items, size, read = [], 0, 0
    for thing in found:
        if thing.content is not None:
            read += len(thing.content)
            items.append(_shown(thing.whole(), envelope.fields))
            size += len(memoryview(items[-1]))
            if size > max_bytes or read > _READ * max_bytes:
                raise errors.answer_too_large(max_bytes / 1024)
    return items


def _by_id(query: SearchQuery, page: SearchPage, scope: _Scope) -> Iterator[dict[str, Any]]:
    """Find things in the order of their ids, from the position of a page; each is read when needed."""
    begin = query.after if page.position is None else page.position[-1]
    is_behind = operator.lt if page.descending else operator.gt
    ids = [identity for identity in scope.things if begin is None or is_behind(identity, begin)]
    return _filtered(query, sorted(ids, reverse=page.descending), scope)


def _by_keys(query: SearchQuery, page: SearchPage, scope: _Scope) -> Iterator[dict[str, Any]]:
    """Find all things, and put them in the order of a page, from its position."""
    placed = [(place(thing, page, scope.effort), thing) for thing in _filtered(query, scope.things, scope)]
    if page.position is None and query.after is not None:
        page.position = next((position for position, _ in placed if position[-1] == query.after), None)
        if page.position is None:
            # the requester must not learn the place of other things
            raise errors.cursor_invalid(
                f"The thing <{query.after}>, after which to continue, is no longer found. Start from the beginning."
            )
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
    """Return the things found that fit, and the position of the rest if any."""
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
    if last is not None and page.offset is not None:
        result["nextPageOffset"] = page.offset + len(items)
    elif last is not None:
        position = place(last, page)
        result["cursor"] = SearchCursor(query.filter, query.namespaces, page.sort_text, position).write()
    return result


def _shown(whole: dict[str, Any], fields: str | None) -> msgspec.Raw:
    if fields is not None:
        return raw(select_of_thing(whole, fields))
    return raw({name: value for name, value in whole.items() if not name.startswith("_")})


PAGE, LARGEST_PAGE = 25, 200
MAX_SORT_KEYS = 10
_OPTION = re.compile(r"(sort|size|limit|cursor)\(([^()]*)\)")
_NUMBER = re.compile(r"[0-9]{1,9}")
_DIFFERS = "The {} must not differ from the original query of the cursor."

Position = list[str | int | float | bool | None]
"""The place of a thing in the order of a search: its value of each sort key, and its id."""
_Names = Annotated[list[str], msgspec.Meta(max_length=1_000)]


class SearchQuery(msgspec.Struct):
    """A search or a count, as requested."""

    filter: str | None = None
    namespaces: _Names | None = None
    options: Annotated[list[str], msgspec.Meta(max_length=10)] = []
    fields: str | None = None
    only: _Names | None = None
    after: str | None = None
    all: bool = False


class SearchCursor(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The search of a page, which continues in the next one, and the position of the page's last thing."""

    filter: str | None
    namespaces: _Names | None
    sort: str
    position: Position

    def write(self) -> str:
        """Return the text of the cursor."""
        return urlsafe_b64encode(msgspec.json.encode(self)).decode().rstrip("=")

    @classmethod
    def read(cls, text: str) -> SearchCursor:
        """Read a cursor. Raises DittoError 400."""
        try:
            return msgspec.json.decode(urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=cls)
        except (ValueError, msgspec.MsgspecError) as error:
            raise errors.cursor_invalid("It is not the cursor of a search.") from error


class SearchPage(msgspec.Struct):
    """The requested page: the sort keys and their source text, the size, and its beginning."""

    sort: tuple[tuple[json.Keys, bool], ...] = ()
    sort_text: str = ""
    size: int = PAGE
    offset: int | None = None
    cursor: str | None = None
    position: Position | None = None

    @property
    def by_id(self) -> bool:
        """Whether ids alone decide the order."""
        return not self.sort or self.sort[0][0] == ("thingId",)

    @property
    def descending(self) -> bool:
        """Whether ids are in reverse order."""
        return bool(self.sort) and self.sort[0][1]


def read_options(options: Iterable[str]) -> SearchPage:
    """Read options: ``sort(+thingId,-attributes/x)``, ``size(n)``, ``cursor(c)``, ``limit(from,n)``; DittoError 400."""
    page = SearchPage()
    for option in options:
        found = _OPTION.fullmatch(option.strip())
        if found is None:
            raise errors.option_invalid(f"The option <{option}> is not one of sort(…), size(…), cursor(…), limit(…).")
        name, arguments = found[1], [argument.strip() for argument in found[2].split(",")]
        match name, arguments:
            case "sort", _:
                page.sort, page.sort_text = _sort_keys(arguments), ",".join(arguments)
            case "size", [size]:
                page.size = _number(size, option, LARGEST_PAGE)
            case "limit", [offset, size]:
                page.offset, page.size = _number(offset, option), _number(size, option, LARGEST_PAGE)
            case "cursor", [_] if page.cursor is not None:
                raise errors.cursor_invalid("There may not be more than 1 'cursor' option.")
            case "cursor", [cursor]:
                page.cursor = cursor
            case _:
                raise errors.option_invalid(f"The option <{option}> has the wrong arguments.")
    return page


def resume(query: SearchQuery, page: SearchPage, cursor: SearchCursor) -> None:
    """Complete a query with the search of its cursor, from which it must not differ (DittoError 400)."""
    if query.filter not in (None, cursor.filter):
        raise errors.cursor_invalid(_DIFFERS.format("parameter 'filter'"))
    if query.namespaces is not None and sorted(query.namespaces) != sorted(cursor.namespaces or ()):
        raise errors.cursor_invalid(_DIFFERS.format("parameter 'namespaces'"))
    if page.sort_text not in ("", cursor.sort):
        raise errors.cursor_invalid(_DIFFERS.format("option 'sort'"))
    if page.offset is not None:
        raise errors.cursor_invalid("The options 'cursor' and 'limit' must not be used together.")
    query.filter, query.namespaces = cursor.filter, cursor.namespaces
    page.sort_text = cursor.sort
    page.sort = _sort_keys(cursor.sort.split(",")) if cursor.sort else ()
    page.position = cursor.position
    if len(page.position) != len(page.sort) + 1 or not isinstance(page.position[-1], str):
        raise errors.cursor_invalid("It is not the cursor of a search.")


def _sort_keys(arguments: list[str]) -> tuple[tuple[json.Keys, bool], ...]:
    if len(arguments) > MAX_SORT_KEYS:
        raise errors.option_invalid(f"The option sort(…) has more than {MAX_SORT_KEYS} keys.")
    keys = []
    for argument in arguments:
        field = field_of(argument[1:], whole=False) if argument[:1] in ("+", "-") else None
        if field is None or isinstance(field, SignalFact):
            raise errors.option_invalid(f"<{argument}> is not a sort key: write + or - and a field of the thing.")
        keys.append((field, argument[0] == "-"))
    return tuple(keys)


def place(thing: dict[str, Any], page: SearchPage, effort: Effort | None = None) -> Position:
    """Return the place of a thing in the order of a page. Raises DittoError as ``Effort.spend`` does."""
    keys = [next(scalars(find(field, thing, effort).values), None) for field, _ in page.sort]
    if effort is not None:
        effort.spend(sum(1 + len(key) // CHARACTERS if isinstance(key, str) else 1 for key in keys))
    return [*keys, thing["thingId"]]


def is_before(one: Position, other: Position, page: SearchPage) -> bool:
    """Return whether one place comes before another in the order of a page."""
    for left, right, (_, descending) in zip(one, other, page.sort, strict=False):
        before, after = rank(left), rank(right)
        if before != after:
            return (before < after) is not descending
    return one[-1] < other[-1]  # type: ignore[operator]  # texts


def rank(value: str | float | None) -> tuple[int, Any]:
    """Return the sort key of a value: none, numbers, texts as in RQL, false, true, as in Ditto's database."""
    match value:
        case None:
            return 0, None
        case bool():
            return 3, value
        case str():
            return 2, value.encode("utf-16-be", "surrogatepass")
    return 1, value


def _number(text: str, option: str, maximum: int | None = None) -> int:
    if _NUMBER.fullmatch(text) is None:
        raise errors.option_invalid(f"The option <{option}> has <{text}> instead of a number.")
    if maximum is not None and int(text) > maximum:
        raise errors.option_invalid(f"The option <{option}> requests more than {maximum} things.")
    return int(text)
