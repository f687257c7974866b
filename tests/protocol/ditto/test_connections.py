""""""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.protocol.ditto.connections import ConnectionLabels, TargetAddress, connection_labels, resolve_label
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


@each("labels", "connection-", but=("connection-filtered",))
def test_prose_labels_of_a_connection(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    found = outcome(connection_labels, given_["connectionId"], given_["sourceDeclaredAcks"], given_["targetIssuedAcks"])
    if not expect["accepted"]:
        assert isinstance(found, DittoError)
        assert (found.status, found.error) == (expect["error"]["status"], expect["error"]["error"])
        assert expect["error"]["hint"] in (found.message, found.description)
    else:
        assert isinstance(found, ConnectionLabels)
        if "resolved" in expect:
            assert [*found.declared, *found.issued] == expect["resolved"]


def test_a_connection_declares_each_label_once_and_never_a_built_in_one() -> None:
    labels = connection_labels("c", ["c:one", "{{ connection:id }}:one"], ["live-response", "c:two", "c:one"])
    assert labels.to_declare == ("c:one", "c:two")


def test_two_targets_may_both_respond() -> None:
    assert connection_labels("c", [], ["live-response", "live-response"]).to_declare == ()


def test_a_label_may_have_no_other_placeholder() -> None:
    assert refusal(resolve_label, "c", "{{thing:id}}:one").error == "acknowledgement:label.invalid"
    assert refusal(resolve_label, "c", "{{colour:of}}:one").error == "acknowledgement:label.invalid"
