from __future__ import annotations

from typing import Any

from ackstream.gateway.streaming import Forwarding, RecentIds
from tests.prose import each


@each("aggregation", "forwarder-conflict-free")
def test_signals_that_are_open_at_once_have_different_correlation_ids(given_: dict[str, Any], expect: dict[str, Any]):
    forwarding = Forwarding()
    identity = given_["correlation-id"]
    published = [forwarding.publish(identity, 65.0, 0.0) for _ in range(given_["signals with that id"])]
    assert published == expect["published correlation-ids"]
    assert [forwarding.original(each_) for each_ in published] == [identity] * len(published)


def test_an_id_is_free_again_when_its_time_has_passed():
    forwarding = Forwarding()
    forwarding.publish("c", 5.0, 0.0)
    assert forwarding.publish("c", 10.0, 4.9) == "c#0"
    assert forwarding.publish("c", 20.0, 5.0) == "c"


@each("aggregation", "forwarder-through")
def test_an_acknowledgement_finds_the_signal_it_is_for(given_: dict[str, Any], expect: dict[str, Any]):
    assert given_["requested"] == [given_["ack"]["label"]]
    forwarding = Forwarding()
    assert (forwarding.original(forwarding.publish("c", 65.0, 0.0)) == "c") is expect["delivered to requester"]
    assert forwarding.original("somebody else's") == "somebody else's"


def test_ids_are_recent_for_a_while():
    recent = RecentIds(10.0)
    recent.add("a", 0.0)
    recent.add("b", 5.0)
    assert "a" in recent
    recent.add("c", 10.0)
    assert ["a" in recent, "b" in recent, "c" in recent] == [False, True, True]
