"""What a demo that goes wrong says."""

from __future__ import annotations

import contextlib

import pytest

from ackstream.cli.demo.run import _reason
from ackstream.errors import LocalError


def _refuse() -> None:
    raise ConnectionRefusedError


@pytest.mark.parametrize(
    ("first", "told"),
    [(LocalError("the reason"), LocalError), (ValueError("no sentence"), ConnectionRefusedError)],
    ids=["a sentence", "no sentence"],
)
def test_what_fails_while_everything_is_taken_down_does_not_hide_a_sentence(
    first: Exception, told: type[Exception]
) -> None:
    with pytest.raises(ConnectionRefusedError) as raised, contextlib.ExitStack() as stack:  # noqa: PT012 - a stack fails
        stack.callback(_refuse)
        raise first
    assert isinstance(_reason(raised.value), told)
