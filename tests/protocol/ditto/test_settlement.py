from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.protocol.ditto.connections import SettlementAnswer, settle
from tests.prose import prose

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
