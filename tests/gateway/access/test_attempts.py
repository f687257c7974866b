"""How soon a password may be tried again."""

from __future__ import annotations

import pytest

from ackstream.gateway.access.attempts import FORGOTTEN, FREE_OF_ADDRESS, FREE_OF_USER, LONGEST, Attempts

HOME, OFFICE = "192.0.2.1", "192.0.2.2"
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
