"""What a gateway counts of its responses, and its probes, which everyone may ask under every name."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from ackstream.gateway.middleware import instruments
from ackstream.gateway.middleware.connections import Doors
from ackstream.gateway.middleware.instruments import EVENT_LOOP, follow, unfollow
from ackstream.observe.catalogue import CONNECTIONS, HTTP_REQUESTS, HTTP_SECONDS, OLDEST, UNREAD
from ackstream.observe.endpoint import HEALTH
from ackstream.observe.figures import FIGURES, Figures
from ackstream.observe.live import KAFKA
from tests.gateway.access.test_authentication import ACCESS, USERS
from tests.gateway.parts import Web, response

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ackstream.protocol.ditto.envelopes import Envelope

THING = "/things/org.acme:lamp"


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> Figures:
    own = Figures()
    monkeypatch.setattr(instruments.ResponseCounter.__init__, "__defaults__", (own,))
    return own


@pytest.fixture
def started() -> Iterator[Doors]:
    """Return the doors of a gateway whose signs of life are expected."""
    doors = Doors(10)
    follow(lambda: doors.open, lambda: 7, lambda: 1_500)
    yield doors
    unfollow()


def test_responses_are_counted_by_method_and_class_refusals_among_them(figures: Figures) -> None:
    web = Web(response(204), users=USERS, access=ACCESS)
    assert web("PUT", f"{THING}/attributes/a", json=1).status_code == 401
    assert web("PUT", f"{THING}/attributes/a", json=1, auth=("ada", "wrong")).status_code == 401
    assert web("BREW", f"{THING}/attributes/a").status_code in (401, 405)
    assert web("GET", "//health/live").status_code == 200
    counted = figures.read()
    assert counted.counters == {(HTTP_REQUESTS.name, "PUT", "4xx"): 2, (HTTP_REQUESTS.name, "other", "4xx"): 1}
    assert sum(counted.histograms[HTTP_SECONDS.name, "PUT"][:-1]) == 2


def test_what_fails_in_the_program_is_counted_too(figures: Figures) -> None:
    def fail(_: Envelope) -> Any:
        raise RuntimeError("no answer")

    # it is answered with 500, and raised for the log of the server
    with pytest.raises(RuntimeError):
        Web(fail)("PUT", f"{THING}/attributes/a", json=1)
    assert figures.read().counters == {(HTTP_REQUESTS.name, "PUT", "5xx"): 1}


@pytest.mark.usefixtures("started")
def test_probes_are_answered_without_a_login_under_every_name_and_only_these() -> None:
    web = Web(users=USERS, access=ACCESS)
    for host in ("10.1.2.3", "pod-7.internal", "evil.example"):
        named = {"headers": {"host": host}}
        assert web("GET", "//health/live", **named).status_code == 200
        assert web("GET", "//health/ready", **named).status_code == 503
        assert web("GET", "//", **named).status_code in (401, 403)
    HEALTH.beat(EVENT_LOOP, time.monotonic())
    HEALTH.beat(KAFKA, time.monotonic())
    ready = web("GET", "//health/ready")
    assert (ready.status_code, ready.json()) == (200, {"status": "ok", "problems": []})
    assert ready.headers["cache-control"] == "no-store"
    assert web("POST", "//health/live").status_code == 405
    assert web("GET", "//metrics").status_code == 404


def test_what_is_open_is_looked_up_when_someone_asks_until_the_gateway_ends(started: Doors) -> None:
    started.enter("127.0.0.1")
    found = FIGURES.read().gauges
    assert (found[CONNECTIONS.name,], found[UNREAD.name,], found[OLDEST.name,]) == (1, 7, 1.5)
    unfollow()
    assert (CONNECTIONS.name,) not in FIGURES.read().gauges
    assert EVENT_LOOP not in str(HEALTH.ready(time.monotonic()))
