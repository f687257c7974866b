"""The options of a client's constructor, and checks whose errors name the argument, its value and a right value."""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import wraps
from threading import TIMEOUT_MAX
from typing import Any, Concatenate, ParamSpec, TypeVar, get_args

from ackstream.errors import BadParameterError, InconsistentQosError

P = ParamSpec("P")
S = TypeVar("S")
O = TypeVar("O")  # noqa: E741 - the options
R = TypeVar("R")
M = TypeVar("M")


def takes(
    options: Callable[P, O], *, awaits: bool = False
) -> Callable[[Callable[[S, O], R]], Callable[Concatenate[S, P], R]]:
    """Let a method be called with the fields of a struct, its signature; fields of type ``Callable`` are checked.

    With ``awaits`` they may be coroutine functions.
    """
    known = inspect.signature(options).parameters
    functions = [name for name, field in known.items() if "Callable" in str(field.annotation) and not awaits]

    def decorate(method: Callable[[S, O], R]) -> Callable[Concatenate[S, P], R]:
        @wraps(method)
        def called(self: S, /, *arguments: P.args, **named: P.kwargs) -> R:
            try:
                given = options(*arguments, **named)
            except TypeError:
                name = type(self).__name__ + ("" if method.__name__ == "__init__" else f".{method.__name__}")
                for word in named:
                    if word not in known:
                        near = get_close_matches(word, known, 1, 0)
                        raise BadParameterError(f"{name} has no option {word!r}: did you mean {near[0]!r}?") from None
                raise
            check_callables(**{name: getattr(given, name) for name in functions})
            return method(self, given)

        own = next(iter(inspect.signature(method).parameters.values()))
        vars(called)["__signature__"] = inspect.Signature([own, *known.values()])
        return called

    return decorate


def check_word(argument: str, value: object, words: Any) -> None:
    """Check an argument that is one of a closed set of words, a ``Literal``."""
    known = get_args(words)
    if value not in known:
        raise BadParameterError(f"{argument} is {value!r:.80}: choose among {', '.join(known)}.")


def check_length(argument: str, text: str, most: int) -> None:
    """Check that a name has 1 to ``most`` characters."""
    check_type(argument, text, str)
    if not 0 < len(text) <= most:
        raise BadParameterError(f"{argument} has {len(text)} characters: give 1 to {most:,}.")


def check_type(argument: str, value: object, *kinds: type, optional: bool = False) -> None:
    """Check the type of an argument; an ``optional`` one may be ``None``, and a bool is not a number."""
    fits = type(value) in kinds if isinstance(value, bool) else isinstance(value, kinds)
    if not fits and not (optional and value is None):
        known = " or ".join(kind.__name__ for kind in kinds)
        raise BadParameterError(f"{argument} is {value!r:.80}: give {known}, not {type(value).__name__}.")


def encoded(argument: str, text: str) -> bytes:
    """Return a text in UTF-8: a text without it can never be sent, and would block later ones."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise BadParameterError(f"{argument} has {text!r:.80}: a surrogate alone is not a character.") from None


def names(argument: str, value: Iterable[str], words: Any = None) -> tuple[str, ...]:
    """Return the names in an argument, each in ``words`` (a ``Literal``) or any text; refuse a single text."""
    if isinstance(value, (str, bytes)):
        raise BadParameterError(f"{argument} is {value!r:.80}, which is one text: give a list, [{value!r:.80}].")
    try:
        found = tuple(value)
    except TypeError:
        raise BadParameterError(f"{argument} is {value!r:.80}: give a list of texts.") from None
    for name in found:
        if not isinstance(name, str) or not name:
            raise BadParameterError(f"{argument} has {name!r:.80}: give texts that are not empty.")
        if words is not None:
            check_word(argument, name, words)
    return found


def check_callables(**given: Callable[..., Any] | None) -> None:
    """Check functions of the application; refuse a coroutine function, which would not run but be acknowledged."""
    for argument, function in given.items():
        if function is None:
            continue
        if not callable(function):
            raise BadParameterError(f"{argument} is {function!r:.80}: give a function.")
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
            raise BadParameterError(
                f"{argument} is {function!r:.80}, which has to be awaited: use the client in ackstream.aio."
            )


@dataclass(frozen=True)
class Retry:
    """The number of calls of a handler that raises, for one signal or sample, and the pauses between them.

    :param attempts: calls in all, at least 1
    :param backoff: seconds before the second call; each further pause is twice as long
    :param longest: the longest pause in seconds, at most ``threading.TIMEOUT_MAX``
    :raises BadParameterError: a number is too small or too large, or has another type
    """

    attempts: int
    backoff: float = 1.0
    longest: float = 60.0

    def __post_init__(self) -> None:
        check_type("attempts", self.attempts, int)
        if self.attempts < 1:
            raise BadParameterError(f"attempts is {self.attempts}: give at least 1.")
        check_type("backoff", self.backoff, int, float)
        check_type("longest", self.longest, int, float)
        if not 0 <= self.longest <= TIMEOUT_MAX:
            raise BadParameterError(f"longest is {self.longest} s: give 0 to {TIMEOUT_MAX:.0f} s.")
        if not 0 <= self.backoff <= self.longest:
            raise BadParameterError(
                f"backoff is {self.backoff} s: give 0 to {self.longest} s, the longest pause, or raise longest."
            )

    def pause(self, failures: int) -> float | None:
        """Return the seconds until the next call after some failures; ``None`` after the last one."""
        if failures >= self.attempts:
            return None
        return min(self.backoff * 2.0 ** min(failures - 1, 50), self.longest)


def handler_of(
    handler: Callable[[M], object] | None, batch_handler: Callable[[list[M]], object] | None, max_batch: int
) -> tuple[Callable[[list[M]], object], int] | None:
    """Return the function to call with messages, and their maximum number; ``None`` if the application iterates."""
    check_callables(handler=handler, batch_handler=batch_handler)
    if handler is not None and batch_handler is not None:
        raise InconsistentQosError("There is a handler and a batch_handler: give one of them.")
    if max_batch < 1:
        raise InconsistentQosError(f"max_batch is {max_batch}; it must be at least 1.")
    if batch_handler is not None:
        return batch_handler, max_batch
    return None if handler is None else (lambda messages: handler(messages[0]), 1)
