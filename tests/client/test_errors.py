from __future__ import annotations

import pytest

from ackstream.client.errors import BadFilterError, NoSubscriptionMatchError, RefusedError


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("bad filter", BadFilterError),
        ("NO_SUBSCRIPTION_MATCH", NoSubscriptionMatchError),
        ("sow store failed", RefusedError),
    ],
)
def test_reasons_are_typed_errors(reason: str, kind: type[RefusedError]) -> None:
    error = RefusedError.of(reason)
    assert type(error) is kind
    assert error.reason == reason
