"""The plan: each request and all answers to it, derived from its number.

A request has up to three labels, and a case: when, and how often, the party of each label answers, and with which
status. Which label has which part in its case also follows from the number, so that each party has each part.
"""

from __future__ import annotations

from typing import NamedTuple

LABELS = ("stock:packed", "bank:paid", "ship:booked")
PRODUCERS = ("java", "python", "console")
REQUEST_TOPICS = ("orders", "payments")
"""Java writes to the first, the console to the second, Python to both."""
ACK_TOPIC, OWN_ACK_TOPIC = "acks", "confirmations"
"""The topic of the product, and that of the application."""
SOON, LATER = 0.1, 0.3
"""Seconds from the time of a request to an answer, which its party may exceed."""
NO_CONTENT = 204


class Answer(NamedTuple):
    """An answer of a party, seconds after its request; ``extend``: the further seconds that it requests."""

    after: float
    status: int
    weak: bool = False
    extend: int = 0


class Case(NamedTuple):
    """The course of a request: its share in %, its timeout in seconds, and the answers of each of three parts.

    ``quorum``: the header of that name; ``asked``: how many of the parts the request has the label of.
    """

    share: int
    timeout: int
    answers: tuple[tuple[Answer, ...], ...]
    quorum: int | None = None
    asked: int = 3


_YES = (Answer(SOON, 200),)
CASES = {
    "complete": Case(40, 60, (_YES, (Answer(SOON, 201),), (Answer(SOON, NO_CONTENT),))),
    "refused": Case(10, 60, (_YES, _YES, (Answer(SOON, 503),))),
    "refused by two": Case(4, 60, (_YES, (Answer(SOON, 404),), (Answer(LATER, 409),))),
    "one silent": Case(8, 5, (_YES, _YES, ())),
    "all silent": Case(2, 2, ((), (), ())),
    "one late": Case(6, 3, (_YES, _YES, (Answer(4.0, 200),))),
    "twice": Case(8, 60, (_YES, (Answer(SOON, 200), Answer(LATER, 409)), _YES)),
    "weak": Case(4, 60, (_YES, (Answer(SOON, 200, weak=True),), _YES)),
    "quorum reached": Case(4, 60, (_YES, (Answer(SOON, 500),), _YES), quorum=2),
    "quorum missed": Case(3, 60, ((Answer(SOON, 500),), (Answer(SOON, 404),), (Answer(1.5, 200),)), quorum=2),
    "quorum beside a weak one": Case(3, 60, ((Answer(SOON, 200, weak=True),), _YES, (Answer(LATER, 200),)), quorum=2),
    "quorum open": Case(1, 4, (_YES, (), ()), quorum=2),
    "progress": Case(3, 4, (_YES, _YES, (Answer(SOON, 102, extend=30), Answer(6.0, 200)))),
    "single": Case(3, 60, ((Answer(SOON, 201),), _YES, ()), asked=1),
    "single, refused": Case(1, 60, ((Answer(SOON, 409),), (), ()), asked=1),
}
LONGEST = 35.0
"""Seconds after the last request until all is decided that is not complete, at most."""
_CHOICE = [case for case in CASES.values() for _ in range(case.share)]
_MIXED, _MIX = 2**32, 2_654_435_761
"""Knuth's multiplicative hash: neighbours get unlike cases."""


def case_of(number: int) -> tuple[Case, int]:
    """Return the case of a request, and the index of the label that has its first part."""
    mixed = number * _MIX % _MIXED
    return _CHOICE[mixed // 7 % len(_CHOICE)], mixed // 1_000 % len(LABELS)


def labels(number: int) -> tuple[str, ...]:
    """Return the labels that a request has."""
    case, first = case_of(number)
    return tuple([LABELS[(first + part) % len(LABELS)] for part in range(case.asked)])


def answers(number: int, label: int) -> tuple[Answer, ...]:
    """Return the answers of the party with a label, by its index, in their order."""
    case, first = case_of(number)
    return case.answers[(label - first) % len(LABELS)]


def ack_topic(number: int, label: int) -> str:
    """Return the topic of the answers of a party; where their order counts, all answers are in one partition."""
    case, first = case_of(number)
    own = case.quorum is None and number % 2 and (label - first) % len(LABELS) == 1
    return OWN_ACK_TOPIC if own else ACK_TOPIC


def payload(number: int, label: int, status: int) -> tuple[bytes | None, str | None]:
    """Return value and content type of an answer: JSON, a text or bytes, by its party."""
    if status == NO_CONTENT:
        return None, None
    if label == 0:
        return b'{"order":%d,"status":%d}' % (number, status), "application/json"
    if label == 1:
        return b"order %d: %d" % (number, status), None
    return b"\xff\x00" + number.to_bytes(4, "big") + status.to_bytes(2, "big"), "application/octet-stream"


def written(number: int, label: int, turn: int, identity: bytes) -> tuple[str, bytes | None, list[tuple[str, bytes]]]:
    """Return topic, value and headers of an answer to a request."""
    planned = answers(number, label)[turn]
    value, kind = payload(number, label, planned.status)
    headers = [("correlation-id", identity), ("label", LABELS[label].encode())]
    # the default
    if planned.status != 200:
        headers.append(("status", b"%d" % planned.status))
    if kind is not None:
        headers.append(("content-type", kind.encode()))
    if planned.weak:
        headers.append(("ditto-weak-ack", b"true"))
    if planned.extend:
        headers.append(("extend", b"%ds" % planned.extend))
    return ack_topic(number, label), value, headers


# -- requests ----------------------------------------------------------------------------------------------------------

_EVENT_OF = 30
"""One of this many requests is a CloudEvent, by Java."""


def line(number: int) -> bytes:
    """Return a request as Kafka's console producer reads it: ``name:value;name:value``, a tab, the key, a tab, a value.

    The other producers read the same lines, and encode the value: its parts are separated by blanks.
    """
    case, _ = case_of(number)
    wanted, producer = labels(number), PRODUCERS[number % len(PRODUCERS)]
    headers = {"content-type": "application/json", "ack-quorum": str(case.quorum or "")}
    asks, timeout = ",".join(wanted), f"{case.timeout}s"
    value = b"%d article-%d %d" % (number, number % 997, number % 10_000)
    if producer == "console":
        value = b'{"number":%d,"article":"article-%d","cents":%d}' % (number, number % 997, number % 10_000)
        headers |= {"correlation-id": f"console-{number}", "requested-acks": asks, "timeout": timeout}
    elif producer == "python":
        # its correlation-id are the coordinates of its record
        headers |= {"content-type": "application/protobuf", "requested-acks": asks, "timeout": timeout}
    elif number % _EVENT_OF:
        array = "[" + ",".join(f'"{label}"' for label in wanted) + "]"
        headers |= {"content-type": "application/avro", "correlation-id": f"java-{number}"}
        headers |= {"requested-acks": array, "timeout": timeout}
    else:
        headers |= {"content-type": "application/avro", "ce_specversion": "1.0", "ce_type": "order"}
        headers |= {"ce_source": "/orders", "ce_id": f"event-{number}", "ce_requestedacks": asks, "ce_timeout": timeout}
    written = ";".join(f"{name}:{text}" for name, text in headers.items() if text)
    return b"%b\t%d\t%b\n" % (written.encode(), number, value)
