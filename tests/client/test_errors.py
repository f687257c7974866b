from __future__ import annotations

import pytest

from ackstream.client.errors import BadFilterError, NoSubscriptionMatchError, RefusedError, error_name, refused


@pytest.mark.parametrize(
    ("reason", "name", "kind"),
    [
        ("bad filter", "BadFilter", BadFilterError),
        ("NO_SUBSCRIPTION_MATCH", "NoSubscriptionMatch", NoSubscriptionMatchError),
        ("sow store failed", "SowStoreFailed", RefusedError),
    ],
)
def test_reasons_are_typed_errors(reason: str, name: str, kind: type[RefusedError]) -> None:
    assert error_name(reason) == name
    error = refused(reason)
    assert type(error) is kind
    assert error.reason == reason
