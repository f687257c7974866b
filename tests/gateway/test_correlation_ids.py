from __future__ import annotations

from ackstream.gateway.correlation_ids import CorrelationIds


def test_an_id_that_is_free_stays_as_it_is() -> None:
    ids = CorrelationIds(10)
    assert [ids.free("a", 0), ids.free("b", 0)] == ["a", "b"]


def test_an_id_that_was_used_gets_a_suffix() -> None:
    ids = CorrelationIds(10)
    assert [ids.free("a", 0) for _ in range(3)] == ["a", "a#0", "a#1"]


def test_a_suffix_that_a_client_chose_itself_is_passed_over() -> None:
    ids = CorrelationIds(10)
    assert [ids.free("a#0", 0), ids.free("a", 0), ids.free("a", 0)] == ["a#0", "a", "a#1"]


def test_an_id_is_free_again_when_the_service_has_forgotten_it() -> None:
    ids = CorrelationIds(10)
    assert [ids.free("a", 0), ids.free("a", 9.9), ids.free("a", 10)] == ["a", "a#0", "a"]
