"""Passwords of users: hashes that protect, and checks that stand in nobody's way."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from typing import Any

import pytest

from ackstream.errors import SettingsError
from ackstream.gateway import passwords
from ackstream.gateway.passwords import Passwords, check_users, hash_password, matches, read_basic
from ackstream.protocol.errors import DittoError
from ackstream.settings import Gateway

HASH = hash_password("right")
SALT, DIGEST = HASH.split("$")[4:]


def users(**hashes: Any) -> Any:
    return Gateway(users=hashes).users


async def check(checked: Passwords, name: str, password: str) -> bool:
    return checked.known(name, password) or await checked.check(name, password)


def test_a_password_matches_its_own_hash_alone() -> None:
    hashed = hash_password("grüß")
    assert matches("grüß", hashed)
    assert not matches("gruss", hashed)
    assert hashed != hash_password("grüß")


@pytest.mark.parametrize(
    ("credentials", "wanted"),
    [
        ("YWRhOmE6Yg==", ("ada", "a:b")),
        ("YWRhOg==", ("ada", "")),
        ("YWRh", ("", "")),
        ("/w==", ("", "")),
        ("!!", ("", "")),
        ("", ("", "")),
    ],
)
def test_credentials_of_basic_are_a_name_and_a_password_or_nothing(credentials: str, wanted: tuple[str, str]) -> None:
    assert read_basic(credentials) == wanted


@pytest.mark.parametrize(
    "hashed",
    [
        "plain",
        "scrypt$1$2$3$x",
        f"scrypt$16$8$1${SALT}${DIGEST}",
        f"scrypt$16384$1$1${SALT}${DIGEST}",
        f"scrypt$16385$8$1${SALT}${DIGEST}",
        f"scrypt$131072$8$1${SALT}${DIGEST}",
        f"scrypt$16384$8$1$AAAA${DIGEST}",
        f"scrypt$16384$8$1${SALT}$",
        f"scrypt$16384$8$1${SALT}$AAAA",
        f"scrypt$x$8$1${SALT}${DIGEST}",
        f"scrypt$16384$8$1${SALT}$!{DIGEST}",
        f"bcrypt$16384$8$1${SALT}${DIGEST}",
    ],
)
def test_a_hash_from_which_the_password_is_found_too_easily_is_refused(hashed: str) -> None:
    with pytest.raises(SettingsError, match=r"'ada'.*`ackstream password`") as caught:
        check_users(users(ada=hashed), "The setting gateway.users")
    assert hashed not in str(caught.value)


def test_a_hash_of_more_cost_is_accepted() -> None:
    check_users(users(ada=f"scrypt$32768$8$2${SALT}${DIGEST}"), "The setting gateway.users")


def test_a_password_that_was_right_is_wrong_once_the_user_has_another_or_is_gone() -> None:
    async def go() -> list[Any]:
        with closing(Passwords(users(ada=HASH))) as checked:
            found = [await check(checked, "ada", "right")]
            before = checked.account("ada")
            checked.replace(users(ada=hash_password("other")))
            found.append(await check(checked, "ada", "right"))
            assert checked.account("ada").stamp != before.stamp
            checked.replace({})
            found.append(await check(checked, "ada", "other"))
            assert checked.account("ada") is None
            return found

    assert asyncio.run(go()) == [True, False, False]


def test_a_user_whose_roles_change_is_another_one() -> None:
    with closing(Passwords(users(ada=HASH))) as checked:
        first = checked.account("ada")
        checked.replace(users(ada={"password": HASH, "roles": ["operator"]}))
        second = checked.account("ada")
    assert (first.subjects, second.subjects) == (("user:ada",), ("user:ada", "role:user:operator"))
    assert first.stamp != second.stamp


class Slow:
    """Compares a password when the test lets it; counts how many are compared at once."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.count = 0

    def __call__(self, _password: str, _hashed: str) -> bool:
        self.count += 1
        assert self.free.wait(60)
        return True


def test_many_wrong_passwords_hold_up_no_one_who_is_known_and_are_not_kept_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def go() -> tuple[Any, set[int]]:
        with closing(Passwords(users(ada=HASH))) as checked:
            assert await check(checked, "ada", "right") is True
            slow = Slow()
            monkeypatch.setattr(passwords, "matches", slow)
            tasks = [asyncio.ensure_future(check(checked, "eve", str(n))) for n in range(1_000)]
            await asyncio.sleep(0)
            known = await check(checked, "ada", "right")
            done, waiting = await asyncio.wait(tasks, timeout=0.1)
            assert len(waiting) == passwords.WAITING
            assert slow.count <= checked._threads._max_workers
            slow.free.set()
            await asyncio.wait(waiting)
            return known, {task.exception().status for task in done}  # type: ignore[union-attr]

    assert asyncio.run(go()) == (True, {503})


def test_connections_with_the_same_password_share_one_check(monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> Any:
        with closing(Passwords(users(ada=HASH))) as checked:
            slow = Slow()
            slow.free.set()
            monkeypatch.setattr(passwords, "matches", slow)
            found = await asyncio.gather(*(check(checked, "ada", "right") for _ in range(100)))
            return set(found), slow.count

    assert asyncio.run(go()) == ({True}, 1)


def test_a_client_that_goes_away_takes_no_check_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> Any:
        with closing(Passwords(users(ada=HASH))) as checked:
            slow = Slow()
            monkeypatch.setattr(passwords, "matches", slow)
            gone, stays = (asyncio.ensure_future(check(checked, "ada", "right")) for _ in range(2))
            await asyncio.sleep(0)
            gone.cancel()
            slow.free.set()
            return await stays

    assert asyncio.run(go()) is True


def test_too_many_at_once_is_no_wrong_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "WAITING", 0)
    with closing(Passwords(users(ada=HASH))) as checked, pytest.raises(DittoError) as caught:
        asyncio.run(check(checked, "ada", "right"))
    assert caught.value.status == 503
