""""""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.protocol.ditto.connection_rules import (
    ConnectionLabels,
    SettlementAnswer,
    TargetAddress,
    connection_labels,
    resolve_label,
    settle,
)
from ackstream.protocol.errors import DittoError
from tests.outcomes import outcome, refusal
from tests.prose import each, prose


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


SETTLED = SettlementAnswer((204,))


@pytest.mark.parametrize(
    ("id_", "settlement"),
    [
        ("collector-timeout", settle(None, complete=False)),
        ("collector-allCollected", settle(2, [SETTLED, SETTLED])),
        ("collector-live-400", settle(2, [SETTLED, SettlementAnswer((400,), live=True)])),
        ("collector-live-408", settle(2, [SETTLED, SettlementAnswer((408,), live=True)])),
        ("consumer-testPositiveSourceAcknowledgementSettlement", settle(1, [SETTLED])),
        ("consumer-testNegativeSourceAcknowledgementSettlementDueToError", settle(1, error_status=404)),
        ("consumer-testNegativeSourceAcknowledgementSettlementDueToNAck", settle(1, [SettlementAnswer((400,))])),
        ("consumer-testNegativeSourceAcknowledgementSettlementDueToTimeout", settle(1, error_status=408)),
        ("consumer-testNegativeSourceAcknowledgementSettlementDueToServerError", settle(1, error_status=503)),
        ("other-collector-lifetime", settle(2, [SETTLED], complete=False)),
        ("other-header-invalid", settle(0, error_status=400)),
        ("other-mapping-error-one-outcome", settle(0)),
        ("other-whole-mapping-failed", settle(None, complete=False, error_status=400)),
        ("other-no-acks-requested", settle(0)),
        ("other-weak-ack", settle(1, [SettlementAnswer((200,))])),
        ("other-missing-ack", settle(1, [SettlementAnswer((408, 204))])),
        ("other-command-timeout", settle(1, error_status=408)),
    ],
)
def test_prose_case(id_: str, settlement: str) -> None:
    # one case adds when it happens: "… after the collector lifetime"
    assert prose("settlement")[id_]["expect"]["settlement"].split(maxsplit=1)[0] == settlement


SETTLEMENTS = {
    "no redelivery (settled positively)": "settle",
    "no redelivery (settled negatively)": "reject-without-redelivery",
    "redelivery": "reject-with-redelivery",
}


@pytest.mark.parametrize(
    ("id_", "statuses"),
    [
        ("doc-2xx", range(200, 300)),
        ("doc-4xx", sorted({*range(400, 500)} - {408, 424})),
        ("doc-408", [408]),
        ("doc-424", [424]),
        ("doc-5xx", range(500, 600)),
    ],
)
def test_prose_case_of_a_status(id_: str, statuses: Any) -> None:
    expected = SETTLEMENTS[prose("settlement")[id_]["expect"]["outcome"]]
    assert {settle(1, [SettlementAnswer((status,))]) for status in statuses} == {expected}


def test_a_failed_precondition_settles_as_an_error_and_rejects_as_an_acknowledgement() -> None:
    assert settle(1, error_status=412) == "settle"
    assert settle(1, [SettlementAnswer((412,))]) == "reject-without-redelivery"


@pytest.mark.parametrize("status", range(500, 600))
def test_whatever_5xx_a_party_answers_with_its_message_is_delivered_again(status: int) -> None:
    assert settle(1, error_status=status) == "reject-with-redelivery"
    assert settle(1, [SettlementAnswer((status,))]) == "reject-with-redelivery"


def test_neither_an_informational_status_nor_a_redirection_fails_alone() -> None:
    assert settle(2, [SettlementAnswer((100,)), SettlementAnswer((304,))]) == "settle"
    assert settle(1, [SettlementAnswer((204, 304))]) == "reject-without-redelivery"


def test_an_aggregate_of_nothing_is_a_success() -> None:
    assert settle(1, [SettlementAnswer(())]) == "settle"


def test_more_answers_than_expected_are_delivered_again() -> None:
    assert settle(1, [SETTLED, SETTLED]) == "reject-with-redelivery"


STATUSES = st.sampled_from([100, 200, 204, 304, 400, 404, 408, 412, 424, 500, 503])
ANSWERS = st.builds(SettlementAnswer, st.lists(STATUSES, max_size=3).map(tuple)) | st.builds(
    SettlementAnswer, st.tuples(STATUSES), live=st.just(value=True)
)


@given(st.lists(ANSWERS, max_size=4))
def test_the_order_of_the_answers_does_not_matter(answers: list[SettlementAnswer]) -> None:
    assert settle(len(answers), answers) == settle(len(answers), answers[::-1])


@given(st.lists(ANSWERS, max_size=4))
def test_all_answers_settle_exactly_when_none_failed(answers: list[SettlementAnswer]) -> None:
    assert (settle(len(answers), answers) == "settle") is not any(answer.failed for answer in answers)


@given(st.lists(ANSWERS, max_size=4), st.none() | st.integers(0, 5))
def test_a_wait_that_was_given_up_never_settles(answers: list[SettlementAnswer], expected: int | None) -> None:
    assert settle(expected, answers, complete=False) != "settle"
