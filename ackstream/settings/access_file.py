"""``gateway.access_file``, users and access rules; and files that are read again when they change, without a restart.

A file that cannot be used is refused, and what was read before stays in force. It is read once it has not changed for a
second, so that no half of it is taken for the whole.
"""

from __future__ import annotations

import logging
import sys
import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import ValidationError

from ackstream.errors import SettingsError
from ackstream.settings.identity import AccessFile
from ackstream.settings.sentences import key, problem

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from ackstream.settings.gateway import Gateway

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0


def with_access_file(settings: Gateway) -> Gateway:
    """Return the settings with the users and rules of ``access_file``, if there is one.

    :raises SettingsError: the file cannot be used; naming the key, and no value
    """
    if settings.access_file is None:
        return settings
    try:
        values = tomllib.loads(settings.access_file.read_text("utf-8"))
        found = AccessFile.model_validate(values)
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
    except ValidationError as error:
        # without the values, which may be passwords
        reason = f"cannot be used: {'; '.join(f'{key(each)} {problem(each)}' for each in error.errors())}"
    except ValueError as error:
        reason = f"is not valid TOML ({error})"
    else:
        if found.access:
            return settings.model_copy(update={"users": found.users, "access": found.access})
        reason = "grants nothing: grant access with [[access]] (subjects or roles, things, path, grant)"
    raise SettingsError(f"The file {settings.access_file} (gateway.access_file) {reason}.")


@dataclass(frozen=True)
class WatchedFile:
    """A file, and what reads it again: raises ``SettingsError`` if it cannot be used, and changes nothing then."""

    path: Path
    reload: Callable[[], None]


class FileWatch(AbstractContextManager["FileWatch"]):
    """Looks at files once a second, in a thread, for the time of the block."""

    def __init__(
        self, files: Iterable[WatchedFile], report: Callable[[str, str | None], None] = lambda *_: None
    ) -> None:
        """Begin; a change since the start is not missed.

        :param report: called with the name of each file that was read again, and why it was refused, if it was
        :raises SettingsError: a file has become one that cannot be used
        """
        self._files = {}
        for file in files:
            self._files[file] = file_state(file.path)
            file.reload()
        self._seen = dict(self._files)
        self._report = report
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ackstream-files", daemon=True)
        if self._files:
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        """Look no more."""
        self._closing.set()
        if self._files:
            self._thread.join()

    def look(self) -> None:
        """Read those files again that have changed, but not since the last look."""
        for file, read in self._files.items():
            state = file_state(file.path)
            if state is None and self._seen[file] is not None:
                log.error("The file %s is missing. What was read before stays in force.", file.path)
            if state not in (read, None) and state == self._seen[file]:
                self._files[file] = state
                self._reload(file)
            self._seen[file] = state

    def _reload(self, file: WatchedFile) -> None:
        problem = None
        try:
            file.reload()
        except SettingsError as error:
            problem = str(error)
            log.error("%s What was read before stays in force.", error)  # noqa: TRY400 - the sentence says all
        else:
            log.warning("The file %s has changed and was read again.", file.path)
        self._report(str(file.path), problem)

    def _run(self) -> None:
        while not self._closing.wait(LOOK_SECONDS):
            self.look()


def file_state(path: Path) -> tuple[int, ...] | None:
    """Return what changes with a file's content and with who may read it; ``None`` while there is no file.

    It is that of the file that a link leads to: Kubernetes changes the link.
    """
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode, found.st_uid, found.st_gid
