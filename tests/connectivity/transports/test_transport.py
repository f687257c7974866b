"""What the contract of transports reports of a message that was not published."""

from __future__ import annotations

import pytest

from ackstream.connectivity.transports.transport import Published, not_published


@pytest.mark.parametrize(("status", "away"), [(400, False), (408, True), (500, True), (503, True)])
def test_what_failed_is_published_again_unless_it_is_the_fault_of_the_message(
    status: int,
    away: bool,  # noqa: FBT001 - a table
) -> None:
    assert not_published(ConnectionError("gone"), status).away is away


def test_what_failed_is_reported_by_name_and_text() -> None:
    result = not_published(ConnectionError("gone"), 503)
    assert (result.status, result.succeeded, result.away) == (503, False, True)
    assert bytes(result.payload) == b'{"message":"Encountered <ConnectionError>.","description":"gone"}'
    assert result.reason == '503 {"message":"Encountered <ConnectionError>.","description":"gone"}'
    assert Published(404).reason == "404"
