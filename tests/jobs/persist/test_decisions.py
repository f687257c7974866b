from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.jobs.persist.decisions import AckRun, Admission, Conflation, Verdict
from ackstream.settings import Persist, PublishRule
from ackstream.settings.jobs import QueueSettings


def _runs(*outcomes: tuple[int, str | None], expected: int = 1) -> list[tuple[int, int, str | None]]:
    conflation = Conflation(expected)
    for seq, reason in outcomes:
        conflation.decide(seq, reason)
    return [(run.first, run.last, run.reason) for run in conflation.take()]


@pytest.mark.parametrize(
    ("outcomes", "runs"),
    [
        ([(1, None), (2, None), (3, "x"), (4, None), (5, None)], [(1, 2, None), (3, 3, "x"), (4, 5, None)]),
        ([(3, None), (1, None), (2, "x")], [(1, 1, None), (2, 2, "x"), (3, 3, None)]),
        ([(1, "x"), (2, "x")], [(1, 1, "x"), (2, 2, "x")]),
        ([(1, None), (3, None), (4, "x")], [(1, 1, None)]),
        ([(2, None)], []),
        ([(1, None), (2, None), (1, None)], [(1, 1, None), (1, 1, "duplicate"), (2, 2, None)]),
        ([(1, "x"), (1, None)], [(1, 1, "x"), (1, 1, "x")]),
        ([(0, None), (1, None)], [(0, 0, "duplicate"), (1, 1, None)]),
    ],
)
def test_outcomes_are_merged_up_to_the_first_undecided_number(
    outcomes: list[tuple[int, str | None]], runs: list[tuple[int, int, str | None]]
) -> None:
    assert _runs(*outcomes) == runs


def test_skipped_numbers_are_not_acknowledged() -> None:
    conflation = Conflation(1)
    for seq, reason in [(1, None), (3, "x"), (6, None), (7, None)]:
        conflation.decide(seq, reason)
    conflation.skip(6)
    assert list(conflation.absent) == [(2, 5)]
    assert conflation.take() == [AckRun(6, 7, None)]
    assert conflation.watermark == 7


def test_outcomes_behind_a_hole_are_acknowledged_when_it_is_filled() -> None:
    conflation = Conflation(1)
    conflation.decide(2, "x")
    conflation.decide(3, None)
    assert conflation.take() == []
    conflation.decide(1, None)
    assert conflation.take() == [AckRun(1, 1, None), AckRun(2, 2, "x"), AckRun(3, 3, None)]
    assert conflation.take() == []


def test_runs_without_requested_acks_are_not_reported() -> None:
    conflation = Conflation(1)
    conflation.decide(1, None, asked=False)
    conflation.decide(2, "x", asked=False)
    assert conflation.take() == []
    conflation.decide(3, None)
    assert conflation.take() == [AckRun(3, 3, None)]


def test_a_success_never_covers_a_failure_that_nobody_asked_about() -> None:
    conflation = Conflation(1)
    for seq in range(1, 6):
        conflation.decide(seq, "x" if seq == 3 else None, asked=seq in (1, 5))
    assert conflation.take() == [AckRun(1, 2, None), AckRun(4, 5, None)]


def test_withdrawn_numbers_hold_nothing_up_and_are_no_success() -> None:
    conflation = Conflation(1)
    conflation.decide(1, None)
    conflation.decide(4, "x")
    conflation.withdraw(2, 10**18)
    conflation.withdraw(2, 3)
    assert list(conflation.absent) == [(2, 10**18)]
    conflation.decide(10**18 + 1, None)
    assert conflation.take() == [
        AckRun(1, 1, None),
        AckRun(4, 4, "x"),
        AckRun(10**18 + 1, 10**18 + 1, None),
    ]


def test_a_withdrawn_run_behind_a_hole_counts_as_one_message() -> None:
    conflation = Conflation(1)
    conflation.decide(2, None)
    conflation.withdraw(3, 10**18)
    assert conflation.held_count == 2
    conflation.decide(1, None)
    assert conflation.held_count == 0
    assert conflation.take() == [AckRun(1, 2, None)]


def test_a_single_ack_is_sent_in_order_with_its_id_and_ends_the_run_before_it() -> None:
    conflation = Conflation(1)
    conflation.decide(1, None)
    conflation.decide(3, None, single="c3")
    conflation.decide(4, "x", single="c4")
    conflation.decide(5, None)
    conflation.decide(6, None, asked=False, single="c6")
    assert conflation.take() == [AckRun(1, 1, None)]
    assert conflation.beyond[-1] == {3: "c3", 4: "c4", 6: "c6"}
    again = Conflation(2, failed={4: "x"})
    again.restore(*conflation.beyond)
    again.decide(2, None)
    again.decide(7, None)
    assert again.take() == [
        AckRun(2, 2, None), AckRun(3, 3, None, "c3"), AckRun(4, 4, "x", "c4"), AckRun(5, 5, None), AckRun(7, 7, None),
    ]  # fmt: skip
    again.decide(3, None, single="c3")
    assert again.take() == [AckRun(3, 3, "duplicate", "c3")]


Outcome = st.tuples(st.sampled_from(["stored", "stored", "refused", "withdrawn"]), st.booleans())


@given(outcomes=st.lists(Outcome, max_size=20), data=st.data())
def test_successes_are_about_stored_messages_whoever_asked_and_wherever_the_state_is_kept(
    outcomes: list[tuple[str, bool]], data: st.DataObject
) -> None:
    conflation = Conflation(1)
    failed: dict[int, str] = {}
    runs: list[AckRun] = []
    for seq, (what, asked) in data.draw(st.permutations(list(enumerate(outcomes, start=1)))):
        if what == "withdrawn":
            conflation.withdraw(seq, seq)
        else:
            conflation.decide(seq, "x" if what == "refused" else None, asked=asked)
            failed |= {seq: "x"} if what == "refused" else {}
        if data.draw(st.booleans()):
            runs += conflation.take()
            held = conflation.beyond
            conflation = Conflation(conflation.watermark + 1, failed=failed)
            conflation.restore(*held)
    runs += conflation.take()
    told = {seq: run.reason for run in runs for seq in range(run.first, run.last + 1)}
    for seq, (what, asked) in enumerate(outcomes, start=1):
        if seq in told:
            assert (told[seq] is None) == (what == "stored")
        assert seq in told or not asked or what == "withdrawn"


OUTCOMES = st.lists(st.sampled_from([None, None, "x", "y"]), max_size=30)


@given(outcomes=OUTCOMES, data=st.data())
def test_neither_the_order_of_outcomes_nor_the_moments_of_asking_change_the_acks(
    outcomes: list[str | None], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(list(enumerate(outcomes, start=1))))
    conflation = Conflation(1)
    runs: list[AckRun] = []
    for seq, reason in order:
        conflation.decide(seq, reason)
        if data.draw(st.booleans()):
            runs += conflation.take()
    runs += conflation.take()
    learnt = {seq: run.reason for run in runs for seq in range(run.first, run.last + 1)}
    assert learnt == dict(enumerate(outcomes, start=1))
    assert [run.first for run in runs] == sorted(run.first for run in runs)
    assert sum(run.last - run.first + 1 for run in runs) == len(outcomes)
    assert all(run.first == run.last for run in runs if run.reason is not None)


@given(decided=st.sets(st.integers(1, 40)))
def test_a_success_never_passes_a_number_that_is_not_decided(decided: set[int]) -> None:
    conflation = Conflation(1)
    for seq in decided:
        conflation.decide(seq, None)
    assert {seq for run in conflation.take() for seq in range(run.first, run.last + 1)} == {
        seq for seq in decided if set(range(1, seq)) <= decided
    }


# -- admission ---------------------------------------------------------------------------------------------------------


def _reason(limits: Persist, topic: str, client: str = "p1") -> str | None:
    return Admission(limits).judge(client, topic, 10, expired=False, stored_today=0).reason


@pytest.mark.parametrize(
    ("pattern", "topic", "fits"),
    [
        ("orders/*", "orders/new", True),
        ("orders/*", "order", False),
        # only the star is special
        ("a[bc]", "ab", False),
        ("a[bc]", "a[bc]", True),
        ("orders?", "ordersX", False),
        ("orders?", "orders?", True),
    ],
)
def test_topics_subscriptions_and_entitlements_are_patterns_with_stars(pattern: str, topic: str, *, fits: bool) -> None:
    rule = PublishRule(clients=("*",), topics=(pattern,))
    assert _reason(Persist(topics=(pattern,)), topic) == (None if fits else "invalid topic")
    assert _reason(Persist(entitlements=(rule,)), topic) == (None if fits else "not entitled")
    assert _reason(Persist(subscriptions=(pattern,)), topic) == (None if fits else "no subscription match")


@pytest.mark.parametrize(("topic", "reason"), [("ä" * 512, None), ("ä" * 512 + "x", "invalid topic")])
def test_a_topic_has_a_limited_length(topic: str, reason: str | None) -> None:
    assert _reason(Persist(), topic) == reason


def test_an_entitlement_names_the_client_and_the_topic_together() -> None:
    rules = (PublishRule(clients=("p1",), topics=("a",)), PublishRule(clients=("q*",), topics=("b",)))
    limits = Persist(entitlements=rules)
    assert [
        _reason(limits, topic, client) for client, topic in [("p1", "a"), ("q7", "b"), ("p1", "b"), ("q7", "a")]
    ] == [
        None,
        None,
        "not entitled",
        "not entitled",
    ]


@pytest.mark.parametrize(
    ("size", "expired", "stored_today", "verdict"),
    [
        (100, False, 0, Verdict()),
        (101, True, 0, Verdict("message too large")),
        (100, True, 0, Verdict("message expired")),
        (100, False, 100, Verdict()),
        (100, False, 101, Verdict("spool over quota")),
    ],
)
def test_size_age_and_quota(size: int, stored_today: int, verdict: Verdict, *, expired: bool) -> None:
    admission = Admission(Persist(max_message_bytes=100, daily_quota_bytes=200))
    assert admission.judge("p1", "t", size, expired=expired, stored_today=stored_today) == verdict


def test_a_topic_without_a_log_is_judged_like_others_and_not_stored() -> None:
    rules = (PublishRule(clients=("*",), topics=("fast/*",)),)
    admission = Admission(Persist(unlogged=("fast/*", "secret"), entitlements=rules, max_message_bytes=100))
    assert admission.judge("p1", "fast/a", 10, expired=False, stored_today=0) == Verdict(stored=False, logged=False)
    assert admission.judge("p1", "fast/a", 101, expired=False, stored_today=0) == Verdict(
        "message too large", logged=False
    )
    assert admission.judge("p1", "secret", 10, expired=False, stored_today=0) == Verdict("not entitled", logged=False)


@pytest.mark.parametrize(("ingress", "reason"), [("open", None), ("refuse", "queue shutdown"), ("discard", None)])
def test_a_message_is_refused_as_a_whole_if_one_of_its_queues_refuses_it(ingress: Any, reason: str | None) -> None:
    queues = [
        QueueSettings(name="a", topics=("orders/*",)),
        QueueSettings(name="b", topics=("*/new",), ingress=ingress),
    ]
    admission = Admission(Persist(), queues)
    verdicts = [admission.judge("p1", topic, 1, expired=False, stored_today=0) for topic in ("orders/new", "orders/x")]
    assert [verdict.reason for verdict in verdicts] == [reason, None]


def test_instead_of_being_rejected_a_message_may_be_dropped() -> None:
    limits = Persist(subscriptions=("a",), reject_no_match=False, daily_quota_bytes=5, reject_over_quota=False)
    admission = Admission(limits)
    assert admission.judge("p1", "b", 1, expired=False, stored_today=0) == Verdict(stored=False)
    assert admission.judge("p1", "a", 6, expired=False, stored_today=0) == Verdict(stored=False)
