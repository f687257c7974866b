from __future__ import annotations

from typing import Any

import pytest

from ackstream.jobs.persist.admission import Admission, Verdict
from ackstream.settings import Persist, PublishRule
from ackstream.settings.queues import QueueSettings


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
