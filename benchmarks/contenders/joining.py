"""The join of requests and acknowledgements, the same for each contender in Python, and in java/Join.java for Java.

An entry has the open request of one correlation-id. An acknowledgement counts by its own time stamp, up to the
deadline, whether it is read before its request or after it; acknowledgements whose request does not come are dropped.
Requests of the benchmarks' form alone are read: a timeout in seconds, labels, no errors, nothing checked.
"""

from __future__ import annotations

from typing import Any

ORPHAN_HOLD = 10_000

Entry = dict[str, Any]
"""``due``: its deadline (milliseconds); ``request``: parts for the reply; ``acks``: label → (time, entry)."""


def receive(entry: Entry | None, message: dict[str, Any], timestamp: int) -> Entry:
    """Take a request or an acknowledgement; the entry is changed, or made for the first message of its id."""
    if entry is None:
        entry = {"due": timestamp + ORPHAN_HOLD, "request": None, "acks": {}}
    namespace, name, _, _, criterion, rest = message["topic"].split("/", 5)
    if criterion == "acks":
        if entry["request"] is None or timestamp <= entry["due"]:
            headers = {**message["headers"], "response-required": False}
            ack = {"status": message["status"], "payload": message["value"], "headers": headers}
            entry["acks"].setdefault(rest, (timestamp, ack))
    elif entry["request"] is None:
        headers = {**message["headers"], "response-required": False}
        headers.pop("ditto-originator")
        timeout = 1000 * int(headers["timeout"].removesuffix("s"))
        entry["request"] = {
            "topic": f"{namespace}/{name}/things/twin/acks",
            "labels": headers.pop("requested-acks"),
            "headers": headers,
            "timeout": timeout,
        }
        entry["due"] = due = timestamp + timeout
        entry["acks"] = {label: ack for label, ack in entry["acks"].items() if ack[0] <= due}
    return entry


def complete(entry: Entry) -> bool:
    """Return whether there is a request, with all requested acknowledgements."""
    request = entry["request"]
    return request is not None and all(label in entry["acks"] for label in request["labels"])


def reply(entry: Entry) -> dict[str, Any]:
    """Write the reply; acknowledgements that are missing have timed out."""
    request, acks = entry["request"], entry["acks"]
    key = request["headers"]["correlation-id"]
    value = {
        label: acks[label][1] if label in acks else timed_out(key, request["timeout"]) for label in request["labels"]
    }
    good = all(200 <= ack["status"] < 300 for ack in value.values())
    return {
        "topic": request["topic"],
        "headers": request["headers"],
        "path": "/",
        "value": value,
        "status": 200 if good else 424,
    }


def timed_out(correlation_id: str, timeout: int) -> dict[str, Any]:
    """Write the entry of an acknowledgement that did not come in time, in milliseconds."""
    return {
        "status": 408,
        "payload": {
            "status": 408,
            "error": "acknowledgement:request.timeout",
            "message": f"The acknowledgement request reached the specified timeout of {timeout:,}ms.",
            "description": "Try increasing the timeout and make sure that the requested acknowledgement is sent back "
            "in time.",
        },
        "headers": {"correlation-id": correlation_id, "response-required": False},
    }
