"""Pieces of a shard in memory, for tests of what has no files."""

from __future__ import annotations

import hashlib

from ackstream.spark.pieces import Piece


class MemoryPieces:
    """A store of pieces, which fails when a piece is asked for that it was told to delete, or never had."""

    def __init__(self, keep: int = 2) -> None:
        self.batch = 0
        self.keep = keep
        self.found: dict[str, bytes] = {}
        self.inner: dict[str, MemoryPieces] = {}

    def within(self, name: str) -> MemoryPieces:
        inner = self.inner.setdefault(name, MemoryPieces(self.keep))
        inner.batch = self.batch
        return inner

    def write(self, data: bytes) -> str:
        name = f"{self.batch}-{hashlib.blake2b(data, digest_size=12).hexdigest()}"
        self.found[name] = data
        return name

    def read(self, name: str) -> Piece:
        return Piece(memoryview(self.found[name]))

    def clear(self, named: set[str]) -> None:
        for name in set(self.found) - named:
            if int(name.partition("-")[0]) + self.keep < self.batch:
                del self.found[name]
