"""Users, rules and keys that change while the gateway runs."""

from __future__ import annotations

import logging
import os
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from ackstream.errors import SettingsError
from ackstream.gateway.access.authentication import Authenticator, access_of, watched_files
from ackstream.gateway.access.passwords import hash_password
from ackstream.gateway.middleware.audit import Audit
from ackstream.settings import Gateway
from ackstream.settings.gateway import FileWatch, WatchedFile, with_access_file
from tests.gateway.parts import Web, response
from tests.harness.issuers import AUDIENCE, pem, rsa_key, signed

if TYPE_CHECKING:
    from pathlib import Path

    from ackstream.protocol.ledger import AuditRow

THING = "/things/org.acme:lamp"
HASHES = {name: hash_password(name) for name in ("ada", "bob")}
READ = '[[access]]\nsubjects = ["*"]\n'
WRITE = '[[access]]\nsubjects = ["*"]\ngrant = ["READ", "WRITE"]\n'


def users(*names: str) -> str:
    return "[users]\n" + "".join(f'{name} = "{HASHES[name]}"\n' for name in names)


class Reloading(Web):
    """A gateway whose file the test writes, and looks at instead of the thread."""

    def __init__(self, path: Path, text: str, **more: Any) -> None:
        path.write_text(text, "utf-8")
        settings = Gateway(access_file=path, **more)
        read = with_access_file(settings)
        super().__init__(response(204), **{name: getattr(settings, name) for name in ("access_file", "issuers")})
        self.authenticator = Authenticator(read)
        self.access = access_of(read, self.authenticator)
        self.rows: list[AuditRow] = []
        self.use(self.authenticator, self.access)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("ackstream.settings.gateway.LOOK_SECONDS", 3600.0)
            files = watched_files(settings, self.authenticator, self.access)
            self.watch = FileWatch(files, Audit("changes", self.rows.append).read_rules)
        self._path = path

    def write(self, text: str) -> None:
        before = self._path.stat().st_mtime_ns
        self._path.write_text(text, "utf-8")
        # as file systems of a coarse clock would not show
        os.utime(self._path, ns=(before + 1_000_000_000, before + 1_000_000_000))

    def look(self) -> None:
        for _ in range(2):
            self.watch.look()

    def status(self, name: str, method: str = "DELETE", password: str = "") -> int:
        return self(method, THING, auth=(name, password or name)).status_code

    def close(self) -> None:
        self.watch._closing.set()
        self.authenticator.close()


def test_users_and_rules_change_without_a_restart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with closing(Reloading(tmp_path / "access.toml", users("ada") + READ)) as web:
        assert (web.status("ada"), web.status("bob")) == (403, 401)
        web.write(users("bob") + WRITE)
        with caplog.at_level(logging.WARNING):
            web.look()
        assert (web.status("ada"), web.status("bob")) == (401, 204)
        assert "has changed and was read again" in caplog.text
        assert [(row.event, row.allowed, row.reason) for row in web.rows] == [("rules", True, None)]


def test_at_no_moment_has_a_new_user_the_rules_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Reloading(tmp_path / "access.toml", users("ada") + WRITE)) as web:
        statuses = []

        def watch(part: object, name: str) -> None:
            step = getattr(part, name)

            def stepped(new: Any) -> None:
                step(new)
                statuses.append(web.status("bob"))

            monkeypatch.setattr(part, name, stepped)

        watch(web.access, "replace")
        watch(web.authenticator, "replace_users")
        web.write(users("bob") + READ)
        web.look()
        assert statuses == [401, 403]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[users", "is not valid TOML"),
        (users("ada"), "grants nothing: grant access with [[access]]"),
        ("", "grants nothing"),
        (READ + '[users]\nada = "hunter2"\n', "has no password hash"),
        (READ + "[users]\nada = 5\n", "users.ada"),
        (READ + "[user]\n", "user is not known; the nearest known one is users"),
        (READ + 'granted = ["READ"]\n', "access.0.granted is not known; the nearest known one is grant"),
        ('[[access]]\nthings = ["*"]\n', "the rule applies to no client"),
        ('[[access]]\nsubjects = ["role:user:x"]\n', "is a role: write 'user:x' into roles"),
    ],
)
def test_a_wrong_file_changes_nothing_and_it_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, reason: str
) -> None:
    with closing(Reloading(tmp_path / "access.toml", users("ada") + WRITE)) as web:
        web.write(text)
        with caplog.at_level(logging.ERROR):
            web.look()
            web.look()
        assert web.status("ada") == 204
        (told,) = [record.message for record in caplog.records]
        assert reason in told
        assert told.endswith("The earlier content stays in force.")
        (row,) = web.rows
        assert (row.event, row.allowed, row.path) == ("rules", False, str(tmp_path / "access.toml"))
        assert row.reason is not None
        assert reason in row.reason
        assert "hunter2" not in caplog.text + row.reason
        # and the next one counts
        web.write(users("bob") + WRITE + "\n")
        web.look()
        assert (web.status("ada"), web.status("bob")) == (401, 204)
    path = tmp_path / "wrong.toml"
    path.write_text(text, "utf-8")
    with pytest.raises(SettingsError):
        Authenticator(with_access_file(Gateway(access_file=path)))


def test_a_file_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    with closing(Reloading(tmp_path / "access.toml", users("ada", "bob") + WRITE)) as web:
        for text in (users("ada"), users("ada") + READ, users("ada") + WRITE):
            web.write(text)
            web.watch.look()
            assert web.status("bob") == 204
        web.watch.look()
        assert web.status("bob") == 401


def test_a_file_that_is_gone_leaves_the_rules_in_force_and_the_last_user_opens_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "access.toml"
    with closing(Reloading(path, users("ada") + WRITE)) as web:
        path.unlink()
        web.look()
        assert web.status("ada") == 204
        assert [record.message for record in caplog.records].count(
            f"The file {path} is missing. The earlier content stays in force."
        ) == 1
        path.write_text(WRITE, "utf-8")
        web.look()
        # without any user nobody is anonymous
        assert web("DELETE", THING).status_code == 401
        assert web.status("ada") == 401


def test_a_link_that_points_to_another_file_is_a_change(tmp_path: Path) -> None:
    link = tmp_path / "access.toml"
    for name in ("ada", "bob"):
        (tmp_path / name).write_text(users(name) + WRITE, "utf-8")
    link.symlink_to(tmp_path / "ada")
    with closing(Reloading(link, users("ada") + WRITE)) as web:
        link.unlink()
        link.symlink_to(tmp_path / "bob")
        web.look()
        assert (web.status("ada"), web.status("bob")) == (401, 204)


def test_a_file_that_could_not_be_read_is_read_once_its_rights_are_corrected(tmp_path: Path) -> None:
    file, reloads = tmp_path / "access.toml", []
    file.write_text("x")

    def reload() -> None:
        reloads.append(file.stat().st_mode & 0o777)
        if not reloads[-1]:
            raise SettingsError("It cannot be read (Permission denied).")

    watch = FileWatch([WatchedFile(file, reload)])
    # the test looks instead of the thread
    watch._closing.set()
    watch._thread.join()
    for mode in (0o000, 0o600):
        file.chmod(mode)
        watch.look()
        watch.look()
    assert reloads[-2:] == [0o000, 0o600]


def test_a_new_key_of_an_issuer_is_read_without_a_restart(tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.write_text(pem(rsa_key("one")), "utf-8")
    issuer = {"issuer": "me", "audience": [AUDIENCE], "key_file": key}
    with closing(Reloading(tmp_path / "access.toml", users("ada") + WRITE, issuers=[issuer])) as web:

        def statuses() -> list[int]:
            tokens = [signed(rsa_key(name)) for name in ("one", "two")]
            return [web("DELETE", THING, headers={"authorization": f"Bearer {token}"}).status_code for token in tokens]

        assert statuses() == [204, 401]
        key.write_text(pem(rsa_key("two")), "utf-8")
        web.look()
        assert statuses() == [401, 204]
        key.write_text("nothing", "utf-8")
        web.look()
        assert statuses() == [401, 204]


def test_users_in_two_places_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"users and access are in .*access_file.*remove them here"):
        Gateway(access_file=tmp_path / "access.toml", access=[{"subjects": ["*"]}])
