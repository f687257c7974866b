from __future__ import annotations

from typing import Any

import pytest

from ackstream.connectivity.requested import requested_acks
from ackstream.protocol.placeholders import Context, Pipeline
from tests.outcomes import refusal
from tests.prose import each, prose


@each("header_defaults", "source-acks-", but=("source-acks-test",))
def test_prose_source_settings(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    settings = given_["sourceAcknowledgementRequests"]
    condition = settings["filter"] and Pipeline.parse(settings["filter"])
    context = Context(given_["externalHeaders"])
    labels = requested_acks(given_["signalRequestedAcks"], settings["includes"], condition, context)
    assert labels == expect["requested-acks"]


def test_prose_source_acks_test_aggregation_of_acknowledgements() -> None:
    case = prose("header_defaults")["source-acks-testAggregationOfAcknowledgements"]["given"]
    labels = requested_acks(case["signalRequestedAcks"], ["c:one", "c:two"], None, Context({}))
    assert labels == ["my-custom-ack-3", "c:one", "c:two"]


@each("header_defaults", "source-acks-testFilteringOfAcknowledgements")
def test_prose_source_filter(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    condition = Pipeline.parse(given_["sourceAcknowledgementRequests"]["filter"])
    context = Context(given_["externalHeaders"])
    assert requested_acks(given_["signalRequestedAcks"], [], condition, context) == expect["requested-acks"]


@each("labels", "connection-filtered-request-json")
def test_prose_filter_of_the_documentation(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    assert given_ == expect["json"]
    condition = Pipeline.parse(given_["filter"])
    assert requested_acks(None, given_["includes"], condition, Context({"qos": "0"})) == []
    assert requested_acks(None, given_["includes"], condition, Context({"qos": "1"})) == ["twin-persisted"]


@pytest.mark.parametrize("own", [None, [], ["my-ack"]])
@pytest.mark.parametrize("text", ["no array", '["a"]', "[1]", "{}"])
def test_a_filter_that_gives_no_labels_is_the_requester_s_error(own: list[str] | None, text: str) -> None:
    condition = Pipeline.parse(f"fn:replace('[','[')|fn:replace('[]','')|fn:replace('[\"my-ack\"]','{text}')")
    alone = Pipeline.parse(f"fn:delete()|fn:default('{text}')")
    assert requested_acks(own, [], alone, Context({})) == []
    error = refusal(requested_acks, ["my-ack"], [], condition, Context({}))
    assert (error.status, error.error) == (400, "header.invalid")
