"""What the subjects of a tenant may have open at a gateway."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from ackstream.client.requests.replies import RequestOutcome
from ackstream.gateway.errors import GatewayError
from ackstream.gateway.middleware.quotas import OpenCounts
from ackstream.protocol.ditto.acknowledgements import Acknowledgement
from ackstream.settings import Quota
from tests.gateway.access.test_authentication import USERS, as_
from tests.gateway.parts import Web, response

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


@pytest.mark.parametrize("acks", ["", "?requested-acks=my-ack&response-required=false&timeout=5s"])
def test_a_request_beyond_the_quota_of_its_sender_is_not_sent(acks: str):
    quota = Quota(name="acme", subjects=("user:ada",), max_open_requests=1)
    access = {"subjects": ["user:*"], "grant": ["READ", "WRITE"]}
    web = Web(response(204) if not acks else settled, quotas=(quota,), users=USERS, access=[access])
    path = f"/things/org.acme:lamp/attributes/x{acks}"
    with web.dependencies.open_requests.one(("user:ada",)):
        refused = web("PUT", path, json=1, **as_("ada"))
        assert (refused.status_code, refused.json()["error"]) == (429, "too.many.requests")
        assert refused.headers["retry-after"] == "1"
        assert web.exchange.sent == []
        assert web("PUT", path, json=1, **as_("bob")).status_code < 300
    for _ in range(3):
        assert web("PUT", path, json=1, **as_("ada")).status_code < 300


def settled(_command: Any) -> Any:
    return RequestOutcome(200, "acknowledgements", [Acknowledgement("my-ack", 200)])
