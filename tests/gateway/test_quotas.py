"""What the subjects of a tenant may have open at a gateway."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from ackstream.gateway.errors import GatewayError
from ackstream.gateway.quotas import OpenCounts
from ackstream.settings import Quota

ACME = Quota(name="acme", subjects=("user:acme-*", "jwt:acme"), max_open_requests=2, max_sockets=1)
SITE = Quota(name="site", subjects=("user:*",), max_open_requests=3)


def opened(counts: OpenCounts, stack: ExitStack, *subjects: str) -> Any:
    """Open one; return the error if there is no room for it."""
    try:
        stack.enter_context(counts.one(subjects))
    except GatewayError as error:
        return error
    return None


def test_the_requests_of_a_tenant_s_subjects_count_together_and_others_do_not() -> None:
    counts = OpenCounts([ACME, SITE], "requests")
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
    counts = OpenCounts([ACME], "sockets")
    for error in (None, ValueError("x")):
        with pytest.raises(ValueError, match="x") if error else ExitStack(), counts.one(("jwt:acme",)):
            with pytest.raises(GatewayError, match="1 sockets"), counts.one(("user:acme-1",)):
                pass
            if error:
                raise error


def test_a_quota_without_such_a_limit_limits_nothing() -> None:
    counts = OpenCounts([SITE], "sockets")
    with ExitStack() as stack:
        assert [opened(counts, stack, "user:a") for _ in range(10)] == [None] * 10
