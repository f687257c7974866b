"""The messages to many addresses, and the verdict on those that arrived; no I/O."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

NAMES = ("lamp-{}", "лампа-{}", "灯-{}", "lâmpada {}")
"""Names of things: an address is made of one."""
IDENTITIES = ("c-{}", "größe-{}", "коррелят {} ", "灯/{}?#%")
SHOWN = 5


class Sent(NamedTuple):
    """A message that was sent: its address, and when (monotonic seconds)."""

    address: int
    at: float


class Arrived(NamedTuple):
    """A message that the other system has accepted: where, which, and when."""

    address: int
    number: int
    at: float


@dataclass(frozen=True)
class Plan:
    """Messages are numbered; those to one address come in order, and those to all addresses in turn.

    :param never: the address that is never taken
    :param unsettled: the message that is never settled, ``None`` if the other system settles all
    :param good: the form of an address, of its ``name`` or ``index``
    :param full: the form of the address that is never taken
    :param held: the form of the address of the message that is never settled
    """

    messages: int = 10_000
    addresses: int = 100
    never: int | None = 13
    unsettled: int | None = 542
    good: str = "{name}"
    full: str = "{name}"
    held: str = "{name}"

    @cached_property
    def names(self) -> list[str]:
        """The name of the thing of each address."""
        return [NAMES[address % len(NAMES)].format(address) for address in range(self.addresses)]

    @cached_property
    def texts(self) -> dict[str, int]:
        """The texts of all addresses but that of the message that is never settled, and their numbers."""
        forms = [self.full if address == self.never else self.good for address in range(self.addresses)]
        return {self._text(form, address): address for address, form in enumerate(forms)}

    @property
    def taken(self) -> list[str]:
        """The texts of the addresses that are taken."""
        return [text for text, address in self.texts.items() if address != self.never]

    @property
    def never_taken(self) -> str:
        """The text of the address that is never taken."""
        return next(text for text, address in self.texts.items() if address == self.never)

    @property
    def never_settled(self) -> str:
        """The text of the address of the message that is never settled."""
        return self._text(self.held, self.address(self.unsettled or 0))

    def _text(self, form: str, address: int) -> str:
        return form.format(name=self.names[address], index=address)

    def address(self, number: int) -> int:
        """Return the address of a message; those beyond the plan go to good addresses."""
        address = number % self.addresses
        beyond = number >= self.messages and address == self.never
        return (address + 1) % self.addresses if beyond else address

    def bad(self, number: int) -> bool:
        """Return whether the other system never accepts a message."""
        return number == self.unsettled or self.address(number) == self.never

    def identity(self, number: int) -> str:
        """Return the correlation-id of a message."""
        return IDENTITIES[number // self.addresses % len(IDENTITIES)].format(number)

    def event(self, number: int) -> bytes:
        """Return the event of a message, as the twin writes it."""
        address = self.address(number)
        form = self.full if address == self.never else self.good
        text = self.never_settled if number == self.unsettled else self._text(form, address)
        headers = {"correlation-id": self.identity(number), "address": text, "requested-acks": []}
        topic = f"org.acme/{self.names[address]}/things/twin/events/modified"
        return json.dumps({"topic": topic, "headers": headers, "path": "/attributes/x", "value": number}).encode()


def number_in(payload: bytes) -> int:
    """Return the number of the message with a payload."""
    return int(json.loads(payload)["value"])


def judge(
    plan: Plan, sent: Mapping[int, Sent], arrived: Iterable[Arrived], letters: Iterable[tuple[int, str]]
) -> dict[str, Any]:
    """Compare the messages sent, accepted and given up: faults by kind, and what an at-least-once target may repeat."""
    counts: Counter[int] = Counter()
    orders: dict[int, list[int]] = defaultdict(list)
    misplaced = []
    for address, number, _ in arrived:
        if address != plan.address(number):
            misplaced.append(number)
        if not counts[number]:
            orders[address].append(number)
        counts[number] += 1
    reasons: dict[int, list[str]] = defaultdict(list)
    for number, reason in letters:
        reasons[number].append(reason)
    good = [number for number in sent if not plan.bad(number)]
    bad = [number for number in sent if plan.bad(number)]
    faults = {
        "lost": [number for number in good if not counts[number] and number not in reasons],
        "given up though good": [number for number in good if number in reasons],
        "out of order": [two for order in orders.values() for one, two in pairwise(order) if two < one],
        "at another address": misplaced,
        "accepted though bad": [number for number in bad if counts[number]],
        "bad without a dead letter": [number for number in bad if number not in reasons],
        "dead letters without a reason": [number for number, texts in reasons.items() if not all(texts)],
    }
    repeated = sum(counts[number] - 1 for number in good if counts[number] > 1)
    return {
        "faults": {name: {"number": len(found), "first": found[:SHOWN]} for name, found in faults.items() if found},
        "accepted": sum(1 for number in good if counts[number]),
        "repeated": repeated,
        "dead_letters": len(reasons),
        "dead_letters_repeated": sum(len(texts) - 1 for texts in reasons.values()),
        "reasons": dict(Counter(_kind(text) for texts in reasons.values() for text in texts)),
    }


def waits(plan: Plan, sent: Mapping[int, Sent], arrived: Collection[Arrived], *, within: tuple[float, float]) -> float:
    """Return the longest wait of a message to a good address that was sent within a span."""
    first: dict[int, float] = {}
    for _, number, at in arrived:
        first.setdefault(number, at)
    own = plan.never, None if plan.unsettled is None else plan.address(plan.unsettled)
    low, high = within
    known = ((sent[number], at) for number, at in first.items())
    return max((at - one.at for one, at in known if one.address not in own and low <= one.at < high), default=0.0)


def _kind(reason: str) -> str:
    """Return a reason without the parts that differ between messages."""
    text = reason.partition(" (")[0]
    return text.partition(" ")[2][:80]
