"""Protocol cases: one line of JSON each, ``{"id", "kind", "given", "expect"}``, run against the library.

Each kind calls public functions of the library. An ``error`` in ``expect`` names the fields that must be equal; ``{}``
stands for any error. The wheel includes this file, and ``ackstream conformance`` runs it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec

from ackstream.cli.terminal import echo
from ackstream.errors import InputError
from ackstream.jobs.correlate import decision as correlate_decision
from ackstream.protocol.ditto import connection_rules
from ackstream.protocol.ditto.acknowledgements import (
    Acknowledgement,
    acknowledgement,
    is_success,
    read_ack,
    read_acks,
    response_type,
    write_ack,
)
from ackstream.protocol.ditto.aggregates import (
    AckText,
    combined_status,
    headers_text,
    http_body,
    write_acks,
    write_aggregate,
    write_text,
)
from ackstream.protocol.ditto.envelopes import Envelope, decode, encode, raw
from ackstream.protocol.ditto.headers import (
    REQUESTED_ACKS,
    RESPONSE_REQUIRED,
    TIMEOUT,
    read_headers,
    reply_headers,
    requested_acks_in,
)
from ackstream.protocol.ditto.labels import BUILT_IN, parse_label
from ackstream.protocol.ditto.signal_defaults import (
    HTTP_TIMEOUT_MS,
    SMART_MAXIMUM_MS,
    STREAM_TIMEOUT_MS,
    Api,
    SignalKind,
    check_combination,
    default_headers,
    timeout_milliseconds,
    waits_for_acks,
)
from ackstream.protocol.ditto.topics import TopicPath
from ackstream.protocol.durations import Duration
from ackstream.protocol.errors import REQUEST_TIMEOUT, DittoError
from ackstream.protocol.json import UNREADABLE
from ackstream.protocol.rql import evaluation, parser, patterns

Json = dict[str, Any]


class CaseFileError(InputError):
    """A path does not exist, or does not contain cases."""


class Failure(msgspec.Struct, frozen=True):
    """A case whose result differs from the expected one."""

    id: str
    expected: dict[str, Any]
    actual: dict[str, Any]


class FileResult(msgspec.Struct):
    """The results of a file; ``not_run`` lists id and reason of cases of unknown kinds."""

    name: str
    passed: int = 0
    failed: list[Failure] = []
    not_run: list[tuple[str, str]] = []


class Case(msgspec.Struct, frozen=True):
    """One case: a line of a file."""

    id: str
    kind: str
    given: Json
    expect: Json


# -- kinds: from ``given`` to the result of the library; a DittoError is a result too ----------------------------------


def _label(given: Json) -> Json:
    parse_label(given["label"])
    return {"valid": True}


def _duration(given: Json) -> Json:
    duration = Duration.parse(given["text"])
    return {"text": str(duration), "zero": duration.amount == 0, "milliseconds": _milliseconds(duration)}


def _milliseconds(duration: Duration) -> int | str:
    try:
        return duration.milliseconds
    except OverflowError:
        return "overflow"


def _header_defaults(given: Json) -> Json:
    headers = default_headers(given["signal"], read_headers(given["headers"]))
    try:
        check_combination("Connectivity", given["signal"], headers)
        client_error = False
    except DittoError:
        client_error = True
    return {name: headers.get(name) for name in (REQUESTED_ACKS, RESPONSE_REQUIRED, TIMEOUT)} | {
        "client-error": client_error
    }


def _header_combination(given: Json) -> Json:
    headers = default_headers(given["signal"], read_headers(given["headers"]))
    check_combination(given["api"], given["signal"], headers)
    return {"ok": True}


def _header_value(given: Json) -> Json:
    headers = read_headers(given["headers"])
    result = {name: headers[name] for name in (REQUESTED_ACKS, RESPONSE_REQUIRED) if name in headers}
    if TIMEOUT in headers:
        result["timeout-milliseconds"] = _milliseconds(Duration.parse(headers[TIMEOUT]))
    return {"ok": True} | result


def _topic_path(given: Json) -> Json:
    topic = TopicPath.parse(given["topic"])
    return {
        "namespace": topic.namespace,
        "entity": topic.entity,
        "group": topic.group,
        "channel": topic.channel or "none",
        "criterion": topic.criterion,
        "action": topic.action,
        "subject": topic.subject,
    }


def _read_ack(given: Json) -> Json:
    envelope = _envelope(given["protocol"])
    ack, thing_id = read_ack(envelope), envelope.topic.thing_id
    return {"ack": _internal_json(ack, thing_id), "written-again": _json(write_ack(ack, thing_id))}


def _internal_json(ack: Acknowledgement, thing_id: str) -> Json:
    """Return the JSON that Ditto's services exchange for an acknowledgement (``AcknowledgementJsonParser``)."""
    body = {"type": "acknowledgement", "label": ack.label, "entityId": thing_id, "entityType": "thing"}
    payload = {} if ack.payload is msgspec.UNSET else {"payload": msgspec.json.decode(ack.payload)}
    return body | {"status": ack.status} | payload | {"headers": ack.headers}


def _read_acks(given: Json) -> Json:
    envelope = _envelope(given["protocol"])
    entries = read_acks(envelope)
    headers = reply_headers(read_headers(envelope.headers))
    again = write_acks(entries, thing_id=envelope.topic.thing_id, channel=headers.get("channel"), headers=headers)
    return {
        "status": envelope.status,
        "entries": _entries(map(write_text, entries)),
        "headers": headers,
        "written-again": _json(msgspec.structs.replace(again, status=envelope.status)),
    }


def _write_ack(given: Json) -> Json:
    ack = given["ack"]
    # cases omit the correlation-id "c"
    return {"protocol": _json(write_ack(_ack({"headers": {}} | ack, {"correlation-id": "c"}), ack["thingId"]))}


def _aggregate(given: Json) -> Json:
    correlation_id, timeout = given["correlation-id"], Duration.parse(given["timeout"]).milliseconds
    awaited = tuple(dict.fromkeys(given["requested"]))
    received: list[AckText] = []
    for ack in map(write_text, map(_ack, given["received"])):
        if correlate_decision.disposition(ack.label, awaited, received) == "accepted":
            received.append(ack)
    entries = correlate_decision.entries(awaited, received, correlation_id, timeout)
    return {
        "status": combined_status([ack.status for ack in entries]),
        "missing": [ack.label for ack in entries if ack.status == REQUEST_TIMEOUT],
        "successful": [ack.label for ack in entries if is_success(ack.status)],
        "failed": [ack.label for ack in entries if not is_success(ack.status)],
        "entries": _entries(entries),
        "headers": _aggregate_headers(entries, correlation_id),
    }


def _aggregate_headers(entries: Sequence[AckText], correlation_id: str) -> Json:
    """Return the headers of an aggregate as correlate writes them; cases omit the content-type."""
    texts = headers_text({"correlation-id": correlation_id})
    _, written = write_aggregate(entries, thing_id=None, channel=None, headers=texts)
    return {name: value for name, value in decode(written).headers.items() if name != "content-type"}


def _combined_status(given: Json) -> Json:
    statuses = given["statuses"]
    return {
        "status": combined_status(statuses),
        "response-type": response_type(statuses),
        "successful": sum(map(is_success, statuses)),
        "failed": sum(not is_success(status) for status in statuses),
        "timed-out": statuses.count(REQUEST_TIMEOUT),
    }


def _aggregate_body(given: Json) -> Json:
    status, body = http_body([_ack(ack) for ack in given["acks"]])
    return {"status": status} if body is msgspec.UNSET else {"status": status, "body": msgspec.json.decode(body)}


def _settlement(given: Json) -> Json:
    answers = [
        connection_rules.SettlementAnswer(
            tuple(answer["acks"]) if "acks" in answer else (answer["status"],), answer.get("live", False)
        )
        for answer in given.get("responses", [])
    ]
    complete = given.get("complete", True)
    decision = connection_rules.settle(given["expected"], answers, complete=complete, error_status=given.get("error"))
    return {"settlement": decision}


def _envelope(protocol: Json) -> Envelope:
    return decode(json.dumps(protocol).encode())


def _json(envelope: Envelope) -> Json:
    written: Json = json.loads(encode(envelope))
    return written


def _ack(ack: Json, headers: Json | None = None) -> Acknowledgement:
    payload = raw(ack["payload"]) if "payload" in ack else msgspec.UNSET
    return acknowledgement(ack["label"], ack["status"], payload, (headers or {}) | ack.get("headers", {}))


def _entries(acks: Iterable[AckText]) -> list[Json]:
    return [
        {"label": ack.label, "status": ack.status, "headers": msgspec.json.decode(ack.headers)}
        | ({} if ack.payload is msgspec.UNSET else {"payload": msgspec.json.decode(ack.payload)})
        for ack in acks
    ]


KINDS: dict[str, Callable[[Json], Json]] = {
    "label": _label,
    "label-built-in": lambda given: {"built-in": given["label"] in BUILT_IN},
    "label-request": lambda given: {"label": parse_request(given["request"])},
    "duration": _duration,
    "header-defaults": _header_defaults,
    "header-combination": _header_combination,
    "header-effect": lambda given: effect(given["api"], given["signal"], read_headers(given["headers"])),
    "header-value": _header_value,
    "requested-acks-in": lambda given: {"array": requested_acks_in(given["requested-acks"])},
    "requested-acks-out": lambda given: {"array": requested_acks_out(given["requested-acks"])},
    "topic-path": _topic_path,
    "read-ack": _read_ack,
    "read-acks": _read_acks,
    "write-ack": _write_ack,
    "aggregate": _aggregate,
    "combined-status": _combined_status,
    "aggregate-body": _aggregate_body,
    "rql-parse": lambda given: {"tree": msgspec.to_builtins(parser.parse(given["filter"]))},
    "rql-match": lambda given: {
        "matches": evaluation.matches(given["filter"], given["thing"], time=datetime.now(timezone.utc))
    },
    "rql-like": lambda given: {
        "matches": patterns.like(given["pattern"], given["value"], ignore_case=given["ignore-case"])
    },
    "settlement": _settlement,
}

_PARTIAL = {"header-defaults", "header-value"}
"""Kinds whose cases expect only a part of the result."""


def check(case: Case) -> Failure | None:
    """Run a case of a known kind; return ``None`` if it passed."""
    try:
        actual = KINDS[case.kind](case.given)
    except DittoError as error:
        actual = {"error": error.to_dict()}
    except Exception as error:  # noqa: BLE001 - any exception is the result of its case
        actual = {"exception": f"{type(error).__name__}: {error}"}
    compared = actual
    if case.kind in _PARTIAL and "error" not in actual and "exception" not in actual:
        compared = {name: value for name, value in actual.items() if name in case.expect}
    wanted, found = case.expect.get("error"), compared.get("error")
    if isinstance(wanted, dict) and isinstance(found, dict):
        compared = compared | {"error": {name: found.get(name) for name in wanted}}
    return None if _text(compared) == _text(case.expect) else Failure(case.id, case.expect, actual)


# -- the effects of headers --------------------------------------------------------------------------------------------


def effect(api: Api, kind: SignalKind, headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the effects of a signal's headers on an API.

    ``effective`` are the three headers with defaults applied, the timeout with the API's default. With an ``error``,
    nothing is awaited: there is no ``waits-for-acks`` and no ``content``. ``settlement`` is that of a consumed message
    (Connectivity only).

    :param headers: as ``read_headers`` returns them
    """
    connectivity = api == "Connectivity"
    effective = dict(headers)
    try:
        effective = default_headers(kind, headers)
        check_combination(api, kind, effective)
        timeout = _effective_timeout(api, kind, effective)
    except DittoError as error:
        timeout = headers.get(TIMEOUT, _default_text(api))
        settlement = "reject-without-redelivery" if connectivity else None
        found = {"client-error": True, "reply": "error", "settlement": settlement, "error": error.to_dict()}
    else:
        waits = waits_for_acks(kind, effective.get(REQUESTED_ACKS) or [])
        settlement = ("after-acks" if waits else "immediately") if connectivity else None
        if effective.get(RESPONSE_REQUIRED, True):
            reply = "published-at-reply-target" if connectivity else "full"
            content = "aggregate-or-single-response" if waits else "plain-response"
        elif api == "HTTP":
            reply, content = "202-without-body", "none-on-success"
        else:
            reply = content = "none"
        found = {"client-error": False, "reply": reply, "settlement": settlement}
        found |= {"waits-for-acks": waits, "content": content}
    three = {name: effective.get(name) for name in (REQUESTED_ACKS, RESPONSE_REQUIRED)}
    return {"effective": three | {TIMEOUT: timeout}} | found


def _effective_timeout(api: Api, kind: SignalKind, headers: Mapping[str, Any]) -> str:
    timeout = headers.get(TIMEOUT)
    if timeout is None:
        return _default_text(api)
    milliseconds = timeout_milliseconds(api, kind, headers, _default_ms(api))
    if kind == "smartQuery" or Duration.parse(timeout).capped(SMART_MAXIMUM_MS) == milliseconds:
        return str(timeout)
    return f"{milliseconds // 1000}s"


def _default_text(api: Api) -> str:
    return f"{_default_ms(api) // 1000}s"


def _default_ms(api: Api) -> int:
    """Return the timeout of Ditto's code, which ackstream does not share (docs/compatibility/ditto.md)."""
    return HTTP_TIMEOUT_MS if api == "HTTP" else STREAM_TIMEOUT_MS


def requested_acks_out(text: str) -> list[str] | None:
    """Return the labels of requested-acks that subscribers see, ``None`` if the header is omitted.

    Built-in and empty labels are removed. If nothing is left there is no header, but an explicit ``[]`` stays.

    :raises DittoError: 400 ``acknowledgement:label.invalid``
    """
    try:
        labels = msgspec.json.decode(text)
    except UNREADABLE:
        return None
    if not isinstance(labels, list):
        return None
    kept = [label for label in labels if label and isinstance(label, str) and parse_label(label) not in BUILT_IN]
    return None if labels and not kept else kept


def request_parsing_failed(request: str, cause: str | None) -> DittoError:
    """Return the error of Ditto's services for an acknowledgement request; here a label is a part of a header."""
    because = f" Cause: {cause}" if cause else ""
    return DittoError(
        422,
        "acknowledgement:request.parsing.failed",
        f"<{request}> cannot be parsed to an acknowledgement request!{because}",
        "The string to be parsed must be a valid representation of an acknowledgement request.",
    )


def parse_request(text: str) -> str:
    """Return the label of an acknowledgement request.

    :raises DittoError: 422 ``acknowledgement:request.parsing.failed``
    """
    try:
        return parse_label(text)
    except DittoError as error:
        raise request_parsing_failed(text, error.message) from error


# -- files of cases ----------------------------------------------------------------------------------------------------


def run(paths: Sequence[Path]) -> list[FileResult]:
    """Run case files; a directory stands for every ``*.jsonl`` file below it.

    :raises CaseFileError: a path does not exist or contains no cases
    """
    loaded = [(file.name, _load(file)) for path in paths for file in _files(path)]
    results = []
    for name, cases in loaded:
        result = FileResult(name)
        for case in cases:
            if case.kind not in KINDS:
                result.not_run.append((case.id, f"the kind {case.kind} is not known"))
            elif failure := check(case):
                result.failed.append(failure)
            else:
                result.passed += 1
        results.append(result)
    return results


def main(paths: Sequence[Path]) -> int:
    """Run the cases and print the results; return the exit code, 1 if any case failed or is of an unknown kind.

    :raises CaseFileError: a path does not exist or contains no cases
    """
    results = run(paths)
    for result in results:
        counts = f"{result.passed} passed, {len(result.failed)} failed, {len(result.not_run)} unknown"
        echo(f"{result.name}: {counts}")
        for failure in result.failed:
            echo(f"  {failure.id}\n    expected {_text(failure.expected)}\n    actual   {_text(failure.actual)}")
        for identity, reason in result.not_run:
            echo(f"  {identity}\n    {reason}")
    return int(any(result.failed or result.not_run for result in results))


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise CaseFileError(f"{path} does not exist; name a file of cases or a directory of such files.")
    if not path.is_dir():
        return [path]
    files = sorted(path.rglob("*.jsonl"))
    if not files:
        raise CaseFileError(f"{path} holds no *.jsonl file of cases; name one, or a directory that holds some.")
    return files


def _load(file: Path) -> list[Case]:
    cases, number = [], 0
    try:
        for number, line in enumerate(file.read_text("utf-8").splitlines(), start=1):  # noqa: B007 - the error names it
            if line.strip():
                cases.append(msgspec.convert(json.loads(line), Case))
    except (OSError, UnicodeDecodeError) as error:
        raise CaseFileError(f"{file} cannot be read as UTF-8 text: {error}.") from error
    except (ValueError, RecursionError) as error:
        raise CaseFileError(
            f"{file} is no file of cases: line {number} must be one JSON object with id, kind, given and expect"
            f" ({error})."
        ) from error
    return cases


def _text(value: dict[str, Any]) -> str:
    return json.dumps(value, sort_keys=True)
