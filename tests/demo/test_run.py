"""What a demo that goes wrong says."""

from __future__ import annotations

import contextlib

from ackstream.demo.run import _reason
from ackstream.errors import LocalError


def _failing(first: Exception) -> Exception:
    try:
        with contextlib.ExitStack() as stack:
            stack.callback(lambda: (_ for _ in ()).throw(ConnectionRefusedError()))
            raise first
    except Exception as error:  # noqa: BLE001 - whatever comes out
        return error


def test_what_fails_while_everything_is_taken_down_does_not_hide_the_reason() -> None:
    assert str(_reason(_failing(LocalError("the reason")))) == "the reason"


def test_without_a_sentence_the_error_itself_is_told() -> None:
    assert isinstance(_reason(_failing(ValueError("no sentence"))), ConnectionRefusedError)
