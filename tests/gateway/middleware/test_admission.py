"""What one subject, and one address, may have of a gateway."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.gateway.middleware import admission
from ackstream.observe.outcomes import RequestOutcome
from ackstream.protocol.ditto.acknowledgements import Acknowledgement
from ackstream.protocol.errors import DittoError
from ackstream.protocol.rql.patterns import MAX_STEPS
from ackstream.settings import Gateway, Quota
from tests.gateway.access.test_authentication import USERS, as_
from tests.gateway.parts import Web, response

NOW = 1_000.0


def client(host: str | None) -> Any:
    """Return the connection of a client."""
    return SimpleNamespace(client=None if host is None else SimpleNamespace(host=host))


def refused(call: Any, *args: Any) -> DittoError:
    with pytest.raises(DittoError) as caught:
        call(*args)
    assert caught.value.status == 429
    assert dict(caught.value.headers)["retry-after"].isdigit()
    return caught.value


# -- rates -------------------------------------------------------------------------------------------------------------


def test_a_burst_may_come_at_once_and_then_as_many_as_the_rate_allows() -> None:
    rate = admission.Rate(per_second=2, burst=3)
    assert [rate.take("a", NOW) for _ in range(4)] == [0, 0, 0, pytest.approx(0.5, abs=1e-4)]
    assert rate.take("b", NOW) == 0
    # what was refused is not counted
    assert [rate.take("a", NOW + 0.5) for _ in range(2)] == [0, pytest.approx(0.5, abs=1e-4)]
    # after a long time there is a burst again, and no more than that
    assert [rate.take("a", NOW + 100) for _ in range(4)] == [0, 0, 0, pytest.approx(0.5, abs=1e-4)]


@given(st.lists(st.floats(0, 5), max_size=60))
def test_in_no_time_is_more_allowed_than_the_rate_and_a_burst(pauses: list[float]) -> None:
    rate, now, taken = admission.Rate(4, 8), NOW, []
    for pause in pauses:
        now += pause
        if not rate.take("a", now):
            taken.append(now)
    for first, began in enumerate(taken):
        for last in range(first, len(taken)):
            assert last - first + 1 <= 8 + 4 * (taken[last] - began) + 1e-3


def test_what_waits_for_its_turn_is_spread_evenly() -> None:
    rate = admission.Rate(per_second=2, burst=1)
    assert [rate.reserve("a", NOW) for _ in range(4)] == pytest.approx([0, 0.5, 1, 1.5], abs=1e-4)


def test_keys_whose_time_is_over_are_forgotten() -> None:
    rate = admission.Rate(1, 1)
    for number in range(1_000):
        rate.take(str(number), NOW + number)
    assert len(rate._even) <= 2


def test_a_tally_keeps_no_key_of_which_nothing_is_open() -> None:
    tally = admission.ConcurrencyCounter()
    for _ in range(2):
        tally["a"] += 1
    tally.remove("a")
    assert tally["a"] == 1
    tally.remove("a")
    assert (tally["a"], len(tally)) == (0, 0)


# -- of a gateway ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "counted"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("127.0.0.9", None),
        ("::1", None),
        ("::ffff:127.0.0.1", None),
        # as some proxies write into X-Forwarded-For: those are one address
        ("unknown", "unknown"),
        ("", None),
    ],
)
def test_an_address_of_another_machine_is_counted_and_of_ipv6_its_network(host: str, counted: str | None) -> None:
    assert admission.network(host) == counted


def test_requests_are_limited_by_subject_and_by_address() -> None:
    limits = admission.Limits(Gateway(max_requests=10))
    for _ in range(20):
        limits.admit("user:ada", NOW)
    error = refused(limits.admit, "user:ada", NOW)
    assert (error.error, error.message) == (
        "too.many.requests", "The subject user:ada sends more requests than gateway.max_requests."
    )  # fmt: skip
    limits.admit("user:bob", NOW)
    limits.admit("user:ada", NOW + 1)
    for _ in range(20):
        limits.arrive(client("192.0.2.7"), NOW)
    assert "address 192.0.2.7" in refused(limits.arrive, client("192.0.2.7"), NOW).message
    limits.arrive(client("192.0.2.8"), NOW)
    # behind a proxy on this machine, that does not say more, are all clients
    for host in ("127.0.0.1", None):
        for _ in range(100):
            limits.arrive(client(host), NOW)


def test_without_authentication_nobody_is_told_apart_and_what_all_send_together_is_not_counted() -> None:
    limits = admission.Limits(Gateway(max_requests=1, max_sockets=1))
    with ExitStack() as stack:
        for _ in range(10):
            limits.arrive(client("127.0.0.1"), NOW)
            limits.admit(admission.ANONYMOUS, NOW)
            assert limits.message(admission.ANONYMOUS, NOW) == 0
            stack.enter_context(limits.socket(client("127.0.0.1"), admission.ANONYMOUS))


def test_messages_of_sockets_wait_where_requests_are_refused() -> None:
    limits = admission.Limits(Gateway(max_requests=10))
    assert [limits.message("user:ada", NOW) for _ in range(22)] == pytest.approx([*[0] * 20, 0.1, 0.2], abs=1e-4)
    refused(limits.admit, "user:ada", NOW)
    assert limits.message("user:bob", NOW) == 0


def test_sockets_are_limited_by_subject_and_by_address_until_they_close() -> None:
    limits = admission.Limits(Gateway(max_sockets=2, max_sockets_per_address=3))
    far, near = client("192.0.2.7"), client("127.0.0.1")

    def open_(where: Any, subject: str) -> None:
        stack.enter_context(limits.socket(where, subject))

    with ExitStack() as stack:
        open_(far, "a")
        open_(far, "a")
        assert refused(open_, far, "a").message.startswith("The subject a has 2 WebSockets")
        assert refused(open_, near, "a").message.startswith("The subject a")
        open_(far, "b")
        assert refused(open_, far, "c").message.startswith("The address 192.0.2.7 has 3 WebSockets")
        for subject in "cdefg":
            open_(near, subject)
    with ExitStack() as stack:
        open_(far, "c")


@pytest.mark.parametrize(("what", "most"), [("search", admission.SEARCHES), ("story", admission.STORIES)])
def test_a_subject_has_few_searches_open(what: str, most: int) -> None:
    limits = admission.Limits(Gateway())

    def open_(subject: str) -> None:
        stack.enter_context(getattr(limits, what)(subject))

    with ExitStack() as stack:
        for _ in range(most):
            open_("a")
        refused(open_, "a")
        open_("b")
    with ExitStack() as stack:
        open_("a")


def test_the_filters_of_a_subject_take_a_part_of_the_loop_whatever_they_are_and_however_many() -> None:
    limits, spent = admission.Limits(Gateway()), 0
    for _ in range(1_000):
        with suppress(DittoError), limits.filtering("a", NOW) as effort:
            effort.spend(admission.STEPS_PER_SIGNAL)
            spent += admission.STEPS_PER_SIGNAL
    with pytest.raises(DittoError, match="The filters of the subject a take too much time"), limits.filtering("a", NOW):
        pass
    assert spent <= MAX_STEPS + admission.STEPS_PER_SIGNAL
    with limits.filtering("b", NOW) as effort:
        effort.spend(admission.STEPS_PER_SIGNAL)
    # what one signal costs too much counts, too
    with pytest.raises(DittoError, match="more than 5000 steps"), limits.filtering("b", NOW) as effort:
        effort.spend(admission.STEPS_PER_SIGNAL + 1)
    later = NOW + spent / admission.STEPS_PER_SECOND
    with limits.filtering("a", later) as effort:
        effort.spend(admission.STEPS_PER_SIGNAL)


ACME = Quota(name="acme", subjects=("user:acme-*", "jwt:acme"), max_open_requests=2, max_sockets=1)
SITE = Quota(name="site", subjects=("user:*",), max_open_requests=3)


def opened(counts: admission.OpenCounts, stack: ExitStack, *subjects: str) -> Any:
    """Open one; return the error if there is no room for it."""
    try:
        stack.enter_context(counts.one(subjects))
    except DittoError as error:
        return error
    return None


def test_the_requests_of_a_tenant_s_subjects_count_together_and_others_do_not() -> None:
    counts = admission.OpenCounts([ACME, SITE], "requests")
    with ExitStack() as stack:
        assert opened(counts, stack, "user:acme-1") is None
        assert opened(counts, stack, "user:bank", "jwt:acme") is None
        refused = opened(counts, stack, "user:acme-2")
        assert (refused.status, refused.error) == (429, "too.many.requests")
        assert refused.message == "The quota 'acme' has 2 open requests, which is the maximum."
        assert ("retry-after", "1") in refused.headers
        # what was refused is not counted, by no quota
        assert opened(counts, stack, "user:bank") is None
        assert opened(counts, stack, "user:bank").message.startswith("The quota 'site' has 3")
        assert opened(counts, stack, "jwt:bank") is None


def test_what_is_finished_makes_room_whatever_ends_it() -> None:
    counts = admission.OpenCounts([ACME], "sockets")
    for error in (None, ValueError("x")):
        with pytest.raises(ValueError, match="x") if error else ExitStack(), counts.one(("jwt:acme",)):
            with pytest.raises(DittoError, match="1 sockets"), counts.one(("user:acme-1",)):
                pass
            if error:
                raise error


def test_a_quota_without_such_a_limit_limits_nothing() -> None:
    counts = admission.OpenCounts([SITE], "sockets")
    with ExitStack() as stack:
        assert [opened(counts, stack, "user:a") for _ in range(10)] == [None] * 10


@pytest.mark.parametrize("acks", ["", "?requested-acks=my-ack&response-required=false&timeout=5s"])
def test_a_request_beyond_the_quota_of_its_sender_is_not_sent(acks: str):
    quota = Quota(name="acme", subjects=("user:ada",), max_open_requests=1)
    access = {"subjects": ["user:*"], "grant": ["READ", "WRITE"]}
    web = Web(response(204) if not acks else settled, quotas=(quota,), users=USERS, access=[access])
    path = f"/things/org.acme:lamp/attributes/x{acks}"
    with web.dependencies.admission.open_requests.one(("user:ada",)):
        refused = web("PUT", path, json=1, **as_("ada"))
        assert (refused.status_code, refused.json()["error"]) == (429, "too.many.requests")
        assert refused.headers["retry-after"] == "1"
        assert web.exchange.sent == []
        assert web("PUT", path, json=1, **as_("bob")).status_code < 300
    for _ in range(3):
        assert web("PUT", path, json=1, **as_("ada")).status_code < 300


def settled(_command: Any) -> Any:
    return RequestOutcome(200, "acknowledgements", [Acknowledgement("my-ack", 200)])
