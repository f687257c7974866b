from __future__ import annotations

import inspect
from dataclasses import KW_ONLY, dataclass

import pytest

from ackstream import client
from ackstream.client.core.options import takes
from ackstream.errors import BadParameterError


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


@pytest.mark.parametrize("kind", [client.QueueConsumer, client.SampleReader], ids=lambda kind: kind.__name__)
def test_a_client_documents_each_of_its_options(kind: type) -> None:
    documented = str(kind.__init__.__doc__)
    for name in inspect.signature(kind).parameters:
        assert f":param {name}:" in documented
