from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from ackstream.connectivity import connector
from ackstream.connectivity.connector import (
    MAX_REPLIES,
    MAX_REPLY_BYTES,
    _watched_file,
    access_of,
    check_addresses,
)
from ackstream.connectivity.transports.transport import (
    MODULES,
    MessageSource,
    OutgoingMessage,
    Published,
    Runner,
    Transport,
    redelivers,
    transport,
)
from ackstream.errors import SettingsError, UnreachableError
from ackstream.kafka.clients import MAX_BACKOFF_SECONDS, Closing
from ackstream.observe.metrics import CONNECTION_FAILURES, FIGURES
from ackstream.protocol.ditto.twin.access import OPEN
from ackstream.settings import Kafka, Settings
from ackstream.settings.connections import Connection, KafkaConnection
from tests.prose import each


def test_every_type_of_connection_has_a_transport() -> None:
    kinds = [kind.model_fields["type"].annotation for kind in get_args(get_args(Connection)[0])]
    types = {name for kind in kinds for name in get_args(kind)}
    assert MODULES.keys() == types
    assert all(isinstance(transport(kind), Transport) for kind in types)


@each("settlement", "transport-mqtt")
def test_prose_settlement_of_an_mqtt_message(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    settlement = given_.get("settlement", "reject-without-redelivery")
    for reconnect in [given_["reconnectForRedelivery"]] if "reconnectForRedelivery" in given_ else [False, True]:
        assert redelivers(settlement, 1, able=reconnect) is expect["action"].startswith("not acknowledged")


class Part(Closing):
    """What a connection opens and closes."""

    def __init__(self) -> None:
        self.alive, self.connected, self.closed = True, True, False
        self.fault = "It no longer publishes."
        self.raises: Exception | None = None
        self.published: list[Any] = []
        self.confirms: list[Any] = []

    def start(self) -> None: ...

    def turn(self) -> None: ...

    def publish(self, message: Any, done: Any) -> None:
        assert not self.closed
        self.published.append(message)
        self.confirms.append(done)

    def close(self) -> None:
        self.closed = True
        if self.raises is not None:
            raise self.raises


class Opened:
    """A connection, and the parts that it has opened; ``fails`` is raised instead of opening one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.parts: dict[str, list[Part]] = {"worker": [], "source": [], "publisher": []}
        self.fails: dict[str, Exception] = {}
        made = Transport(partial(self._make, "publisher"), partial(self._make, "source"))  # type: ignore[arg-type]
        monkeypatch.setattr(connector.transport, "transport", lambda _kind: made)
        monkeypatch.setattr(connector, "Labels", lambda *_, **__: SimpleNamespace(keep=self._keep))
        self.intakes: list[Any] = []
        monkeypatch.setattr(connector, "Intake", self._intake)
        monkeypatch.setattr(connector, "OutboundWorker", partial(self._make, "worker"))
        labels = SimpleNamespace(to_declare=())
        connection: Any = SimpleNamespace(
            id="c", type="kafka", labels=labels, targets=["t"], sources=["s"], max_attempts=20
        )
        system: Any = SimpleNamespace(extra=None)
        kafka: Any = None
        self.now, self.takes = 0.0, 0.0
        monkeypatch.setattr(connector, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.link = connector._Link(connection, kafka, system, OPEN)

    def turn(self, now: float) -> bool:
        self.now = now
        return self.link.turn()

    def last(self, kind: str) -> Part:
        return self.parts[kind][-1]

    def closed(self, kind: str) -> list[bool]:
        return [each.closed for each in self.parts[kind]]

    def _intake(self, *given: Any) -> Any:
        self.intakes.append(SimpleNamespace(rests=given[-1]))
        return self.intakes[-1]

    def _make(self, kind: str, *given: Any) -> Part:
        if kind == "source":
            # nothing is taken before all are open
            assert given[-1].rests()
        if kind in self.fails:
            self.now += self.takes
            raise self.fails[kind]
        self.parts[kind].append(Part())
        return self.last(kind)

    def _keep(self, _now: float) -> None:
        if "labels" in self.fails:
            raise self.fails["labels"]


def reply(address: str, size: int = 1) -> OutgoingMessage:
    return OutgoingMessage(address, {}, bytes(size))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    return Opened(monkeypatch)


@pytest.mark.parametrize("died", ["source", "publisher"])
@pytest.mark.parametrize("error", [None, AssertionError("not assigned")], ids=["in order", "fails to close"])
def test_a_connection_of_which_a_part_died_is_opened_again(opened: Opened, died: str, error: Exception | None) -> None:
    assert [opened.turn(0.0), opened.turn(0.0)] == [True, True]
    assert [intake.rests() for intake in opened.intakes] == [False]
    opened.last(died).alive = False
    opened.last("worker").raises = error
    assert [opened.turn(1.0), opened.turn(1.05), opened.turn(1.1)] == [False, False, True]
    assert [opened.closed(kind) for kind in opened.parts] == [[True, False]] * 3
    assert opened.turn(1.2)
    assert len(opened.parts["worker"]) == 2


def test_targets_that_are_away_are_opened_again_while_the_sources_read_on(opened: Opened) -> None:
    link = opened.link
    opened.turn(0.0)
    opened.last("worker").alive = False
    assert not opened.turn(1.0)
    assert opened.closed("worker") == [True]
    done: Any = None
    # until then replies go out through the publisher that is open
    link.publish(reply("a"), done)
    assert [opened.turn(1.05), opened.turn(1.1)] == [False, True]
    link.publish(reply("b"), done)
    assert [opened.closed(kind) for kind in opened.parts] == [[True, False], [False], [True, False]]
    assert [[one.address for one in each.published] for each in opened.parts["publisher"]] == [["a"], ["b"]]


def test_targets_that_an_error_has_ended_are_opened_again_and_the_log_has_its_sentence(
    opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    opened.turn(0.0)
    opened.last("worker").alive = False
    opened.last("worker").fault = "It no longer publishes. The broker is gone."
    assert not opened.turn(1.0)
    assert caplog.messages[-1] == (
        "The connection c is not open: It no longer publishes. The broker is gone. Retrying in 0.1 s."
    )


@pytest.mark.parametrize("fails", ["publisher", "worker"])
def test_targets_that_cannot_be_opened_again_close_the_connection(opened: Opened, fails: str) -> None:
    opened.turn(0.0)
    opened.last("worker").alive = False
    opened.fails[fails] = UnreachableError("The broker is gone.")
    assert [opened.turn(1.0), opened.turn(1.1)] == [False, False]
    assert [all(opened.closed(kind)) for kind in opened.parts] == [True] * 3
    opened.fails.clear()
    assert [opened.turn(1.2), opened.turn(1.3)] == [False, True]
    assert [opened.closed(kind)[-1] for kind in opened.parts] == [False] * 3


@pytest.mark.parametrize("fails", ["publisher", "worker", "source", "labels"])
@pytest.mark.parametrize("error", [RuntimeError("of a client library"), UnreachableError("The broker is gone.")])
def test_whatever_is_raised_while_a_connection_is_opened_or_kept_it_is_opened_again(
    opened: Opened, fails: str, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    opened.fails[fails] = error
    assert [opened.turn(0.0), opened.turn(0.05)] == [fails == "labels", False]
    opened.fails.clear()
    assert opened.turn(1.0)
    assert [len([each for each in opened.closed(kind) if not each]) for kind in opened.parts] == [1] * 3
    # with a traceback if nobody expects it
    assert ("Traceback" in caplog.text) is isinstance(error, RuntimeError)


def test_a_reply_that_comes_when_the_connection_is_closed_is_not_published(opened: Opened) -> None:
    results: list[Published] = []
    opened.turn(0.0)
    opened.link.close()
    opened.link.publish(reply("a"), results.append)
    assert [result.status for result in results] == [503]


@pytest.mark.parametrize(("number", "size"), [(MAX_REPLIES, 1), (2, MAX_REPLY_BYTES // 2)])
def test_while_many_replies_wait_for_the_other_system_its_sources_take_nothing_more(
    opened: Opened, number: int, size: int
) -> None:
    results: list[Published] = []
    opened.turn(0.0)
    (intake,) = opened.intakes
    for _ in range(number - 1):
        opened.link.publish(reply("a", size), results.append)
    assert not intake.rests()
    opened.link.publish(reply("a", size), results.append)
    assert intake.rests()
    opened.last("publisher").confirms[0](Published(200))
    assert not intake.rests()
    assert len(results) == 1
    opened.link.publish(reply("a", size), results.append)
    assert intake.rests()
    # a publisher that is closed tells of nothing that it still had
    opened.last("worker").alive = False
    assert [opened.turn(1.0), opened.turn(1.1)] == [False, True]
    assert not intake.rests()


@pytest.mark.parametrize("part", ["publisher", "source"])
def test_a_connection_whose_client_connects_again_by_itself_is_not_open_meanwhile(opened: Opened, part: str) -> None:
    assert opened.turn(0.0)
    opened.last(part).connected = False
    assert [opened.turn(1.0), opened.turn(2.0)] == [False, False]
    opened.last(part).connected = True
    assert opened.turn(3.0)
    assert [opened.closed(kind) for kind in opened.parts] == [[False]] * 3


def test_the_next_attempt_waits_from_the_end_of_one_that_took_long(opened: Opened) -> None:
    opened.fails["source"], opened.takes = UnreachableError("it does not answer"), 10.0
    assert not opened.turn(0.0)
    assert opened.link._open_at == pytest.approx(10.1)


@pytest.mark.parametrize("died", ["worker", "source"])
def test_a_connection_that_fails_soon_after_it_was_opened_waits_longer_each_time(opened: Opened, died: str) -> None:
    link = opened.link
    assert opened.turn(0.0)
    now, waits = 1.0, []
    for _ in range(3):
        opened.last(died).alive = False
        assert not opened.turn(now)
        waits.append(round(link._open_at - now, 3))
        now = link._open_at
        assert opened.turn(now)
    assert waits == [0.1, 0.2, 0.4]
    now += MAX_BACKOFF_SECONDS
    opened.last(died).alive = False
    assert not opened.turn(now)
    assert round(link._open_at - now, 3) == 0.1


def test_a_connection_that_cannot_be_opened_for_long_waits_for_a_minute_each_time(opened: Opened) -> None:
    opened.fails["publisher"] = UnreachableError("The broker is gone.")
    now, waits = 0.0, []
    for _ in range(13):
        assert not opened.turn(now)
        waits.append(round(opened.link._open_at - now, 3))
        now = opened.link._open_at
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 60.0, 60.0, 60.0]


def test_a_connection_that_hangs_holds_up_no_other() -> None:
    silent, kept = threading.Event(), threading.Event()
    keep = {"silent": lambda _stop: silent.wait(), "other": lambda _stop: kept.set()}
    runner = Runner(keep)  # type: ignore[arg-type]
    assert kept.wait(10)
    silent.set()
    runner.close()
    runner.run()


@pytest.mark.parametrize("error", [AssertionError("not assigned"), UnreachableError("The broker is gone.")])
def test_a_source_whose_thread_raises_is_not_alive(error: Exception) -> None:
    class Source(MessageSource):
        def start(self) -> None:
            self._thread.start()

        def _turn(self) -> None:
            raise error

        def _disconnect(self) -> None: ...

    intake: Any = SimpleNamespace(forget=lambda: None)
    source = Source("c", intake)
    source.start()
    source._thread.join()
    assert not source.alive
    source.close()


# -- what connections may do -------------------------------------------------------------------------------------------

SOURCE = {"addresses": ["in"]}
TARGET = {"address": "out", "topics": ["_/_/things/twin/events"]}
RULE = {"subjects": ["connection:*"], "path": "/attributes", "grant": ["READ", "WRITE"]}


def settings(*rules: dict[str, Any], **parts: Any) -> Settings:
    made = {"id": "field", "type": "mqtt", **parts}
    return Settings.model_validate({"gateway": {"access": rules}, "connections": [made]})


def test_without_access_rules_connections_of_this_machine_may_do_everything_and_a_warning_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = settings(sources=[SOURCE], targets=[TARGET])
    assert access_of(found, found.connections) is OPEN
    assert "gateway.access is empty: messages of the connections field may do anything" in caplog.text


@pytest.mark.parametrize(
    ("parts", "key"),
    [
        ({"host": "mqtt.example"}, "reads messages from mqtt.example"),
        ({"type": "kafka", "bootstrap": "localhost:9092,kafka.example:9092"}, "reads messages from kafka.example"),
    ],
)
def test_without_access_rules_nothing_is_read_from_other_hosts(parts: dict[str, Any], key: str) -> None:
    found = settings(sources=[SOURCE], **parts)
    with pytest.raises(SettingsError, match=rf'{key}.*\["connection:field"\]'):
        access_of(found, found.connections)
    found = settings(targets=[TARGET], **parts)
    assert access_of(found, found.connections) is OPEN


def test_subjects_without_access_rules_would_protect_nothing() -> None:
    found = settings(sources=[SOURCE | {"subjects": ["connection:field"]}])
    with pytest.raises(SettingsError, match=r"gateway\.access is empty, so the subjects"):
        access_of(found, found.connections)


@pytest.mark.parametrize("kind", ["source", "target"])
def test_with_access_rules_every_source_and_target_has_subjects(kind: str) -> None:
    named = {"subjects": ["connection:field"]}
    sources, targets = [SOURCE | named], [TARGET | named]
    found = settings(RULE, sources=sources, targets=targets)
    access = access_of(found, found.connections)
    assert access.may("WRITE", ("connection:field",), "org.acme:lamp", "/attributes/x")
    assert not access.may("WRITE", ("connection:field",), "org.acme:lamp", "/features")
    assert not access.may("WRITE", ("user:a",), "org.acme:lamp", "/attributes/x")
    found = settings(
        RULE, **{"sources": sources, "targets": targets, f"{kind}s": [SOURCE if kind == "source" else TARGET]}
    )
    with pytest.raises(SettingsError, match=rf"A {kind} of the connection field .*connections\.{kind}s\.subjects"):
        access_of(found, found.connections)


def test_the_rules_of_the_access_file_are_those_of_connections_too_and_change_with_it(tmp_path: Path) -> None:
    path = tmp_path / "access.toml"
    rules = '[[access]]\nsubjects = ["connection:*"]\npath = "{}"\ngrant = ["WRITE"]\n'
    path.write_text(rules.format("/attributes"), "utf-8")
    named = SOURCE | {"subjects": ["connection:field"]}
    made = {"id": "field", "type": "mqtt", "host": "mqtt.example", "sources": [named]}
    found = Settings.model_validate({"gateway": {"access_file": path}, "connections": [made]})
    access = access_of(found, found.connections)
    (file,) = _watched_file(found, access)

    def may(part: str) -> bool:
        return access.may("WRITE", ("connection:field",), "org.acme:lamp", part)

    assert (may("/attributes/x"), may("/features")) == (True, False)
    path.write_text(rules.format("/features"), "utf-8")
    file.reload()
    assert (may("/attributes/x"), may("/features")) == (False, True)
    path.write_text("", "utf-8")
    with pytest.raises(SettingsError, match="grants nothing"):
        file.reload()
    assert may("/features")
    # nor is everything allowed at a start with such a file
    with pytest.raises(SettingsError, match="grants nothing"):
        access_of(found, found.connections)


OWN = Kafka(bootstrap="one:9092,two:9092", topic_prefix="x-")


@pytest.mark.parametrize(
    ("bootstrap", "address", "refused"),
    [
        (None, "x-acks", True),
        (None, "x-clock/key", True),
        (None, "x-signals#1", True),
        ("two:9092", "x-acks", True),
        (None, "acks", False),
        (None, "x-acks-of-others", False),
        # decided when it is resolved
        (None, "x-{{ header:where }}", False),
        ("other:9092", "x-acks", False),
    ],
)
@pytest.mark.parametrize("part", ["target", "reply_target"])
def test_a_target_or_reply_target_that_is_a_topic_of_the_system_is_refused_at_the_start(
    bootstrap: str | None,
    address: str,
    refused: bool,  # noqa: FBT001 - a table
    part: str,
) -> None:
    made: dict[str, Any] = {"targets": [{"address": address, "topics": ["_/_/things/twin/events"]}]}
    if part == "reply_target":
        made = {"sources": [{"addresses": ["in"], "reply_target": {"address": address}}]}
    connection = KafkaConnection.model_validate({"id": "c", "type": "kafka", "bootstrap": bootstrap, **made})
    if refused:
        with pytest.raises(SettingsError, match=f"address {address} of the connection c is a topic of the system"):
            check_addresses(connection, OWN)
    else:
        check_addresses(connection, OWN)


def test_what_fails_counts_for_its_connection(opened: Opened) -> None:
    def failures() -> float:
        return FIGURES.read().counters.get((CONNECTION_FAILURES.name, "c"), 0)

    before = failures()
    opened.turn(0.0)
    assert failures() == before
    opened.last("source").alive = False
    opened.turn(1.0)
    opened.fails["source"] = RuntimeError("of a client library")
    opened.turn(2.0)
    assert failures() == before + 2
