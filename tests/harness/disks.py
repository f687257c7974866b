"""File systems of their own that can be filled and lose their power, and programs that see a wrong clock or no links.

What was not synced is gone when a file system is shut down without its journal: ext4 then has what a disk has after a
power failure. Needs the rights to mount, and a compiler of C.
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from contextlib import suppress
from pathlib import Path

from tests.harness.waiting import eventually

SHUTDOWN, WITHOUT_JOURNAL = 0x8004587D, struct.pack("I", 2)
"""``EXT4_IOC_SHUTDOWN`` and its flag ``NOLOGFLUSH``."""

MAKE = ("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0")
FAULTS = Path(__file__).with_name("faults.c")


class Disk:
    """A file system in an image beside its directory; ``made``: whether this machine lets us have one."""

    def __init__(self, place: Path, size: int) -> None:
        self.place, self._image = place, place.with_name(f"{place.name}.img")
        place.mkdir()
        with self._image.open("wb") as file:
            file.truncate(size)
        self.made = _ran(*MAKE, str(self._image)) and self._mount()

    def _mount(self) -> bool:
        # without the help that ext4 gives to programs that rename what they have not synced
        return _ran("mount", "-o", "loop,noauto_da_alloc", str(self._image), str(self.place))

    def fill(self) -> None:
        found = os.statvfs(self.place)
        with suppress(OSError), (self.place / "ballast").open("wb", buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, found.f_bfree * found.f_frsize * 9 // 10)
            file.seek(0, os.SEEK_END)
            while file.write(bytes(64 * 1024)):
                pass

    def empty(self) -> None:
        (self.place / "ballast").unlink(missing_ok=True)

    def cut(self) -> None:
        """Cut the power: from now on nothing is read or written."""
        descriptor = os.open(self.place, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, SHUTDOWN, WITHOUT_JOURNAL)
        finally:
            os.close(descriptor)

    def restore(self) -> None:
        """Bring it back with what was synced; the programs that had files open must have ended."""
        eventually(lambda: _ran("umount", str(self.place)), f"nothing uses {self.place}")
        assert self._mount(), f"{self.place} cannot be mounted after the power failure"

    def remove(self) -> None:
        _ran("umount", "-l", str(self.place))
        self._image.unlink()


class Machine:
    """What programs with its environment see of their machine, by ``faults.c``; ``made``: whether there is a compiler.

    The directory of Kafka's nodes and that of the programs are different machines.
    """

    def __init__(self, directory: Path) -> None:
        self._clock, self._links = directory / "clock", directory / "no-links"
        library = directory / "faults.so"
        self.set_clock(0)
        self.made = _ran("cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(FAULTS), "-ldl")
        preload = {"LD_PRELOAD": str(library)} if self.made else {}
        self.brokers = preload | {"CHAOS_CLOCK": str(self._clock)}
        self.programs = preload | {"CHAOS_CLOCK": "", "CHAOS_LINKS": str(self._links)}

    def set_clock(self, seconds: int) -> None:
        """Set the brokers' clocks ahead, or back."""
        # in place: they have mapped the file
        with self._clock.open("r+b" if self._clock.exists() else "wb") as file:
            file.write(struct.pack("l", seconds))

    def allow_links(self, *, allowed: bool) -> None:
        self._links.unlink(missing_ok=True) if allowed else self._links.touch()


def _ran(*command: str) -> bool:
    try:
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False
