"""Declared labels: who may issue an acknowledgement label, decided by the order of a log alone.

Who wants labels appends a *claim* to the topic ``declarations`` (one partition), again and again before its lease ends,
and a tombstone when it no longer wants them. Everybody who reads the log comes to the same decision, so there is no
coordinator: **the earliest live claim wins**. A claim holds its labels if no earlier one that is live conflicts with
it. Live is a claim until its lease ends, counted from the broker's timestamp of its last record.

The topic is compacted, so a decision may depend only on the last record of each key:

* the key is the claim, not the label: of one label the log would else keep the last claim, which is the loser's;
* a renewal replaces the first record, whose offset was the claim's rank; so it carries that rank (``since``);
* a renewal that comes too late keeps nothing, somebody else may hold the labels by then. What is too late must be seen
  from the renewal alone; so it carries the end of the lease that it renews (``until``).

A claim that was refused counts against later ones until its tombstone comes or its lease ends; that is what makes a
held label safe: no claim that becomes live later can come before it.

Source of the rules for labels and groups: Eclipse Ditto, ``AckUpdater`` (ditto.md 6).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ackstream.protocol.ditto.errors import label_not_declared
from ackstream.protocol.ditto.labels import parse_label

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

LEASE_MS = 30_000
"""How long a claim is live without a renewal, in milliseconds: so long labels stay taken after a crash."""

MAX_LEASE_MS = 60_000
"""Longer leases are cut to this: what is older than that says nothing about who holds a label now."""


class Claim(msgspec.Struct, frozen=True, omit_defaults=True):
    """The value of a record: what is claimed and for how long (milliseconds).

    Claims of one ``group`` share their labels, which must be exactly the same ones. ``since`` and ``until`` make it a
    renewal: the rank of the claim, and the broker's time at which its lease ends, both as the log has them.
    """

    labels: frozenset[str]
    group: str | None = None
    lease_ms: int = LEASE_MS
    since: int | None = None
    until: int | None = None

    def conflicts(self, other: Claim) -> bool:
        """Tell whether only one of two claims can hold."""
        if self.group is not None and self.group == other.group:
            return self.labels != other.labels
        return not self.labels.isdisjoint(other.labels)


class DeclarationEntry(msgspec.Struct, frozen=True):
    """A claim in the log: ``rank`` puts claims in order, ``expires`` is the broker's time at which its lease ends."""

    claim: Claim
    rank: int
    expires: int

    def renewal(self) -> Claim:
        """Return the next record of the claim."""
        return msgspec.structs.replace(self.claim, since=self.rank, until=self.expires)


_decode = msgspec.json.Decoder(Claim).decode


class Declarations:
    """What the log says up to some offset.

    Two that have read up to the same offset agree, whether they began at the first record, behind a compaction, or at
    a record that is ``MAX_LEASE_MS`` older than what they are asked about. Times are epoch milliseconds of the broker.
    """

    def __init__(self) -> None:
        self._entries: dict[str, DeclarationEntry] = {}
        # who may conflict with a claim: those of its labels and of its group
        self._rivals: dict[tuple[str, str], set[str]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def apply(self, key: str, value: bytes | None, offset: int, timestamp: int) -> DeclarationEntry | None:
        """Read the next record; ``None`` where it holds no claim (a tombstone, or nothing that can be read)."""
        self._remove(key)
        claim = _read(value)
        if claim is None:
            return None
        in_time = claim.since is not None and claim.until is not None and timestamp <= claim.until
        rank = claim.since if claim.since is not None and in_time else offset
        entry = DeclarationEntry(claim, rank, timestamp + min(claim.lease_ms, MAX_LEASE_MS))
        self._entries[key] = entry
        for place in _places(claim):
            self._rivals.setdefault(place, set()).add(key)
        return entry

    def get(self, key: str) -> DeclarationEntry | None:
        """Return a claim, live or not; ``None`` where there is none."""
        return self._entries.get(key)

    def holds(self, key: str, time: int) -> bool:
        """Tell whether a claim is live at a time and no earlier live one conflicts with it."""
        entry = self._entries.get(key)
        if entry is None or time >= entry.expires:
            return False
        rivals = {rival for place in _places(entry.claim) for rival in self._rivals[place]}
        return not any(
            other.rank < entry.rank and time < other.expires and entry.claim.conflicts(other.claim)
            for other in map(self._entries.__getitem__, rivals)
        )

    def holders(self, time: int) -> dict[str, list[str]]:
        """Return the keys of the claims that hold each label at a time; several only within a group."""
        found: dict[str, list[str]] = {}
        for key, entry in self._entries.items():
            if self.holds(key, time):
                for label in entry.claim.labels:
                    found.setdefault(label, []).append(key)
        return found

    def forget(self, time: int) -> None:
        """Drop claims whose lease ended before a time that is past for everybody."""
        for key in [key for key, entry in self._entries.items() if time >= entry.expires]:
            self._remove(key)

    def _remove(self, key: str) -> None:
        entry = self._entries.pop(key, None)
        for place in () if entry is None else _places(entry.claim):
            rivals = self._rivals[place]
            rivals.discard(key)
            if not rivals:
                del self._rivals[place]


def _places(claim: Claim) -> list[tuple[str, str]]:
    group = [] if claim.group is None else [("group", claim.group)]
    return [*group, *[("label", label) for label in claim.labels]]


def _read(value: bytes | None) -> Claim | None:
    if not value:
        return None
    try:
        return _decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def parse_labels(labels: Iterable[str]) -> frozenset[str]:
    """Return the labels of a declaration.

    :raises DittoError: 400 ``acknowledgement:label.invalid``
    """
    return frozenset(map(parse_label, labels))


def check_declared(label: str, declared: Collection[str]) -> None:
    """Refuse an acknowledgement that its sender did not declare.

    :raises DittoError: 400 ``acknowledgement:label.not.declared``
    """
    if label not in declared:
        raise label_not_declared(label)
