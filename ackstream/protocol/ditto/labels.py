"""Acknowledgement labels: those that the system issues itself, and the claims of parties to the others.

A subscriber appends a *claim* of labels to the topic ``declarations`` (one partition), renews it within its lease, and
appends a tombstone at its end. All readers of the log reach the same decision without a coordinator: **the earliest
live claim wins**. A claim is live until its lease expires, counted from the broker's timestamp of its last record.

The rank of a claim is the offset of its first record, which a renewal keeps if the claim is live, and the same, when
the broker appends it. A reader needs no first records, which the compacted topic soon drops: it reads from
:data:`MAX_LEASE_MS` back, and so knows all live claims before it makes its own.

The key is the claim, not the label: for a label the log would keep only the last claim, which is the loser's. A client
that may write the topic can end a claim, under its key, but not take its labels before that. A refused claim counts
against later ones until its end, so no claim that becomes live later can precede one that holds its labels.

Source of the rules: Eclipse Ditto, ``AcknowledgementLabels``, ``DittoAcknowledgementLabel``, the setters
``AbstractCommandAckRequestSetter`` of each kind of signal; for declarations and groups ``AckUpdater`` (ditto.md 6).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from functools import lru_cache
from typing import Final, TypeAlias

import msgspec

from ackstream.protocol import errors
from ackstream.protocol.json import optional_reader

TWIN_PERSISTED: Final = "twin-persisted"
LIVE_RESPONSE: Final = "live-response"
SEARCH_PERSISTED: Final = "search-persisted"

BUILT_IN: Final = {TWIN_PERSISTED: "twin", LIVE_RESPONSE: "live", SEARCH_PERSISTED: "twin"}
"""The labels that no acknowledgement from outside may have, in Ditto's order, and their channels.

Signals of the other channel cannot request them: they are removed from their requested-acks.
"""

RESPONSE_LABELS: Final = {"twin": TWIN_PERSISTED, "live": LIVE_RESPONSE}
"""By channel, the label that a response counts as, and that a signal without requested-acks requests.

Requested alone, it is answered with that response instead of an aggregate.
"""

# the placeholder prefix does not count towards the length
PATTERN: Final = r"(?:\{\{[ \t\n\x0b\f\r]*[a-z]+:[a-z]+[ \t\n\x0b\f\r]*\}\}:)?[a-zA-Z0-9_:-]{3,165}"
"""The regular expression of a label."""

_PATTERN = re.compile(PATTERN)

# longer labels are checked but not cached
_CACHED_LENGTH = 256
_cached = lru_cache(maxsize=4096)(_PATTERN.fullmatch)


def parse_label(text: str) -> str:
    """Return a label: 3 to 165 of ``a-z A-Z 0-9 - _ :``, perhaps after ``{{connection:id}}:``. Raises 400 else."""
    match = _cached if len(text) <= _CACHED_LENGTH else _PATTERN.fullmatch
    if match(text) is None:
        raise errors.label_invalid(text)
    return text


def parse_declared(text: str) -> str:
    """Return a label that may be declared: any but the built-in ones. Raises 400 for these and for other texts."""
    if text in BUILT_IN:
        raise errors.ditto_label_forbidden(text)
    return parse_label(text)


LEASE_MS = 30_000
"""How long a claim is live without a renewal, in milliseconds; labels stay taken as long after a crash."""

MAX_LEASE_MS = 60_000
"""Longer leases are cut to this, so that older records do not affect the holder of a label now."""

GRACE_MS = 150_000
"""How long a label still counts as declared when its lease has expired: a broker that was away stores acknowledgements
that waited for it before it stores the renewal. A client whose lease has lapsed sends none until it is renewed; earlier
ones wait for the broker for 120 s at most, and brokers' clocks differ."""


class Claim(msgspec.Struct, frozen=True, omit_defaults=True):
    """The value of a record: the claimed labels, and for how long (milliseconds).

    Claims of one ``group`` share their labels, which must be exactly the same. ``until`` is the broker's time at which
    the lease expires that a renewal renews: the owner recognizes its own records by it; it has no other use.
    """

    labels: frozenset[str]
    group: str | None = None
    lease_ms: int = LEASE_MS
    until: int | None = None

    def conflicts(self, other: Claim) -> bool:
        """Return whether at most one of two claims can hold its labels."""
        if self.group is not None and self.group == other.group:
            return self.labels != other.labels
        return not self.labels.isdisjoint(other.labels)


class LabelsTakenError(errors.DittoError):
    """Others hold the ``labels``, some of them as ``groups``; the text names them, the JSON has only Ditto's texts."""

    def __init__(self, wanted: frozenset[str], holders: Collection[Claim]) -> None:
        error = errors.label_not_unique()
        super().__init__(error.status, error.error, error.message, error.description)
        self.labels = frozenset().union(*(holder.labels & wanted for holder in holders))
        self.groups = frozenset(holder.group for holder in holders if holder.group is not None)
        self._holders = [(sorted(holder.labels & wanted or holder.labels), holder.group) for holder in holders]

    def __str__(self) -> str:
        """Name the labels, and their holders if known."""
        held = [
            ", ".join(labels) + ("" if group is None else f" (by the group {group})") for labels, group in self._holders
        ]
        named = f": {'; '.join(held)}" if held else ""
        return f"{self.message[:-1]}{named}. Those of a killed party are free after {LEASE_MS // 1000} s."


class DeclarationEntry(msgspec.Struct, frozen=True):
    """A claim in the log: ``rank`` orders claims, ``expires`` is the broker's time at which its lease expires."""

    claim: Claim
    rank: int
    expires: int

    def renewal(self) -> Claim:
        """Return the next record of the claim."""
        return msgspec.structs.replace(self.claim, until=self.expires)

    def renewed_by(self, claim: Claim, timestamp: int) -> bool:
        """Return whether a record under the same key renews this claim rather than begins a new one."""
        own = self.claim
        # at exactly that time another claim may have taken the labels
        return timestamp < self.expires and (claim.labels, claim.group) == (own.labels, own.group)


_read_claim: Callable[[bytes | None], Claim | None] = optional_reader(Claim)


class Declarations:
    """The claims in the log up to some offset.

    Two readers of the log up to the same offset agree on each claim that both have read from its first record, if they
    started ``MAX_LEASE_MS`` before that. Times are epoch milliseconds of the broker.
    """

    def __init__(self) -> None:
        self._entries: dict[str, DeclarationEntry] = {}
        # the claims of each label and of each group: only these can conflict
        self._rivals: dict[tuple[str, str], set[str]] = {}

    def apply(self, key: str, value: bytes | None, offset: int, timestamp: int) -> DeclarationEntry | None:
        """Read the next record; return ``None`` if it holds no claim (a tombstone, unreadable, a built-in label)."""
        before = self._remove(key)
        claim = _read(value)
        if claim is None:
            return None
        rank = before.rank if before is not None and before.renewed_by(claim, timestamp) else offset
        entry = DeclarationEntry(claim, rank, timestamp + min(claim.lease_ms, MAX_LEASE_MS))
        self._entries[key] = entry
        for name in _contested(claim):
            self._rivals.setdefault(name, set()).add(key)
        return entry

    def get(self, key: str) -> DeclarationEntry | None:
        """Return a claim, live or not, ``None`` if it is unknown."""
        return self._entries.get(key)

    def holds(self, key: str, time: int) -> bool:
        """Return whether a claim is live at a time and no earlier live one conflicts with it."""
        entry = self._entries.get(key)
        return entry is not None and time < entry.expires and next(self._earlier(entry, time), None) is None

    def holders(self, key: str, time: int) -> list[Claim]:
        """Return the earlier live claims that conflict with a claim, in order of their labels."""
        entry = self._entries.get(key)
        return [] if entry is None else sorted(self._earlier(entry, time), key=lambda claim: sorted(claim.labels))

    def _earlier(self, entry: DeclarationEntry, time: int) -> Iterator[Claim]:
        for rival in {rival for name in _contested(entry.claim) for rival in self._rivals[name]}:
            other = self._entries[rival]
            if other.rank < entry.rank and time < other.expires and entry.claim.conflicts(other.claim):
                yield other.claim

    def forget(self, time: int) -> None:
        """Drop claims whose lease expired before a time that has passed for all readers."""
        for key in [key for key, entry in self._entries.items() if time >= entry.expires]:
            self._remove(key)

    def _remove(self, key: str) -> DeclarationEntry | None:
        entry = self._entries.pop(key, None)
        for name in () if entry is None else _contested(entry.claim):
            rivals = self._rivals[name]
            rivals.discard(key)
            if not rivals:
                del self._rivals[name]
        return entry


def _contested(claim: Claim) -> list[tuple[str, str]]:
    group = [] if claim.group is None else [("group", claim.group)]
    return [*group, *[("label", label) for label in claim.labels]]


def _read(value: bytes | None) -> Claim | None:
    claim = _read_claim(value)
    return claim if claim is not None and claim.labels.isdisjoint(BUILT_IN) else None


Span: TypeAlias = tuple[int, int]
Spans: TypeAlias = dict[str, list[Span]]


class DeclaredTimes:
    """When labels were declared, by any client: from each record of a claim until ``GRACE_MS`` after its lease expires.

    More records only add to it, and a tombstone ends nothing: so the labels declared at a time are certain once
    all records before that time have been read. Times are epoch milliseconds of the broker.
    """

    def __init__(self, spans: Spans) -> None:
        """Start with ``spans``, the times by label: first, and the one after the last."""
        self.spans = spans

    def apply(self, value: bytes | None, timestamp: int) -> None:
        """Read the next record of the log."""
        claim = _read(value)
        if claim is None or claim.lease_ms <= 0:
            return
        for label in sorted(claim.labels):
            self.add(label, timestamp, timestamp + min(claim.lease_ms, MAX_LEASE_MS) + GRACE_MS)

    def add(self, label: str, start: int, end: int) -> None:
        """Add a span; those that touch become one."""
        apart = []
        for span in self.spans.get(label, ()):
            if span[1] < start or end < span[0]:
                apart.append(span)
            else:
                start, end = min(start, span[0]), max(end, span[1])
        self.spans[label] = sorted([*apart, (start, end)])

    def covers(self, label: str, time: int) -> bool:
        """Return whether a label is declared at a time."""
        return any(start <= time < end for start, end in self.spans.get(label, ()))

    def forget(self, time: int) -> None:
        """Drop the claims that ended before a time that is never looked up again."""
        kept = {label: [span for span in spans if span[1] > time] for label, spans in self.spans.items()}
        self.spans = {label: spans for label, spans in kept.items() if spans}


def check_declared(label: str, declared: Collection[str]) -> None:
    """Refuse an acknowledgement that its sender did not declare. Raises 400 ``acknowledgement:label.not.declared``."""
    if label not in declared:
        raise errors.label_not_declared(label)
