"""A model of a disk that loses its power: what was not synced is lost, cut off, or there by chance.

A file's content is safe once the file was synced, its name once the directory was. Programs run on the real disk; each
sync is recorded together with all that the directory under test holds at that moment. From that the contents follow
that the directory may have after a power failure before, between and after the syncs. A rename is never half done, as
on every file system with a journal.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from unittest import mock

ROOT = ""


class Entry(NamedTuple):
    """A file or a directory, whose ``content`` is ``None``."""

    inode: int
    content: bytes | None


class Moment(NamedTuple):
    """All that the directory holds, by relative paths, when the file or directory ``synced`` (an inode) is synced."""

    synced: int
    held: dict[str, Entry]


def held(directory: Path) -> dict[str, Entry]:
    """Return all that a directory holds."""
    found = {ROOT: Entry(directory.stat().st_ino, None)}
    for path in sorted(directory.rglob("*")):
        content = None if path.is_dir() else path.read_bytes()
        found[path.relative_to(directory).as_posix()] = Entry(path.stat().st_ino, content)
    return found


@contextmanager
def recorded(directory: Path) -> Iterator[list[Moment]]:
    """Record what this process syncs; the moments are complete after the block."""
    moments, sync = [Moment(0, held(directory))], os.fsync

    def record(descriptor: int) -> None:
        moments.append(Moment(os.fstat(descriptor).st_ino, held(directory)))
        sync(descriptor)

    with mock.patch.object(os, "fsync", record):
        yield moments
    moments.append(Moment(0, held(directory)))


def survivors(moments: Iterable[Moment]) -> Iterator[dict[str, bytes]]:
    """Yield the files that a power failure may leave, in the order of the moments; the first moment's are safe."""
    names: dict[int, dict[str, int]] = {}
    contents: dict[int, bytes] = {}
    first = True
    for synced, found in moments:
        now = {entry.inode: _names(found, path) for path, entry in found.items() if entry.content is None}
        written = {entry.inode: entry.content for entry in found.values() if entry.content is not None}
        if first:
            names, contents, first = dict(now), dict(written), False
        top = found[ROOT].inode
        for known in (names, names | now):
            for share in (0, 1, 2):
                unsafe = {inode: content[: len(content) * share // 2] for inode, content in written.items()}
                yield dict(_files(top, known, unsafe | contents, now.keys() | names.keys()))
        if synced in now:
            names[synced] = now[synced]
        elif synced in written:
            contents[synced] = written[synced]


def after(moments: Iterable[Moment]) -> list[dict[str, bytes]]:
    """Return the files that a power failure may leave after the last moment."""
    return list(survivors(moments))[-6:]


def _names(found: dict[str, Entry], directory: str) -> dict[str, int]:
    inside = f"{directory}/" if directory else ""
    return {
        path.removeprefix(inside): entry.inode
        for path, entry in found.items()
        if path != ROOT and path.startswith(inside) and "/" not in path.removeprefix(inside)
    }


def _files(
    inode: int, names: dict[int, dict[str, int]], contents: dict[int, bytes], directories: Iterable[int], base: str = ""
) -> Iterator[tuple[str, bytes]]:
    for name, child in names.get(inode, {}).items():
        if child in directories:
            yield from _files(child, names, contents, directories, f"{base}{name}/")
        else:
            yield f"{base}{name}", contents.get(child, b"")
