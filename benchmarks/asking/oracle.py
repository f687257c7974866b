"""The answer that each request must get, derived from the plan and the times of records in their topics.

It uses nothing of the product but Kafka and the tables, and is written from docs/wire.md and docs/request-life.md. An
answer counts if its timestamp is no later than that of its request and its timeout together. Where a request has
answers in two topics, their order is open, and with it whether a repeated answer is a duplicate or late.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

from benchmarks.asking import plan

PROGRESS, SILENT, UNMET, OK = 102, 408, 424, 200
REMEMBERED_MS = 60_000
"""The time after a deadline from which an answer may be an orphan, or still be late."""
SHOWN = 20
"""Number of violations that are described in words."""


class Asked(NamedTuple):
    """A request as it is in its topic; ``time``: of its record, epoch ms."""

    identity: str
    topic: str
    partition: int
    offset: int
    time: int


class Answered(NamedTuple):
    """An answer as it is in its topic; ``label``: its index, or another text."""

    time: int
    topic: str
    partition: int
    offset: int
    label: int
    status: int
    weak: bool
    extend_ms: int


class Expected(NamedTuple):
    """The expected outcome of a request.

    ``accepted``: the status of each label that counts, by its index; ``decided``: the possible times of the decision;
    ``fates``: the possible dispositions of each answer, in the order of :attr:`answers`.
    """

    status: int
    completed_by: str
    accepted: dict[int, Answered]
    missing: list[str]
    unneeded: list[str]
    decided: set[int]
    answers: list[Answered]
    fates: list[frozenset[str]]


def expect(number: int, asked: Asked, answers: Iterable[Answered]) -> Expected:
    """Work out the end of a request."""
    case, wanted = plan.case_of(number)[0], [plan.LABELS.index(label) for label in plan.labels(number)]
    ordered = sorted(answers)
    open_order = len({one.topic for one in ordered}) > 1
    until = dict.fromkeys(wanted, asked.time + 1_000 * case.timeout)
    accepted: dict[int, Answered] = {}
    fates: list[frozenset[str]] = []
    end, reached = None, False
    for one in ordered:
        latest = max((until[label] for label in wanted if label not in accepted), default=0)
        if end is not None or one.time > latest:
            # decided by an answer, or by time
            names = ["late"] if one.time <= latest + REMEMBERED_MS or end is not None else ["late", "orphan"]
            if open_order and one.time <= asked.time + 1_000 * case.timeout:
                names.append("unrequested" if one.label not in wanted else "duplicate")
            fates.append(_shared(*names))
            continue
        fate = _fate(one, wanted, accepted, until)
        fates.append(_shared(fate, *(["late"] if open_order and fate in ("duplicate", "unrequested") else [])))
        if fate == "progress":
            until[one.label] = max(until[one.label], one.time + one.extend_ms) if one.extend_ms else until[one.label]
        elif fate == "accepted":
            accepted[one.label] = one
            found = _reached(case.quorum or len(wanted), wanted, accepted, early=case.quorum is not None)
            if found is not None:
                end, reached = one.time, found
    missing = [label for label in wanted if label not in accepted]
    if end is None:
        decided = {max([*(until[label] for label in missing), *(one.time for one in accepted.values())])}
        status = UNMET if len(wanted) > 1 else SILENT
        return Expected(status, "timeout", accepted, _names(missing), [], decided, ordered, fates)
    status = (OK if reached else UNMET) if len(wanted) > 1 else accepted[wanted[0]].status
    decided = {one.time for one in accepted.values()} if open_order else {end}
    return Expected(status, "acknowledgements", accepted, [], _names(missing), decided, ordered, fates)


@lru_cache
def _shared(*names: str) -> frozenset[str]:
    """Return one object for each set of names: there are millions."""
    return frozenset(names)


def _fate(one: Answered, wanted: Sequence[int], accepted: dict[int, Answered], until: dict[int, int]) -> str:
    if one.label not in wanted:
        return "unrequested"
    if one.label in accepted:
        return "duplicate"
    if one.time > until[one.label]:
        return "late"
    return "progress" if one.status == PROGRESS else "accepted"


def _reached(needed: int, wanted: Sequence[int], accepted: dict[int, Answered], *, early: bool) -> bool | None:
    """Return whether a request is positive or negative; ``None``: that is open. ``early``: it has a quorum."""
    positive = sum(200 <= one.status < 300 and not (early and one.weak) for one in accepted.values())
    open_labels = len(wanted) - len(accepted)
    if not early:
        return None if open_labels else positive == len(wanted)
    if positive >= needed:
        return True
    return False if positive + open_labels < needed else None


def _names(labels: Iterable[int]) -> list[str]:
    return [plan.LABELS[label] for label in labels]


def entries(number: int, identity: str, expected: Expected) -> dict[str, Any]:
    """Return the expected value of the reply; the payload of a silent label, an error text, is left out."""
    found: dict[str, Any] = {}
    for name in plan.labels(number):
        label = plan.LABELS.index(name)
        headers: dict[str, Any] = {"correlation-id": identity, "response-required": False}
        one = expected.accepted.get(label)
        if one is None:
            if name not in expected.unneeded:
                found[name] = {"status": SILENT, "headers": headers}
            continue
        value, kind = plan.payload(number, label, one.status)
        entry: dict[str, Any] = {"status": one.status}
        if kind is not None:
            headers["content-type"] = kind
        if one.weak:
            headers["ditto-weak-ack"] = True
        if value is not None and kind == "application/octet-stream":
            headers["content-transfer-encoding"] = "base64"
            entry["payload"] = b64encode(value).decode()
        elif value is not None:
            entry["payload"] = value.decode() if kind is None else json.loads(value)
        found[name] = {**entry, "headers": headers}
    return found


def reply_id(asked: Asked) -> str:
    """Return the id that the reply to a request has to have (docs/wire.md)."""
    text = f"{asked.identity}\n{asked.topic}\n{asked.partition}\n{asked.offset}"
    return blake2b(text.encode(), digest_size=16).hexdigest()


class Oracle:
    """Judges replies and tables; :attr:`violations` counts errors by kind, :attr:`words` has the first ones."""

    def __init__(self, requests: int) -> None:
        self.asked: list[Asked | None] = [None] * requests
        self.answers: list[list[Answered]] = [[] for _ in range(requests)]
        self.expected: list[Expected] = []
        self.numbers: dict[str, int] = {}
        self.violations: Counter[str] = Counter()
        self.words: list[str] = []
        self.repeated = 0
        self._replies: dict[int, bytes] = {}

    def wrong(self, kind: str, *details: Any) -> None:
        """Count a violation."""
        self.violations[kind] += 1
        if len(self.words) < SHOWN:
            self.words.append(f"{kind}: {', '.join(map(str, details))}"[:1_000])

    def ask(self, number: int, asked: Asked) -> None:
        """Take up a request from its topic."""
        if self.asked[number] is not None:
            self.wrong("the load: a request is there twice", number)
        self.asked[number] = asked
        self.numbers[asked.identity] = number

    def decide(self) -> None:
        """Work out the end of all requests, and check that the parties have sent the planned answers."""
        for number, asked in enumerate(self.asked):
            answers = self.answers[number]
            planned = sorted((label, one.status) for label in range(3) for one in plan.answers(number, label))
            if asked is None or planned != sorted((one.label, one.status) for one in answers):
                raise RuntimeError(f"The load is not complete: request {number} is {asked}, its answers are {answers}")
            self.expected.append(expect(number, asked, answers))

    def reply(self, headers: dict[str, bytes], key: bytes, value: bytes) -> None:
        """Judge a reply."""
        number = self.numbers.get(key.decode())
        if number is None:
            self.wrong("a reply to no request", key, headers)
            return
        if (before := self._replies.get(number)) is not None:
            self.repeated += 1
            if before != _digest(headers, value):
                self.wrong("two different replies", number, value)
            return
        self._replies[number] = _digest(headers, value)
        expected, asked = self.expected[number], self.asked[number]
        assert asked is not None
        names = ("correlation-id", "reply-id", "status", "completed-by")
        wanted = (asked.identity, reply_id(asked), str(expected.status), expected.completed_by)
        if (found := tuple(headers.get(name, b"").decode() for name in names)) != wanted:
            self.wrong("a reply with wrong headers", number, found, wanted)
        body = json.loads(value)
        for entry in body["value"].values():
            if entry["status"] == SILENT and entry.pop("payload", {}).get("status") != SILENT:
                self.wrong("an entry of a silent label without its error", number, body)
        if (body["status"], body["value"]) != (expected.status, entries(number, asked.identity, expected)):
            self.wrong("a wrong reply", number, body, expected)
        if body["headers"].get("correlation-id") != asked.identity:
            self.wrong("a reply with a wrong correlation-id", number, body)

    def finish_replies(self) -> None:
        """Judge that each request has a reply."""
        for number in set(range(len(self.asked))) - self._replies.keys():
            self.wrong("no reply", number, self.asked[number])

    def outcomes(self, rows: Iterable[dict[str, Any]]) -> int:
        """Judge the rows of ``outcomes``; return their number."""
        seen, count = set[int](), 0
        for row in rows:
            count += 1
            number = self._number(row, "an outcome", seen)
            if number is None:
                continue
            expected, asked = self.expected[number], self.asked[number]
            assert asked is not None
            names = ("reply_id", "status", "completed_by", "requested", "missing", "unneeded", "started_at")
            found = [row[name] if row[name] is not None else [] for name in names]
            wanted = [
                reply_id(asked), expected.status, expected.completed_by, list(plan.labels(number)), expected.missing,
                expected.unneeded, asked.time,
            ]  # fmt: skip
            if found != wanted or row["decided_at"] not in expected.decided:
                self.wrong("a wrong outcome", number, row, expected)
        self._complete("an outcome", seen)
        return count

    def signals(self, rows: Iterable[dict[str, Any]]) -> int:
        """Judge the rows of ``signals``; return their number."""
        seen, count = set[int](), 0
        for row in rows:
            count += 1
            number = self._number(row, "a signal", seen)
            if number is not None:
                asked = self.asked[number]
                found = Asked(
                    *(row[name] for name in ("correlation_id", "topic", "partition", "offset", "received_at"))
                )
                if found != asked:
                    self.wrong("a wrong signal", number, row, asked)
        self._complete("a signal", seen)
        return count

    def acknowledgements(self, rows: Iterable[dict[str, Any]]) -> int:
        """Judge the rows of ``acknowledgements``: each answer has one, with its disposition; return their number."""
        wanted = {
            (one.topic, one.partition, one.offset): (number, index)
            for number, expected in enumerate(self.expected)
            for index, one in enumerate(expected.answers)
        }
        seen, count = set[tuple[str, int, int]](), 0
        for row in rows:
            count += 1
            place = row["topic"], row["partition"], row["offset"]
            if place in seen:
                self.wrong("an acknowledgement has two rows", row)
            seen.add(place)
            if place not in wanted:
                self.wrong("an acknowledgement of no answer", row)
                continue
            number, index = wanted[place]
            expected, asked = self.expected[number], self.asked[number]
            assert asked is not None
            one, names = expected.answers[index], ("correlation_id", "label", "status", "weak", "received_at")
            right = asked.identity, plan.LABELS[one.label], one.status, one.weak, one.time
            if tuple(row[name] for name in names) != right or row["disposition"] not in expected.fates[index]:
                self.wrong("a wrong acknowledgement", number, row, expected)
        for place in wanted.keys() - seen:
            self.wrong("an acknowledgement has no row", place)
        return count

    def _number(self, row: dict[str, Any], what: str, seen: set[int]) -> int | None:
        number = self.numbers.get(row["correlation_id"])
        if number is None:
            self.wrong(f"{what} of no request", row)
        elif number in seen:
            self.wrong(f"{what} has two rows", number, row)
        else:
            seen.add(number)
            return number
        return None

    def _complete(self, what: str, seen: set[int]) -> None:
        for number in set(range(len(self.asked))) - seen:
            self.wrong(f"{what} has no row", number)

    def summary(self) -> Iterator[tuple[str, Any]]:
        """Yield the numbers of requests by their case and end, and of answers by their fate where that is certain."""
        names = {case: name for name, case in plan.CASES.items()}
        yield "by_case", Counter(names[plan.case_of(number)[0]] for number in range(len(self.asked)))
        yield "by_end", Counter(f"{one.status} {one.completed_by}" for one in self.expected)
        yield "by_fate", Counter(" or ".join(sorted(fate)) for one in self.expected for fate in one.fates)


def _digest(headers: dict[str, bytes], value: bytes) -> bytes:
    return blake2b(repr(sorted(headers.items())).encode() + value, digest_size=8).digest()
