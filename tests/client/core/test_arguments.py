from __future__ import annotations

import inspect
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream import client
from ackstream.client.core.arguments import Retry, check_callables, check_word, names, takes
from ackstream.errors import BadParameterError


async def coroutine(_given: object) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Given:
    brokers: str
    _: KW_ONLY
    name: str
    window: int = 1_000


class Made:
    @takes(Given)
    def __init__(self, options: Given) -> None:
        """Keep the options."""
        self.options = options


def test_a_method_is_called_with_the_fields_of_its_options() -> None:
    assert Made("b", name="n").options == Given("b", name="n", window=1_000)
    assert Made(brokers="b", name="n", window=2).options.window == 2


def test_an_unknown_keyword_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(BadParameterError, match=r"Made has no option 'nmae': did you mean 'name'\?"):
        Made("b", nmae="n")  # type: ignore[call-arg]


def test_a_missing_keyword_is_named() -> None:
    with pytest.raises(TypeError, match="name"):
        Made("b")  # type: ignore[call-arg]


def test_the_signature_is_that_of_the_options() -> None:
    assert list(inspect.signature(Made).parameters) == ["brokers", "name", "window"]
    assert Made.__init__.__doc__ == "Keep the options."


CLIENTS = (
    *(client.Publisher, client.QueryClient, client.QueueConsumer, client.Requester, client.Responder),
    *(client.SampleReader, client.Subscriber),
)


@pytest.mark.parametrize("kind", CLIENTS, ids=lambda kind: kind.__name__)
def test_a_client_documents_each_of_its_options(kind: type) -> None:
    documented = str(kind.__init__.__doc__)
    for name in inspect.signature(kind).parameters:
        assert f":param {name}:" in documented


class Awaited:
    async def __call__(self, _argument: object) -> None: ...


async def awaited(_argument: object) -> None: ...


@pytest.mark.parametrize(
    "function", [awaited, Awaited(), partial(awaited, 1), "print"], ids=["function", "object", "partial", "text"]
)
def test_a_function_that_would_not_run_is_refused(function: Any) -> None:
    with pytest.raises(BadParameterError, match=r"^on_ack is .*: (use the client in|give a function)"):
        check_callables(handler=None, filter=len, on_ack=function)


Mode = Literal["client", "auto"]


def test_a_word_is_one_of_a_closed_set() -> None:
    check_word("mode", "auto", Mode)
    with pytest.raises(BadParameterError, match=r"^mode is 'Auto': choose among client, auto\.$"):
        check_word("mode", "Auto", Mode)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("orders", r"^topics is 'orders', which is one text: give a list, \['orders'\]\.$"),
        (b"orders", "which is one text"),
        (7, "give a list of texts"),
        (["a", ""], "topics has '': give texts that are not empty"),
        (["a", 1], "topics has 1: "),
    ],
)
def test_names_are_a_list_of_texts(value: Any, reason: str) -> None:
    with pytest.raises(BadParameterError, match=reason):
        names("topics", value)


def test_names_may_be_words_of_a_closed_set() -> None:
    assert names("modes", (mode for mode in ("auto", "client")), Mode) == ("auto", "client")
    with pytest.raises(BadParameterError, match="modes is 'none': choose among client, auto"):
        names("modes", ["auto", "none"], Mode)


WRONG = [
    (client.Publisher, {"stage": "stored"}, "stage is 'stored': choose among accepted, persisted"),
    (client.Publisher, {"synchronous": "ful"}, "synchronous is 'ful'"),
    (client.SampleReader, {"topics": "orders"}, "topics is 'orders', which is one text"),
    (client.SampleReader, {"writers": "shop-1"}, "writers is 'shop-1', which is one text"),
    (client.SampleReader, {"labels": "fleet:done"}, "labels is 'fleet:done', which is one text"),
    (client.QueueConsumer, {"queue": "q", "mode": "auto_cancel"}, "mode is 'auto_cancel': choose among client"),
    (client.QueueConsumer, {"queue": "q", "outcomes": "failed"}, "outcomes is 'failed', which is one text"),
]


@pytest.mark.parametrize(
    ("kind", "options", "text"), WRONG, ids=[f"{kind.__name__} {list(given)[-1]}" for kind, given, _ in WRONG]
)
def test_a_wrong_option_is_refused_before_anything_is_connected(kind: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(BadParameterError, match=text):
        kind("localhost:1", name="n", **options)


@pytest.mark.parametrize("kind", CLIENTS, ids=lambda kind: kind.__name__)
def test_every_function_of_the_application_is_refused_if_it_would_not_run(kind: Any) -> None:
    options = inspect.signature(kind).parameters.values()
    required = {each.name: print if each.name == "handler" else "n" for each in options if each.default is each.empty}
    functions = [each.name for each in options if "Callable" in str(each.annotation)]
    assert "on_error" in functions
    for name in functions:
        with pytest.raises(BadParameterError, match=rf"{name} is .* has to be awaited: use the client"):
            kind(**required | {name: coroutine})


@pytest.mark.parametrize("wrong", [{"kind": "explicit"}, {"history": "keep_last"}])
def test_a_word_of_a_qos_is_one_of_its_words(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadParameterError, match="choose among"):
        client.ReaderQos(**wrong)


@given(st.integers(1, 200), st.floats(0, 10), st.floats(10, 1_000))
def test_a_retry_has_a_pause_between_all_of_its_attempts_which_never_shrinks_nor_exceeds_its_limit(
    attempts: int, backoff: float, longest: float
) -> None:
    pauses = [Retry(attempts, backoff, longest).pause(failures) for failures in range(1, attempts + 2)]
    assert pauses[attempts - 1 :] == [None, None]
    known = [pause for pause in pauses if pause is not None]
    assert known == sorted(known)
    assert all(backoff <= pause <= longest for pause in known)
    assert known[1:2] in ([], [min(2 * backoff, longest)])


@pytest.mark.parametrize(
    ("given_", "error"),
    [
        ((0,), "attempts is 0: give at least 1"),
        (("3",), "attempts is '3': give int, not str"),
        ((2, -1.0), "backoff is -1.0 s: give 0 to 60.0 s"),
        ((2, 61.0), "backoff is 61.0 s: give 0 to 60.0 s, the longest pause, or raise longest"),
        ((2, 1.0, float("inf")), "longest is inf s: give 0 to"),
        ((2, 1e10, 1e10), "longest is 10000000000.0 s: give 0 to"),
        ((2, float("nan")), "backoff is nan s"),
        ((2, "1"), "backoff is '1': give int or float, not str"),
        ((2, 1, None), "longest is None: give int or float, not NoneType"),
        ((True,), "attempts is True: give int, not bool"),
    ],
)
def test_a_retry_that_cannot_be_carried_out_is_refused(given_: tuple[Any, ...], error: str) -> None:
    with pytest.raises(BadParameterError, match=error):
        Retry(*given_)
