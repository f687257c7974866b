"""The plan of ``python -m benchmarks.addresses``, and its verdict on what arrived."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.addresses import FULL, SMALL, write
from benchmarks.addressing.plan import Arrived, Plan, Sent, judge, number_in, waits
from benchmarks.addressing.remotes import HttpService

PLAN = Plan(messages=40, addresses=8, never=3, unsettled=12)
SENT = {number: Sent(PLAN.address(number), float(number)) for number in range(48)}
ALL = [Arrived(PLAN.address(number), number, number + 0.5) for number in SENT if not PLAN.bad(number)]
LETTERS = [(number, "plant/3 has not accepted it: 503 (c-3)") for number in SENT if PLAN.bad(number)]


def faults(arrived: list[Arrived], letters: list[tuple[int, str]]) -> dict[str, Any]:
    return {name: found["first"] for name, found in judge(PLAN, SENT, arrived, letters)["faults"].items()}


def test_a_run_in_which_all_good_ones_arrived_and_all_bad_ones_are_dead_letters_holds() -> None:
    found = judge(PLAN, SENT, ALL, LETTERS)
    assert found["faults"] == {}
    assert (found["accepted"], found["repeated"], found["dead_letters"]) == (42, 0, 6)
    assert found["reasons"] == {"has not accepted it: 503": 6}


def test_ids_and_addresses_are_those_of_one_thing_each_and_some_are_outside_ascii() -> None:
    assert len(set(PLAN.names)) == PLAN.addresses
    assert not all(name.isascii() for name in PLAN.names)
    assert not all(PLAN.identity(number).isascii() for number in SENT)
    assert len({PLAN.identity(number) for number in SENT}) == len(SENT)
    event = json.loads(PLAN.event(11))
    assert event["topic"].split("/")[1] == PLAN.names[PLAN.address(11)]
    assert number_in(PLAN.event(11)) == 11


def test_messages_beyond_the_plan_are_good() -> None:
    assert not any(PLAN.bad(number) for number in range(40, 1_000))


@pytest.mark.parametrize(
    ("arrived", "letters", "found"),
    [
        pytest.param(ALL[1:], LETTERS, {"lost": [0]}, id="lost"),
        pytest.param(ALL[1:], [*LETTERS, (0, "x")], {"given up though good": [0]}, id="given up"),
        pytest.param([*ALL[1:], ALL[0]], LETTERS, {"out of order": [0]}, id="overtaken"),
        pytest.param([*ALL, ALL[0]], LETTERS, {}, id="repeated"),
        pytest.param([Arrived(1, 0, 0.5), *ALL[1:]], LETTERS, {"at another address": [0]}, id="misplaced"),
        pytest.param(
            sorted([*ALL, Arrived(4, 12, 12.5)], key=lambda each: each.at),
            LETTERS,
            {"accepted though bad": [12]},
            id="taken",
        ),
        pytest.param(ALL, LETTERS[1:], {"bad without a dead letter": [3]}, id="no dead letter"),
        pytest.param(ALL, [(3, ""), *LETTERS[1:]], {"dead letters without a reason": [3]}, id="no reason"),
    ],
)
def test_what_went_wrong_is_named(
    arrived: list[Arrived], letters: list[tuple[int, str]], found: dict[str, Any]
) -> None:
    assert faults(arrived, letters) == found


def test_what_is_accepted_again_is_counted() -> None:
    assert judge(PLAN, SENT, [*ALL, ALL[5], ALL[5]], LETTERS)["repeated"] == 2


def test_the_longest_wait_is_that_of_neighbours_within_the_span() -> None:
    late = {1: 4.0, 4: 9.0, 20: 8.0}
    arrived = [each._replace(at=each.at + late.get(each.number, 0.0)) for each in ALL]
    # 4 and 20 share the address of the message that is never settled
    assert waits(PLAN, SENT, arrived, within=(0.0, 10.0)) == 4.5
    assert waits(PLAN, SENT, arrived, within=(2.0, 10.0)) == 0.5


def test_a_run_takes_the_place_of_earlier_ones_of_its_transports(tmp_path: Any) -> None:
    for found in ({"mqtt": {"sent": 1}, "kafka": {"sent": 2}}, {"mqtt": {"sent": 3}}):
        write(found, FULL, tmp_path / "addresses.json")
    report = json.loads((tmp_path / "addresses.json").read_text("utf-8"))
    assert report["transports"] == {"mqtt": {"sent": 3}, "kafka": {"sent": 2}}


def test_the_outage_of_a_small_run_is_within_it() -> None:
    for load, plan in ((SMALL, HttpService.small), (FULL, HttpService.plan)):
        assert load.outage[1] < plan.messages / load.rate
