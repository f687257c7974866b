from __future__ import annotations

from typing import Any

import pytest

from ackstream.client.readers.qos import ReaderQos, WriterQos
from ackstream.errors import InconsistentQosError


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"max_response_length": 40_000}, "max_response_length is 40000; it must be 0 to 32768 bytes"),
        ({"max_response_length": -1}, "max_response_length is -1"),
        ({"kind": "application-auto", "reliable": False}, "cannot acknowledge as application-auto; make it reliable"),
        ({"depth": 0}, "depth is 0; it must be at least 1"),
        ({"samples_per_app_ack": 0}, "samples_per_app_ack is 0"),
        ({"app_ack_period_ms": 0}, "app_ack_period_ms is 0"),
        ({"response_keep_ms": -1}, "response_keep_ms is -1"),
    ],
)
def test_a_reader_that_contradicts_itself_is_not_created(values: dict[str, Any], text: str) -> None:
    with pytest.raises(InconsistentQosError, match=text):
        ReaderQos(**values)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"max_samples": 0}, "max_samples is 0"),
        ({"max_blocking_ms": -1}, "max_blocking_ms is -1"),
        ({"required": {"Logger": 0}}, "the quorum of Logger is 0; it must be at least 1"),
        ({"required": {"": 1}}, "A role has 1 to 255 characters, not 0"),
        ({"required": {"x" * 256: 1}}, "not 256"),
        ({"required": {"Logger": 1}, "reliable": False}, "cannot have required subscriptions; make it reliable"),
    ],
)
def test_a_writer_that_contradicts_itself_is_not_created(values: dict[str, Any], text: str) -> None:
    with pytest.raises(InconsistentQosError, match=text):
        WriterQos(**values)


def test_the_longest_response_and_the_longest_role_are_allowed() -> None:
    assert ReaderQos(max_response_length=32_768).max_response_length == 32_768
    assert WriterQos(required={"x" * 255: 1}).max_blocking_ms == 100
