"""A page of a search: its options, its place in an order of things, and the cursor that leads to the next one.

Source of the rules: Eclipse Ditto, ``RqlOptionParser``, ``ThingsSearchCursor``.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from ackstream.protocol import json
from ackstream.protocol.ditto.errors import cursor_invalid, option_invalid
from ackstream.protocol.rql.evaluation import SignalFact, field_of, find, scalars
from ackstream.protocol.rql.patterns import CHARACTERS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackstream.protocol.rql.patterns import Effort

PAGE, LARGEST_PAGE = 25, 200
MAX_SORT_KEYS = 10
_OPTION = re.compile(r"(sort|size|limit|cursor)\(([^()]*)\)")
_NUMBER = re.compile(r"[0-9]{1,9}")
_ID: json.Keys = ("thingId",)
_DIFFERS = "The {} must not differ from the original query of the cursor."

Position = list[str | int | float | bool | None]
"""The place of a thing in the order of a search: its value of each sort key, and its id."""


_Names = Annotated[list[str], msgspec.Meta(max_length=1_000)]


class SearchQuery(msgspec.Struct):
    """A search or a count, as it is asked for."""

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
            raise cursor_invalid("It is not the cursor of a search.") from error


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
        return not self.sort or self.sort[0][0] == _ID

    @property
    def descending(self) -> bool:
        """Whether the order of ids is the reverse one."""
        return bool(self.sort) and self.sort[0][1]


def read_options(options: Iterable[str]) -> SearchPage:
    """Read the options of a search: ``sort(+thingId,-attributes/x)``, ``size(n)``, ``cursor(c)``, ``limit(from,n)``.

    :raises DittoError: 400 ``thing-search:search.option.invalid``, ``rql.expression.invalid``
    """
    page = SearchPage()
    for option in options:
        found = _OPTION.fullmatch(option.strip())
        if found is None:
            raise option_invalid(f"The option <{option}> is not one of sort(…), size(…), cursor(…), limit(…).")
        name, arguments = found[1], [argument.strip() for argument in found[2].split(",")]
        match name, arguments:
            case "sort", _:
                page.sort, page.sort_text = _sort_keys(arguments), ",".join(arguments)
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


def resume(query: SearchQuery, page: SearchPage, cursor: SearchCursor) -> None:
    """Complete a query with the search of its cursor, from which it must not differ.

    Raises DittoError 400 ``thing-search:search.option.invalid``.
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
    page.sort = _sort_keys(cursor.sort.split(",")) if cursor.sort else ()
    page.position = cursor.position
    if len(page.position) != len(page.sort) + 1 or not isinstance(page.position[-1], str):
        raise cursor_invalid("It is not the cursor of a search.")


def place_of(thing_id: str, found: Iterable[Position]) -> Position:
    """Return the position of a found thing; DittoError 400 for others: their place is not for the requester to know."""
    for position in found:
        if position[-1] == thing_id:
            return position
    raise cursor_invalid(
        f"The thing <{thing_id}>, after which to continue, is not found any more. Start from the beginning."
    )


def _sort_keys(arguments: list[str]) -> tuple[tuple[json.Keys, bool], ...]:
    if len(arguments) > MAX_SORT_KEYS:
        raise option_invalid(f"The option sort(…) has more than {MAX_SORT_KEYS} keys.")
    return tuple(map(_sort_key, arguments))


def _sort_key(argument: str) -> tuple[json.Keys, bool]:
    field = field_of(argument[1:], whole=False) if argument[:1] in ("+", "-") else None
    if field is None or isinstance(field, SignalFact):
        raise option_invalid(f"<{argument}> is not a sort key: write + or - and a field of the thing.")
    return field, argument[0] == "-"


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
        raise option_invalid(f"The option <{option}> has <{text}> instead of a number.")
    if maximum is not None and int(text) > maximum:
        raise option_invalid(f"The option <{option}> asks for more than {maximum} things.")
    return int(text)
