"""How soon a password may be tried again after wrong ones: for an address, and for a user from wherever it comes.

A client waits on its own side: the refusal says for how long, and no password is compared before. So guessing costs
the gateway little, and takes as long over many connections as over one. An address from which a user has signed in
does not wait because others guess this user's password elsewhere. Pure: callers give the time, in monotonic seconds.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

FREE_OF_USER, FREE_OF_ADDRESS = 5, 20
"""Wrong passwords after which there are delays: of an address more, where several people may be."""

LONGEST = 60.0
"""Seconds; each further wrong password doubles the delay up to this."""

HELD_SECONDS = 1.0
"""How long an attempt that comes too early is held before it is refused, at most."""

FORGOTTEN = 900.0
"""After so many seconds without a wrong password all is as at first."""

NAME_CHARACTERS = 256
"""As many of the name of a user are remembered."""

_MAX_KEYS = 20_000


class _Failures(msgspec.Struct):
    count: int
    last: float


class Attempts:
    """The wrong passwords of late."""

    def __init__(self) -> None:
        self._failures: OrderedDict[tuple[str, str], _Failures] = OrderedDict()
        self._signed_in: OrderedDict[tuple[str, str], None] = OrderedDict()

    def begin(self, user: str, address: str, now: float) -> float:
        """Count an attempt as wrong until it turns out right, and return 0; or return the seconds until it may be made.

        :param address: of the client; of all on this machine it may be the same
        """
        keys = self._keys(user, address)
        wait = max(self._wait(key, free, now) for key, free in keys.items())
        if wait > 0:
            return wait
        for key in keys:
            found = self._failures.setdefault(key, _Failures(0, now))
            found.count, found.last = found.count + 1, now
            self._failures.move_to_end(key)
        while len(self._failures) > _MAX_KEYS:
            self._failures.popitem(last=False)
        return 0.0

    def succeeded(self, user: str, address: str) -> None:
        """Take back an attempt that has turned out right, and forget the wrong ones of the user from there."""
        for kind, key in self._keys(user, address):
            if kind == "address" and (found := self._failures.get((kind, key))) is not None and found.count > 1:
                # a client that knows one password may still guess those of others
                found.count -= 1
            else:
                self._failures.pop((kind, key), None)
        self._signed_in[user, address] = None
        self._signed_in.move_to_end((user, address))
        if len(self._signed_in) > _MAX_KEYS:
            self._signed_in.popitem(last=False)

    def _keys(self, user: str, address: str) -> dict[tuple[str, str], int]:
        own = (user, address) in self._signed_in
        mine = ("user", f"{user}\n{address}") if own else ("user", user)
        return {("address", address): FREE_OF_ADDRESS, mine: FREE_OF_USER}

    def _wait(self, key: tuple[str, str], free: int, now: float) -> float:
        found = self._failures.get(key)
        if found is None:
            return 0.0
        if now - found.last >= FORGOTTEN:
            del self._failures[key]
            return 0.0
        # 2**6 seconds are above the longest delay
        delay = min(LONGEST, 2.0 ** min(found.count - free, 6)) if found.count >= free else 0.0
        return found.last + delay - now
