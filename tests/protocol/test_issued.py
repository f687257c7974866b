from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ackstream.protocol.errors import target_address_invalid
from ackstream.protocol.issued import issued_ack
from tests.prose import prose


class IllegalStateException(Exception):  # noqa: N818 - named as in the cases
    pass


class NullPointerException(Exception):  # noqa: N818 - named as in the cases
    pass


def _error(message: str | None, cause: Exception | None) -> Exception:
    error = IllegalStateException() if message is None else IllegalStateException(message)
    error.__cause__ = cause
    return error


# what Java makes the message of an exception made of its cause alone
NULL_POINTER = NullPointerException("java.lang.NullPointerException")


@pytest.mark.parametrize(
    ("identity", "error"),
    [
        ("issued-ack-convertGenericExceptionWithMessageWithoutCause", _error("A foo that went bar!", None)),
        ("issued-ack-convertGenericExceptionWithMessageWithCause", _error("A foo that went bar!", NULL_POINTER)),
        ("issued-ack-convertGenericExceptionWithoutMessageWithoutCause", _error(None, None)),
        ("issued-ack-convertGenericExceptionWithoutMessageWithCause", _error(None, NULL_POINTER)),
    ],
)
def test_prose_an_exception_becomes_an_acknowledgement(identity: str, error: Exception) -> None:
    expected: dict[str, Any] = prose("protocol_acks")[identity]["expect"]["ack"]
    ack = issued_ack("my-ack", error, {"correlation-id": "c", "requested-acks": ["my-ack"]})
    assert (ack.label, ack.status) == ("my-ack", expected["status"])
    assert msgspec.json.decode(ack.payload) == expected["payload"]
    assert ack.headers == {"correlation-id": "c", "response-required": False}


def test_prose_a_ditto_error_gives_its_status_and_its_json_without_it() -> None:
    expected = prose("protocol_acks")["issued-ack-convertDittoRuntimeException"]["expect"]["ack"]
    error = target_address_invalid("events*", "A foo cannot be bar!")
    ack = issued_ack("my-ack", error, {})
    assert ack.status == expected["status"]
    assert msgspec.json.decode(ack.payload) == {k: v for k, v in error.to_dict().items() if k != "status"}
