"""The options of a client: a frozen struct, written once, whose fields are the keywords of the constructor."""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from ackstream.errors import BadParameterError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

P = ParamSpec("P")
S = TypeVar("S")
O = TypeVar("O")  # noqa: E741 - the options
R = TypeVar("R")


def takes(options: Callable[P, O]) -> Callable[[Callable[[S, O], R]], Callable[Concatenate[S, P], R]]:
    """Let a method be called with the fields of a struct, which it receives as one object.

    The struct's constructor is the method's signature, for type checkers and for ``help``.
    """
    known = inspect.signature(options).parameters

    def decorate(method: Callable[[S, O], R]) -> Callable[Concatenate[S, P], R]:
        @wraps(method)
        def called(self: S, /, *arguments: P.args, **named: P.kwargs) -> R:
            try:
                given = options(*arguments, **named)
            except TypeError:
                name = type(self).__name__
                raise_unknown(name if method.__name__ == "__init__" else f"{name}.{method.__name__}", named, known)
                raise
            return method(self, given)

        own = next(iter(inspect.signature(method).parameters.values()))
        vars(called)["__signature__"] = inspect.Signature([own, *known.values()])
        return called

    return decorate


def raise_unknown(name: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuse keywords that a call does not have.

    :raises BadParameterError: naming the first of them, and the nearest that exists
    """
    for word in given:
        if word not in known:
            near = get_close_matches(word, known, 1, 0)
            raise BadParameterError(f"{name} has no option {word!r}: did you mean {near[0]!r}?")
