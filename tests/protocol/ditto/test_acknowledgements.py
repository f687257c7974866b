""""""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.protocol.ditto.acknowledgements import (
    Acknowledgement,
    acknowledgement,
    is_success,
    issued_ack,
    read_ack,
    read_acks,
    read_entry,
    read_issued,
    response_to_ack,
    response_type,
    write_ack,
)
from ackstream.protocol.ditto.aggregates import (
    combined_status,
    headers_text,
    http_body,
    write_acks,
    write_aggregate,
    write_text,
)
from ackstream.protocol.ditto.envelopes import Envelope, decode, encode, raw
from ackstream.protocol.ditto.labels import BUILT_IN, parse_label
from ackstream.protocol.ditto.requests import read_request
from ackstream.protocol.ditto.topics import TopicPath
from ackstream.protocol.errors import DittoError, target_address_invalid
from tests.outcomes import outcome, refusal
from tests.prose import each, prose
from tests.protocol.ditto.test_envelopes import ENVELOPES, JSON

LABELS = st.from_regex(r"[a-zA-Z0-9_:-]{3,12}", fullmatch=True)
STATUSES = st.integers(100, 599)


def envelope(topic: str, **fields: Any) -> Envelope:
    return decode(json.dumps({"topic": topic, "path": "/", "headers": {"correlation-id": "c"}} | fields).encode())


def ack(fields: dict[str, Any]) -> Acknowledgement:
    payload = raw(fields["payload"]) if "payload" in fields else msgspec.UNSET
    return acknowledgement(fields["label"], fields["status"], payload, fields.get("headers"))


def written(message: Envelope) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(encode(message))
    return body


@st.composite
def acks(draw: st.DrawFn) -> Acknowledgement:
    payload = draw(st.just(msgspec.UNSET) | JSON.map(raw))
    headers = draw(st.dictionaries(st.sampled_from(["correlation-id", "foo"]), st.text(min_size=1, max_size=5)))
    return acknowledgement(draw(LABELS.filter(lambda label: label not in BUILT_IN)), draw(STATUSES), payload, headers)


# reading and writing


@given(acks())
def test_a_written_acknowledgement_reads_as_it_was(given_ack: Acknowledgement) -> None:
    again = read_ack(decode(encode(write_ack(given_ack, "org.example:lamp"))))
    assert msgspec.json.encode(again) == msgspec.json.encode(given_ack)


@given(st.lists(acks(), min_size=1, max_size=4, unique_by=lambda one: one.label))
def test_a_written_aggregate_reads_as_it_was(entries: list[Acknowledgement]) -> None:
    message = decode(encode(write_acks(entries, thing_id="a:b", channel="twin", headers={"correlation-id": "c"})))
    assert msgspec.json.encode(read_acks(message)) == msgspec.json.encode(entries)
    assert message.status == combined_status([entry.status for entry in entries])


@given(ENVELOPES)
def test_any_envelope_is_an_acknowledgement_or_refused(message: dict[str, Any]) -> None:
    decoded = outcome(decode, json.dumps(message).encode())
    if isinstance(decoded, Envelope):
        assert isinstance(outcome(read_ack, decoded), Acknowledgement | DittoError)
        assert isinstance(outcome(read_acks, decoded), list | DittoError)


@given(JSON)
def test_any_value_is_an_aggregate_or_refused(value: Any) -> None:
    entries = outcome(read_acks, envelope("ns/name/things/twin/acks", status=200, value=value))
    if isinstance(entries, DittoError):
        assert entries.error in {"json.format.invalid", "json.invalid", "json.field.missing", "header.invalid"}
    else:
        assert len(entries) == len(value)


def test_what_an_acknowledgement_says_of_itself() -> None:
    assert is_success(204)
    assert not is_success(199)
    assert not is_success(300)
    assert Acknowledgement("abc", 408).timed_out


@each("aggregation", "weak-isweak")
def test_prose_weak(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    assert acknowledgement("abc", 200, headers=given_["headers"]).weak is expect["isWeak"]
    assert acknowledgement("abc", 200, headers={"ditto-weak-ack": "false"}).weak is False
    assert acknowledgement("abc", 200).weak is False


@each("labels", "issue-builtin-")
def test_prose_a_built_in_label_is_not_accepted_from_outside(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    message = envelope(given_["incoming protocol ack topic"], status=200)
    assert refusal(read_ack, message).to_dict().items() >= expect["error"].items()


def test_an_invalid_label_is_not_written() -> None:
    assert refusal(write_ack, Acknowledgement("no", 200), "a:b").error == "acknowledgement:label.invalid"


def test_a_bad_header_in_an_acknowledgement_is_refused() -> None:
    message = envelope("ns/name/things/twin/acks/my-ack", status=200, headers={"response-required": "maybe"})
    assert refusal(read_ack, message).error == "header.invalid"


def test_internal_headers_of_an_acknowledgement_vanish() -> None:
    message = envelope(
        "ns/name/things/twin/acks/my-ack", status=200, headers={"ditto-entity-id": "x", "etag": '"rev:1"', "foo": "bar"}
    )
    assert read_ack(message).headers == {"etag": '"rev:1"', "foo": "bar", "response-required": False}


@pytest.mark.parametrize(
    ("entry", "code", "message"),
    [
        ({}, "json.field.missing", "JSON did not include required </status> field!"),
        ({"status": None}, "json.field.missing", "JSON did not include required </status> field!"),
        ({"status": "200"}, "json.invalid", 'Value <"200"> for </status> is not of type <Integer>!'),
        ({"status": 200.0}, "json.invalid", "Value <200.0> for </status> is not of type <Integer>!"),
        (
            {"status": 600},
            "json.invalid",
            "Provided HTTP status code <600> is not within the range of 100 to 599.",
        ),
        ({"status": 200, "headers": []}, "json.invalid", "Value <[]> for </headers> is not of type <JsonObject>!"),
        ({"status": 200, "headers": None}, "json.field.missing", "JSON did not include required </headers> field!"),
        (5, "json.format.invalid", "This JSON value is not an object: 5"),
    ],
)
def test_a_bad_entry_of_an_aggregate_is_refused(entry: Any, code: str, message: str) -> None:
    error = refusal(read_acks, envelope("ns/name/things/twin/acks", status=200, value={"my-ack": entry}))
    assert (error.error, error.message) == (code, message)


def test_an_invalid_label_in_an_aggregate_is_invalid_json() -> None:
    error = refusal(read_acks, envelope("ns/name/things/twin/acks", status=200, value={"no": {"status": 200}}))
    own = refusal(parse_label, "no")
    assert (error.status, error.error, error.message) == (400, "json.invalid", "Acknowledgement label <no> is invalid.")
    assert (error.message, error.description) == (own.message, own.description)


@pytest.mark.parametrize(
    "topic", ["ns/name/policies/acks", "ns/name/things/twin/acks/my-ack", "ns/n/things/twin/errors"]
)
def test_what_is_no_aggregate_is_refused(topic: str) -> None:
    message = envelope(topic, status=200, value={"my-ack": {"status": 200}})
    assert refusal(read_acks, message).error == "protocoladapter:unknown.topicpath"


def test_an_aggregate_without_status_is_refused() -> None:
    message = envelope("ns/name/things/twin/acks", value={"my-ack": {"status": 200}})
    assert refusal(read_acks, message).error == "protocoladapter:unknown.topicpath"


@each("protocol_acks", "toprotocol-")
def test_prose_written_aggregate(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    expected = expect["protocol"]
    thing_id = expected["topic"].replace("/things/twin/acks", "").replace("/", ":", 1)
    message = write_acks(
        [ack(fields) for fields in given_["acks"]], thing_id=thing_id, channel="twin", headers=given_.get("headers", {})
    )
    assert written(message) == expected
    assert list(written(message)["value"]) == list(expected["value"])


def test_an_aggregate_about_no_known_thing_says_so() -> None:
    message = write_acks([Acknowledgement("abc", 200)], thing_id=None, channel="live", headers={})
    assert str(message.topic) == "unknown/unknown/things/live/acks"


def test_the_headers_of_a_single_entry_are_laid_under_those_of_the_command() -> None:
    weak = acknowledgement("abc", 200, headers={"ditto-weak-ack": True, "tag": "ack"})
    command = {"tag": "command", "requested-acks": ["abc"], "response-required": True}
    _, single = write_aggregate([write_text(weak)], thing_id="a:b", channel="twin", headers=headers_text(command))
    assert decode(single).headers == {
        "ditto-weak-ack": True,
        "tag": "command",
        "response-required": False,
        "content-type": "application/json",
    }
    _, both = write_aggregate([write_text(weak)] * 2, thing_id="a:b", channel="twin", headers=headers_text(command))
    assert decode(both).headers == {"tag": "command", "response-required": False, "content-type": "application/json"}


# status and body


@given(st.lists(STATUSES))
def test_several_succeed_only_together(statuses: list[int]) -> None:
    status = combined_status(statuses)
    if len(statuses) == 1:
        assert status == statuses[0]
    else:
        assert status == (200 if all(200 <= one <= 299 for one in statuses) else 424)
    assert (response_type(statuses) == "response") is all(200 <= one <= 299 for one in statuses)


@each("aggregated_status", "test-")
def test_prose_success_and_timeout(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    if "isTimeout" in expect:
        assert Acknowledgement("abc", given_["status"]).timed_out is expect["isTimeout"]
    elif "isSuccess" in expect:
        assert is_success(given_["status"]) is expect["isSuccess"]
    else:
        assert list(filter(is_success, given_["statuses"])) == expect["successfulStatuses"]


@each("aggregated_status", "range-")
def test_prose_range_of_statuses(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    (status,) = given_["statuses"]
    fields = {"status": raw(status), "headers": raw({})}
    if expect["invalid"]:
        assert "not within the range" in refusal(read_entry, "abc", fields).message
    else:
        assert read_entry("abc", fields).status == status


def test_prose_doc_status() -> None:
    cases = prose("aggregated_status")
    assert cases["doc-0"]["expect"]["status"] == "s"
    assert combined_status([207]) == 207
    assert combined_status([200, 204]) == int(cases["doc-1"]["expect"]["status"])
    assert combined_status([200, 300]) == int(cases["doc-2"]["expect"]["status"])


@each("aggregation", "actor-code-single-custom")
def test_prose_the_body_of_a_single_entry_is_its_payload(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    if "httpBody" in expect:
        status, body = http_body([ack(fields) for fields in given_["received"]])
        assert (status, msgspec.json.decode(body)) == (expect["status"], expect["httpBody"])
    else:
        assert combined_status([408]) == expect["status"]


def test_the_body_leaves_out_content_types_of_ditto_itself() -> None:
    own = acknowledgement("abc", 200, headers={"content-type": "application/vnd.eclipse.ditto+json"})
    other = acknowledgement("def", 200, headers={"content-type": "text/plain"})
    _, body = http_body([own, other])
    assert msgspec.json.decode(body) == {
        "abc": {"status": 200, "headers": {"response-required": False}},
        "def": {"status": 200, "headers": {"content-type": "text/plain", "response-required": False}},
    }


def test_nothing_has_no_body() -> None:
    assert http_body([]) == (200, msgspec.UNSET)


# responses

THING = {"thingId": "thing:id"}
RESPONSES: dict[str, tuple[str, str, dict[str, Any]]] = {
    # command, then topic and further fields of the response
    "response-to-ack-live-retrieve": (
        "live/commands/retrieve",
        "live/commands/retrieve",
        {"value": THING, "status": 200},
    ),
    "response-to-ack-twin-delete": ("twin/commands/delete", "twin/commands/delete", {"status": 204}),
    "response-to-ack-twin-created": ("twin/commands/modify", "twin/commands/modify", {"value": THING, "status": 201}),
    "response-to-ack-twin-modified": ("twin/commands/modify", "twin/commands/modify", {"status": 204}),
    "response-to-ack-live-attribute-created": (
        "live/commands/modify",
        "live/commands/modify",
        {"value": 5, "status": 201, "path": "/attributes/x"},
    ),
    "response-to-ack-live-error-response": (
        "live/commands/modify",
        "live/errors",
        {"value": {"status": 404}, "status": 404},
    ),
    "response-to-ack-message-response": (
        "live/messages/subj",
        "live/messages/subj",
        {"value": {"a": 1}, "status": 400, "path": "/outbox/messages/subj"},
    ),
}


@pytest.mark.parametrize("identity", RESPONSES)
def test_prose_a_response_counts_as_an_acknowledgement(identity: str) -> None:
    expected = prose("aggregation")[identity]["expect"]["ack"]
    command, response, fields = RESPONSES[identity]
    headers = {"correlation-id": "c", "response-required": False}
    headers |= {name: expected["headers"][name] for name in ("etag", "content-type") if name in expected["headers"]}
    request = read_request(envelope(f"thing/id/things/{command}"))
    found = response_to_ack(request, envelope(f"thing/id/things/{response}", headers=headers, **fields))
    assert (found.label, found.status, found.headers) == (expected["label"], expected["status"], expected["headers"])
    assert (found.payload is msgspec.UNSET) is ("payload" not in expected)
    if "payload" in expected:
        assert msgspec.json.decode(found.payload) == expected["payload"]


def test_the_prose_cases_of_responses_are_all_there() -> None:
    assert {identity for identity in prose("aggregation") if identity.startswith("response-to-ack-")} == set(RESPONSES)


@given(ENVELOPES)
def test_any_envelope_counts_as_an_acknowledgement_or_is_refused(message: dict[str, Any]) -> None:
    request = read_request(envelope("thing/id/things/live/commands/modify"))
    response = outcome(decode, json.dumps(message).encode())
    found = response if isinstance(response, DittoError) else outcome(response_to_ack, request, response)
    if isinstance(found, DittoError):
        assert found.status == 400
    else:
        assert found.label == "live-response"
        assert written(write_acks([found], thing_id="thing:id", channel="live", headers=request.headers))


def test_the_response_to_a_smart_query_is_a_live_response() -> None:
    smart = envelope("thing/id/things/twin/commands/retrieve", headers={"live-channel-condition": "eq(x,1)"})
    response = envelope("thing/id/things/twin/commands/retrieve", status=200, value=THING)
    found = response_to_ack(read_request(smart), response)
    assert (found.label, found.payload) == ("live-response", msgspec.UNSET)


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


def test_a_subscriber_issues_single_acknowledgements_and_aggregates() -> None:
    single = Acknowledgement("a-ack", 202, raw(1), {"correlation-id": "c", "response-required": False})
    assert read_issued(write_ack(single, "a:b")) == [single]
    assert read_issued(write_acks([single], thing_id="a:b", channel="twin", headers={})) == [single]


@pytest.mark.parametrize("label", ["twin-persisted", "live-response", "search-persisted"])
def test_a_subscriber_issues_no_built_in_label_in_any_form(label: str) -> None:
    entries = [Acknowledgement("a-ack", 200), Acknowledgement(label, 200)]
    aggregate = write_acks(entries, thing_id="a:b", channel="twin", headers={})
    single = Envelope(TopicPath.parse(f"a/b/things/twin/acks/{label}"), {}, "/", status=200)
    for envelope in (aggregate, single):
        with pytest.raises(DittoError) as refused:
            read_issued(envelope)
        assert refused.value.error == "acknowledgement:ditto.acklabel.forbidden"


def test_an_entry_without_payload_stays_without_it_when_it_is_written_again() -> None:
    value = raw({"a-ack": {"status": 204}, "b-ack": {"status": 200, "payload": None, "headers": {"x": "y"}}})
    envelope = Envelope(TopicPath.parse("a/b/things/twin/acks"), {"correlation-id": "c"}, "/", value, status=200)
    again = write_acks(read_acks(envelope), thing_id="a:b", channel="twin", headers=envelope.headers)
    assert msgspec.json.decode(again.value) == {
        "a-ack": {"status": 204, "headers": {"response-required": False}},
        "b-ack": {"status": 200, "payload": None, "headers": {"x": "y", "response-required": False}},
    }


def test_an_acknowledgement_needs_no_correlation_id_to_be_written() -> None:
    assert write_ack(Acknowledgement("a-ack", 202), "a:b").headers == {"response-required": False}


def test_a_null_in_the_headers_of_an_answer_is_absent() -> None:
    found = acknowledgement("a-ack", 200, headers={"correlation-id": "c", "timeout": None, "version": None})
    assert found.headers == {"correlation-id": "c", "response-required": False}
