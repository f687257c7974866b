"""Passwords of users: hashes that protect, and checks that stand in nobody's way."""

from __future__ import annotations

import asyncio
import base64
import threading
from contextlib import closing
from typing import Any

import pytest

from ackstream.errors import SettingsError
from ackstream.gateway.access import passwords
from ackstream.gateway.access.passwords import (
    FORGOTTEN,
    FREE_OF_ADDRESS,
    FREE_OF_USER,
    LONGEST,
    Attempts,
    Passwords,
    check_users,
    hash_password,
    matches,
)
from ackstream.protocol.errors import DittoError
from ackstream.settings import Gateway

HASH, HOME = hash_password("right", b"a salt of theirs"), "192.0.2.1"
SALT, DIGEST = HASH.split("$")[4:]


def users(**hashes: Any) -> Any:
    return Gateway(users=hashes).users


def basic(name: str, password: str) -> str:
    return base64.b64encode(f"{name}:{password}".encode()).decode()


def test_a_password_matches_its_own_hash_alone() -> None:
    hashed = hash_password("grüß")
    assert matches("grüß", hashed)
    assert not matches("gruss", hashed)
    assert hashed != hash_password("grüß")


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
        check_users(Gateway(users={"ada": hashed}))
    assert hashed not in str(caught.value)


def test_a_hash_of_more_cost_is_accepted() -> None:
    check_users(Gateway(users={"ada": f"scrypt$32768$8$2${SALT}${DIGEST}"}))


def test_a_password_that_was_right_is_wrong_once_the_user_has_another_or_is_gone() -> None:
    async def go() -> list[Any]:
        with closing(Passwords(users(ada=HASH))) as checked:
            found = [await checked.check(basic("ada", "right"), HOME)]
            before = checked.accounts["ada"]
            checked.replace(users(ada=hash_password("other")))
            found.append(await checked.check(basic("ada", "right"), HOME))
            assert checked.accounts["ada"].stamp != before.stamp
            checked.replace({})
            found.append(await checked.check(basic("ada", "other"), HOME))
            assert "ada" not in checked.accounts
            return found

    assert asyncio.run(go()) == [("ada", True), ("ada", False), ("ada", False)]


def test_a_user_whose_roles_change_is_another_one() -> None:
    with closing(Passwords(users(ada=HASH))) as checked:
        first = checked.accounts["ada"]
        checked.replace(users(ada={"password": HASH, "roles": ["operator"]}))
        second = checked.accounts["ada"]
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
            assert await checked.check(basic("ada", "right"), HOME) == ("ada", True)
            slow = Slow()
            monkeypatch.setattr(passwords, "matches", slow)
            guesses = [checked.check(basic(f"eve-{n}", "x"), f"10.0.{n // 250}.{n % 250}") for n in range(1_000)]
            tasks = [asyncio.ensure_future(guess) for guess in guesses]
            await asyncio.sleep(0)
            known = await checked.check(basic("ada", "right"), HOME)
            done, waiting = await asyncio.wait(tasks, timeout=0.1)
            assert len(waiting) == passwords.WAITING
            assert slow.count <= checked._threads._max_workers
            slow.free.set()
            await asyncio.wait(waiting)
            return known, {task.exception().status for task in done}  # type: ignore[union-attr]

    assert asyncio.run(go()) == (("ada", True), {503})


def test_connections_with_the_same_password_share_one_check(monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> Any:
        with closing(Passwords(users(ada=HASH))) as checked:
            slow = Slow()
            slow.free.set()
            monkeypatch.setattr(passwords, "matches", slow)
            found = await asyncio.gather(*(checked.check(basic("ada", "right"), HOME) for _ in range(100)))
            return set(found), slow.count

    assert asyncio.run(go()) == ({("ada", True)}, 1)


def test_a_client_that_goes_away_takes_no_check_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> Any:
        with closing(Passwords(users(ada=HASH))) as checked:
            slow = Slow()
            monkeypatch.setattr(passwords, "matches", slow)
            gone, stays = (asyncio.ensure_future(checked.check(basic("ada", "right"), HOME)) for _ in range(2))
            await asyncio.sleep(0)
            gone.cancel()
            slow.free.set()
            return await stays

    assert asyncio.run(go()) == ("ada", True)


def test_too_many_at_once_is_no_wrong_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "WAITING", 0)
    with closing(Passwords(users(ada=HASH))) as checked, pytest.raises(DittoError) as caught:
        asyncio.run(checked.check(basic("ada", "right"), HOME))
    assert caught.value.status == 503


def test_of_ten_thousand_wrong_passwords_few_are_compared_and_none_of_a_client_that_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(passwords, "HELD_SECONDS", 0)
    compared = 0

    def count(password: str, hashed: str) -> bool:
        nonlocal compared
        compared += 1
        return compare(password, hashed)

    compare = passwords.matches
    monkeypatch.setattr(passwords, "matches", count)

    async def go() -> tuple[Any, list[int]]:
        with closing(Passwords(users(ada=HASH, bob=HASH))) as checked:
            assert await checked.check(basic("ada", "right"), HOME) == ("ada", True)
            statuses = []
            for number in range(10_000):
                try:
                    assert not (await checked.check(basic("bob", f"guess {number}"), HOME))[1]
                except DittoError as error:
                    statuses.append(error.status)
            # bob from elsewhere waits, as anyone there may guess; ada is known, and waits nowhere
            with pytest.raises(DittoError, match="Too many wrong passwords"):
                await checked.check(basic("bob", "right"), "192.0.2.2")
            return await checked.check(basic("ada", "right"), HOME), statuses

    known, statuses = asyncio.run(go())
    assert known == ("ada", True)
    assert set(statuses) == {429}
    assert len(statuses) == 10_000 - (compared - 1)
    assert compared < 20


def test_the_right_password_is_not_delayed_by_connections_that_bring_it_together() -> None:
    async def go() -> set[Any]:
        with closing(Passwords(users(ada=HASH))) as checked:
            found = await asyncio.gather(*(checked.check(basic("ada", "right"), HOME) for _ in range(100)))
            for _ in range(30):
                checked.replace(users(ada=hash_password("right")))
                found.append(await checked.check(basic("ada", "right"), HOME))
            return set(found)

    assert asyncio.run(go()) == {("ada", True)}


OFFICE = "192.0.2.2"
NOW = 1_000.0


def guess(attempts: Attempts, user: str, address: str, seconds: float, pause: float = 0.01) -> int:
    """Try passwords one after the other for some time; return how many were compared."""
    now, compared = NOW, 0
    while now < NOW + seconds:
        compared += not attempts.begin(user, address, now)
        now += pause
    return compared


def test_wrong_passwords_of_a_user_are_compared_ever_more_rarely() -> None:
    attempts = Attempts()
    for _ in range(FREE_OF_USER):
        assert attempts.begin("ada", HOME, NOW) == 0
    now = NOW
    for delay in (1, 2, 4, 8, 16, 32, 60, 60):
        assert attempts.begin("ada", HOME, now) == pytest.approx(delay)
        now += delay
        assert attempts.begin("ada", HOME, now) == 0
    # the same from anywhere else
    assert attempts.begin("ada", OFFICE, now) == LONGEST
    assert attempts.begin("bob", OFFICE, now) == 0


def test_ten_thousand_guesses_are_a_few() -> None:
    assert guess(Attempts(), "ada", HOME, 100) <= FREE_OF_USER + 7


def test_an_address_that_tries_one_password_with_many_users_waits_too() -> None:
    attempts = Attempts()
    compared = sum(not attempts.begin(f"user-{number}", HOME, NOW + number / 100) for number in range(10_000))
    assert compared <= FREE_OF_ADDRESS + 7
    assert attempts.begin("ada", OFFICE, NOW) == 0


def test_attempts_that_are_made_at_once_count_before_they_have_failed() -> None:
    attempts = Attempts()
    assert sum(not attempts.begin("ada", HOME, NOW) for _ in range(1_000)) == FREE_OF_USER


def test_the_right_password_ends_the_delays() -> None:
    attempts = Attempts()
    for _ in range(3 * FREE_OF_ADDRESS):
        assert attempts.begin("ada", HOME, NOW) == 0
        attempts.succeeded("ada", HOME)
    for _ in range(FREE_OF_USER):
        assert attempts.begin("ada", HOME, NOW) == 0


def test_a_user_who_has_signed_in_from_an_address_is_not_locked_out_by_others() -> None:
    attempts = Attempts()
    assert attempts.begin("ada", HOME, NOW) == 0
    attempts.succeeded("ada", HOME)
    guess(attempts, "ada", OFFICE, 10)
    assert attempts.begin("ada", OFFICE, NOW + 10) > 0
    assert attempts.begin("ada", HOME, NOW + 10) == 0


def test_one_right_password_does_not_cover_guesses_at_those_of_others() -> None:
    attempts, compared = Attempts(), 0
    for number in range(1_000):
        compared += not attempts.begin(f"user-{number}", HOME, NOW)
        if not attempts.begin("mallory", HOME, NOW):
            attempts.succeeded("mallory", HOME)
    assert compared <= FREE_OF_ADDRESS


def test_after_a_while_all_is_as_at_first() -> None:
    attempts = Attempts()
    guess(attempts, "ada", HOME, 100)
    assert attempts.begin("ada", HOME, NOW + 100 + FORGOTTEN) == 0
    assert attempts.begin("ada", HOME, NOW + 100 + FORGOTTEN) == 0


def test_no_more_than_a_number_of_names_is_remembered() -> None:
    attempts = Attempts()
    for number in range(25_000):
        attempts.begin(f"user-{number}", f"10.{number // 65536}.{number // 256 % 256}.{number % 256}", NOW)
    assert len(attempts._failures) <= 20_000
