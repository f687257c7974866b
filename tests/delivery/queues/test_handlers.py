from __future__ import annotations

import pytest

from ackstream.delivery.errors import OutcomeNotEnabledError
from ackstream.delivery.queues.handlers import AckMode, after_handler, takes_call


@pytest.mark.parametrize(
    ("mode", "returned", "raised"),
    [("client", None, None), ("auto", "accepted", None), ("auto-cancel", "accepted", "failed")],
)
def test_what_the_end_of_a_handler_means(mode: AckMode, returned: str | None, raised: str | None) -> None:
    assert after_handler(mode, raised=False) == returned
    assert after_handler(mode, raised=True) == raised


def test_the_applications_calls_count_where_nobody_else_acknowledges() -> None:
    assert takes_call("client", "rejected")
    assert not takes_call("auto", "accepted")
    with pytest.raises(OutcomeNotEnabledError, match="cannot be settled as failed"):
        takes_call("auto", "failed")
