from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.protocol.addresses import TargetAddress
from ackstream.protocol.errors import DittoError
from tests.outcomes import outcome, refusal
from tests.prose import each


@each("protocol_acks", "kafka-target-")
def test_prose_target_address(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    if "error" in expect:
        assert refusal(TargetAddress.parse, given_["targetAddress"]).to_dict().items() >= expect["error"].items()
    else:
        address = TargetAddress.parse(given_["targetAddress"])
        assert (address.topic, address.key, address.partition) == (expect["topic"], expect["key"], expect["partition"])


@pytest.mark.parametrize("text", ["", "/key", "#1", "events#-1", "events#1.0", "events#٣", "e" * 250])
def test_an_address_without_a_topic_or_with_an_odd_partition_is_refused(text: str) -> None:
    assert refusal(TargetAddress.parse, text).status == 400


@given(st.text())
def test_any_text_is_an_address_or_refused(text: str) -> None:
    address = outcome(TargetAddress.parse, text)
    assert address.status == 400 if isinstance(address, DittoError) else text.startswith(address.topic)
