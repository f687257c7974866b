"""The tree of an RQL filter: small frozen values, made to be taken apart with ``match``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

Operator: TypeAlias = Literal["eq", "ne", "gt", "ge", "lt", "le", "like", "ilike"]


class Placeholder(msgspec.Struct, frozen=True):
    """A literal that is resolved when the filter is evaluated; ``text`` has its prefix, ``time:now-1h``."""

    text: str


Value: TypeAlias = str | int | float | bool | Placeholder | None


class Comparison(msgspec.Struct, frozen=True):
    """One property against one literal; ``like`` and ``ilike`` too."""

    op: Operator
    property: str
    value: Value


class Membership(msgspec.Struct, frozen=True):
    """``in``: one property against at least one literal."""

    property: str
    values: tuple[Value, ...]


class Exists(msgspec.Struct, frozen=True):
    """The property is there, whatever its value."""

    property: str


class Empty(msgspec.Struct, frozen=True):
    """The property is absent, null or without content."""

    property: str


class And(msgspec.Struct, frozen=True):
    """All of at least one filter."""

    args: tuple[Node, ...]


class Or(msgspec.Struct, frozen=True):
    """Any of at least one filter."""

    args: tuple[Node, ...]


class Not(msgspec.Struct, frozen=True):
    """The opposite of one filter."""

    arg: Node


Leaf: TypeAlias = Comparison | Membership | Exists | Empty
Node: TypeAlias = Leaf | And | Or | Not


def leaves(tree: Node) -> Iterator[Leaf]:
    """Give the nodes that name a property, in the order they are written."""
    rest = [tree]
    while rest:
        node = rest.pop()
        match node:
            case And(args=args) | Or(args=args):
                rest.extend(reversed(args))
            case Not(arg=arg):
                rest.append(arg)
            case _:
                yield node
