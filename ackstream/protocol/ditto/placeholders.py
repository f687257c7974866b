"""Placeholders: texts that are resolved from a message, such as ``device/{{ thing:name | fn:lower() }}``.

A pipeline is a placeholder followed by functions, separated by ``|``. Each of its elements is a text, unresolved
(unknown) or deleted (unwanted); most functions change only texts. Source of the rules: Eclipse Ditto,
``ImmutablePipeline``, ``PipelineFunctionFilter``, ``ImmutableTopicPathPlaceholder`` and their siblings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from ackstream.protocol.ditto.topics import TopicPath
from ackstream.protocol.rql.evaluation import PLACEHOLDERS
from ackstream.protocol.rql.patterns import like


class Nothing(Enum):
    """Why an element of a pipeline has no text."""

    UNRESOLVED = "unresolved"
    DELETED = "deleted"


UNRESOLVED, DELETED = Nothing.UNRESOLVED, Nothing.DELETED
Element: TypeAlias = "str | Literal[Nothing.UNRESOLVED, Nothing.DELETED]"


class Context(msgspec.Struct, frozen=True):
    """The values of placeholders: headers by names in lower case, the connection, the message's topic and address.

    ``address``: of the other system at which a message of a source arrived, empty for all others.
    """

    headers: Mapping[str, str]
    connection_id: str = ""
    topic: TopicPath | None = None
    address: str = ""

    def value(self, placeholder: str) -> Element:
        """Return the value of a known placeholder."""
        prefix, _, name = placeholder.partition(":")
        if prefix == "connection":
            return self.connection_id
        if prefix == "header":
            return self.headers.get(name.lower(), UNRESOLVED)
        if prefix == "source":
            return self.address or UNRESOLVED
        return UNRESOLVED if self.topic is None else self.topic.placeholders[prefix].get(name, UNRESOLVED)


class PlaceholderError(ValueError):
    """A text cannot be used as a template or pipeline; the message names the part and the reason."""


_PLACEHOLDERS = (
    "connection:id", "source:address",
    *[f"{prefix}:{name}" for prefix in ("thing", "entity", "topic") for name in PLACEHOLDERS[prefix]],
)  # fmt: skip
_HEADER = "header:"

Parameter: TypeAlias = Callable[[Context], Element]
_Call: TypeAlias = tuple[Callable[..., Element], list[Parameter]]
"""A function, and its parameters."""


class Pipeline(NamedTuple):
    """A parsed pipeline; see the module. ``source`` is ``None`` if it starts with a function."""

    source: Parameter | None
    calls: list[_Call]

    @staticmethod
    def parse(text: str) -> Pipeline:
        """Read a pipeline. Raises ``PlaceholderError`` for unknown names and wrong parameters."""
        first, *others = _stages(text)
        if first.startswith("fn:"):
            return Pipeline(None, [_call(stage) for stage in (first, *others)])
        return Pipeline(_placeholder(first), [_call(stage) for stage in others])

    def resolve(self, context: Context, start: Element = UNRESOLVED) -> str | None:
        """Return the resulting text, ``None`` without one; ``start`` is the input of a function that comes first."""
        element = start if self.source is None else self.source(context)
        for function, parameters in self.calls:
            element = function(element, *[parameter(context) for parameter in parameters])
        return element if isinstance(element, str) else None


class Template(NamedTuple):
    """A text with pipelines in double braces: its parts in order."""

    pieces: list[str | Pipeline]

    @staticmethod
    @lru_cache(maxsize=1024)
    def parse(text: str) -> Template:
        """Read a template of the settings, of which there are few. Raises ``PlaceholderError``."""
        pieces: list[str | Pipeline] = []
        rest = text
        while rest:
            literal, opening, rest = rest.partition("{{")
            if literal:
                pieces.append(literal)
            if opening:
                inner, closing, rest = rest.partition("}}")
                if not closing:
                    raise PlaceholderError(f"the placeholder that begins with {{{{{inner} is not closed: add }}}}")
                pieces.append(Pipeline.parse(inner))
        return Template(pieces)

    def filled(self, text: str) -> str:
        """Return the template with a text in the place of each pipeline: the constant part."""
        return "".join(piece if isinstance(piece, str) else text for piece in self.pieces)

    def resolve(self, context: Context, quote: Callable[[str], str] | None = None) -> str | None:
        """Return the text, ``None`` if a part of it has no text. ``quote``: applied to the texts of its pipelines."""
        texts = []
        for piece in self.pieces:
            if isinstance(piece, str):
                texts.append(piece)
            elif (found := piece.resolve(context)) is None:
                return None
            else:
                texts.append(found if quote is None else quote(found))
        return "".join(texts)


_STAGE = re.compile(r"""(?:[^|"']|"(?:\\"|[^"])*"|'(?:\\'|[^'])*')*""")
_CALL = re.compile(r"fn:([a-z0-9-]+)\s*\((.*)\)", re.DOTALL)
_PARAMETER = re.compile(
    r"""\s*(?:'(?P<single>(?:\\'|[^'])*)'|"(?P<double>(?:\\"|[^"])*)"|(?P<number>-?[0-9]+)|(?P<name>\w+:[^,\s]+))\s*(?:,|$)"""
)


def _stages(text: str) -> list[str]:
    """Split at bars outside quotes."""
    stages, position = [], 0
    while True:
        match = _STAGE.match(text, position)
        end = len(text) if match is None else match.end()
        if end < len(text) and text[end] != "|":
            raise PlaceholderError(f"the quotes in {text.strip()!r} do not come in pairs")
        stages.append(text[position:end].strip())
        if end >= len(text):
            return stages
        position = end + 1


def _placeholder(name: str) -> Parameter:
    if name not in _PLACEHOLDERS and not (name.startswith(_HEADER) and len(name) > len(_HEADER)):
        raise PlaceholderError(f"{name!r} is not a placeholder; known are header:NAME, {', '.join(_PLACEHOLDERS)}")
    return lambda context: context.value(name)


def _constant(text: str) -> Parameter:
    return lambda _context: text


def _parameters(text: str) -> list[Parameter]:
    found: list[Parameter] = []
    position = 0
    while position < len(text.rstrip()):
        match = _PARAMETER.match(text, position)
        if match is None:
            raise PlaceholderError(
                f"the parameters ({text}) are not texts in quotes or placeholders with commas between"
            )
        position = match.end()
        kind = str(match.lastgroup)
        found.append(_placeholder(match[kind]) if kind == "name" else _constant(match[kind]))
    return found


def _call(stage: str) -> _Call:
    call = _CALL.fullmatch(stage)
    if call is None or call[1] not in _FUNCTIONS:
        known = ", ".join(f"fn:{name}" for name in _FUNCTIONS)
        raise PlaceholderError(f"{stage!r} is not a function; known: {known}, each with its parameters in parentheses")
    counts, function = _FUNCTIONS[call[1]]
    parameters = _parameters(call[2])
    if len(parameters) not in counts:
        wanted = " or ".join(map(str, counts))
        raise PlaceholderError(f"{stage!r} has {len(parameters)} parameters, but the function takes {wanted}")
    if function is _filter:
        constants = [_text(parameter(Context({}))) for parameter in parameters]
        if not set(constants[1:2] if len(constants) == _THREE else constants) & _CONDITIONS.keys():
            raise PlaceholderError(f"fn:filter needs a condition in quotes: one of {', '.join(_CONDITIONS)}")
    return function, parameters


# functions: an element and the parameters' elements to the resulting element


def _text(element: Element) -> str:
    return element if isinstance(element, str) else ""


def _on_text(change: Callable[..., Element]) -> Callable[..., Element]:
    """Make a function that changes texts and passes other elements through; missing parameters are empty texts."""
    return lambda element, *values: change(element, *map(_text, values)) if isinstance(element, str) else element


def _before(text: str, part: str) -> Element:
    head, found, _ = text.partition(part) if part else ("", "found", "")
    return head if found else UNRESOLVED


def _after(text: str, part: str) -> Element:
    _, found, tail = text.partition(part) if part else ("", "found", text)
    return tail if found else UNRESOLVED


_CONDITIONS: dict[str, Callable[[str, str], bool]] = {
    "eq": lambda left, right: left == right,
    "ne": lambda left, right: left != right,
    "like": lambda left, right: any(like(pattern, left) for pattern in right.split("|")),
    "exists": lambda left, right: (right.lower() == "true") != (left == ""),
}
_THREE = 3


@_on_text
def _filter(text: str, *values: str) -> Element:
    """Keep the text where a condition holds; unresolved values count as empty."""
    # ``(value,'eq',other)``; ``('eq',other)`` compares the text itself; ``(value,'exists')``
    match values:
        case left, name, right:
            pass
        case left, "exists" as name:
            right = "true"
        case _:
            left, (name, right) = text, values
    condition = _CONDITIONS.get(name)
    return text if condition is not None and condition(left, right) else UNRESOLVED


_FUNCTIONS: dict[str, tuple[tuple[int, ...], Callable[..., Element]]] = {
    "filter": ((2, _THREE), _filter),
    "default": ((1,), lambda element, value: value if element is UNRESOLVED else element),
    "delete": ((0,), lambda _element: DELETED),
    "lower": ((0,), _on_text(str.lower)),
    "upper": ((0,), _on_text(str.upper)),
    "trim": ((0,), _on_text(str.strip)),
    "replace": ((2,), _on_text(str.replace)),
    "substring-before": ((1,), _on_text(_before)),
    "substring-after": ((1,), _on_text(_after)),
}
"""By name, the possible numbers of parameters and the function."""
