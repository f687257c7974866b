""""""

from __future__ import annotations

import pytest

from ackstream.jobs.settle.state import RequiredRole, SettleRules, settle_rules
from ackstream.protocol.readers import SamplesDone
from ackstream.settings import Settings
from tests.jobs.settle.logs import RULES, Log, Run, reasons


def test_roles_are_required_by_the_writers_names() -> None:
    rules = SettleRules((RequiredRole("Logger", 2, ("plant-*",)), RequiredRole("Logger", 1)))
    assert (rules.quorums("plant-1"), rules.quorums("w1")) == ({"Logger": 2}, {"Logger": 1})


def test_the_settings_say_it_in_their_words() -> None:
    given = {"required": [{"role": "Logger", "quorum": 2}], "reader_lease": "5s", "reader_memory": "1h", "shards": 3}
    found = settle_rules(Settings.model_validate({"settle": {**given, "max_holes": 7}}))
    assert found == SettleRules((RequiredRole("Logger", 2, ("*",)),), 7, 5_000, 3_600_000, 3)
    assert settle_rules(Settings()) == SettleRules(shards=6)


SECOND = 1_000


def test_a_state_of_an_unknown_version_is_refused() -> None:
    run = Run()
    run.state = (3, b"")
    with pytest.raises(ValueError, match="The state has version 3; this release reads versions 1 and 2"):
        run.feed()


VERSION_1 = (
    b"\x82\xa2w1\x94\x01\t\x92\x00\x01\x83\xa2L1\x96\x01\x94\x00\x02\x02\x00\xa6Logger\xc3\x01\x04\xa2L2\x96\x01\x92"
    b"\x00\x01\xa6Logger\xc3\x02\x01\xa2P1\x96\x01\x92\x00\x08\xa9Processor\xc3\x01\x02\xa2w2\x94\x01\x03\x90\x81\xa1A"
    b"\x96\x01\x92\x01\x00\xc0\xc3\x01\x01"
)
"""Of w1 samples 1 to 9: L1 has 1 to 3 and 5, L2 (epoch 2) 1 and 2, P1 all. Of w2 1 to 3: the plain A has 2."""


def test_a_state_of_version_1_goes_on_where_it_was() -> None:
    log, run = Log(), Run(RULES)
    run.state = (1, VERSION_1)
    run.feed(log.ack("L2", 2, (1, 3), epoch=2), log.stored(10, 10), watermark=900)
    assert run.settled.done == [SamplesDone("w1", ((3, 3),), 3)]
    assert [(row.first, row.last) for row in run.settled.deliveries] == [(3, 3)]
    run.feed(log.ack("L1", 3, (1, 9)))
    assert reasons(run.settled) == [("stale-count", None, None)]
    assert run.state is not None
    assert run.state[0] == 2


def test_plain_readers_of_version_1_have_a_whole_lease_from_now() -> None:
    run = Run()
    run.state = (1, VERSION_1)
    run.feed(watermark=100 * SECOND)
    assert run.next_timeout == 130 * SECOND
    run.feed(watermark=130 * SECOND + 1)
    assert run.done("w2") == {1, 2, 3}
