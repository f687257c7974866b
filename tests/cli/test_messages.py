"""Publishers, readers and consumers in a terminal: what is asked of the clients, and what is printed."""

from __future__ import annotations

import json
import signal
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

from ackstream import client
from ackstream.cli import messages
from ackstream.cli.main import app
from ackstream.client import Receipt, RefusedError
from ackstream.client.reading.samples import Sample
from ackstream.settings.jobs import QueueSettings
from ackstream.testing import QueueSystem
from tests.cli.commands import run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from typing_extensions import Self

AT = 1_795_000_000_000


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TZ", "UTC")


# -- publish ----------------------------------------------------------------------------------------------------------


class Store:
    """In place of a publisher: keeps what was published, and acknowledges it as it is told."""

    def __init__(self) -> None:
        self.next_seq = 7
        self.published: list[tuple[bytes, dict[str, Any]]] = []
        self.options: dict[str, Any] = {}
        self.refused: dict[int, str] = {}
        self.silent = False

    def __call__(self, _kafka: Any, **options: Any) -> Store:
        self.options = options
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def publish(self, value: bytes, **options: Any) -> Future[Receipt]:
        self.published.append((value, options))
        future: Future[Receipt] = Future()
        if self.next_seq in self.refused:
            future.set_exception(RefusedError(self.refused[self.next_seq], "The message"))
        elif not self.silent:
            future.set_result(Receipt(self.next_seq, self.options["stage"], None, self.next_seq, AT))
        self.next_seq += 1
        return future


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    store = Store()
    monkeypatch.setattr(client, "Publisher", store)
    return store


def test_a_message_is_published_with_its_options_and_its_receipt_is_printed(store: Store) -> None:
    result = run("publish", "{}", "--topic", "orders", "--key", "k", "-H", "mine=1", "--name", "orders-1")
    assert (result.exit_code, result.stdout) == (0, "orders-1/7 persisted after 0.00 s\n")
    expected = {"topic": "orders", "key": b"k", "headers": [("mine", b"1")], "ack_immediately": True}
    assert store.published == [(b"{}", expected)]
    assert (store.options["name"], store.options["stage"]) == ("orders-1", "persisted")


def test_each_line_of_standard_input_is_a_message(store: Store) -> None:
    lines = run("publish", "--json", "--stage", "accepted", stdin=b"one\n\nthree\r\n\xff").stdout.splitlines()
    assert [value for value, _ in store.published] == [b"one", b"", b"three", b"\xff"]
    assert [json.loads(line)["message"] for line in lines] == [f"terminal/{seq}" for seq in (7, 8, 9, 10)]
    assert {json.loads(line)["stage"] for line in lines} == {"accepted"}


def test_a_refused_message_is_told_and_ends_with_1(store: Store) -> None:
    store.refused = {8: "quota"}
    result = run("publish", stdin=b"a\nb\nc\n")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[1] == "terminal/8 The message was refused: quota."
    assert len(result.stdout.splitlines()) == 3


def test_the_time_of_a_receipt_is_when_it_came_and_not_when_it_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr(messages.time, "monotonic", lambda: now[0])
    receipts, future = messages._Receipts("orders-1", 1, as_json=False), Future[Receipt]()
    receipts.add(7, 100.0, future)
    now[0] += 0.5
    future.set_result(Receipt(7, "persisted", None, 7, AT))
    # the next line comes much later
    now[0] += 60
    receipts.finish()
    assert capsys.readouterr().out == "orders-1/7 persisted after 0.50 s\n"


def test_a_receipt_that_does_not_come_ends_with_3(store: Store) -> None:
    store.silent = True
    result = run("publish", "x", "--timeout", "10ms")
    assert result.exit_code == 3
    assert result.stderr.startswith("terminal/7 was not acknowledged within 0.01 s; ")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["x", "-H", "mine"], "--header is 'mine': use NAME=VALUE.\n"),
        (["x", "--timeout", "soon"], "--timeout is 'soon': "),
    ],
)
def test_wrong_input_is_a_sentence(store: Store, arguments: list[str], sentence: str) -> None:
    result = run("publish", *arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(sentence)
    assert not store.published


# -- read -------------------------------------------------------------------------------------------------------------


class Samples:
    """In place of a reader: lends samples, and is interrupted when there are no more."""

    def __init__(self, *values: bytes) -> None:
        self.left = [
            Sample("orders-1", "orders", b"k", value, {"h": b"1"}, AT, 7 + n, 0, n) for n, value in enumerate(values)
        ]
        self.options: dict[str, Any] = {}
        self.returned = 0
        self.closed = False

    def __call__(self, _kafka: Any, **options: Any) -> Samples:
        self.options = options
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        # a second Ctrl-C does not interrupt the end
        signal.raise_signal(signal.SIGINT)
        self.closed = True

    @contextmanager
    def loan(self, most: int, _timeout: float) -> Iterator[list[Sample]]:
        if not self.left:
            signal.raise_signal(signal.SIGINT)
        lent, self.left = self.left[:most], self.left[most:]
        yield lent
        self.returned += len(lent)


def test_messages_are_printed_and_then_acknowledged_until_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = Samples(b"one", b"\x1b[2J")
    monkeypatch.setattr(client, "SampleReader", samples)
    result = run("read", "--topic", "orders*", "--topic", "b", "--publisher", "o-*", "--role", "Logger")
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert [line[2:] for line in lines] == [
        ["orders-1/7", "orders", "k", "one"],
        ["orders-1/8", "orders", "k", r"\u001b[2J"],
    ]
    assert (samples.returned, samples.closed) == (2, True)
    wanted = {"topics": ["orders*", "b"], "writers": ["o-*"], "role": "Logger", "durable": False, "name": "terminal"}
    assert wanted.items() <= samples.options.items()


def test_a_durable_reader_has_the_lake_and_ends_after_as_many_as_were_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = Samples(b"1", b"2", b"\xff")
    monkeypatch.setattr(client, "SampleReader", samples)
    lines = run("read", "--durable", "--name", "log", "--count", "2", "--json").stdout.splitlines()
    assert [json.loads(line)["value"] for line in lines] == ["1", "2"]
    first = {
        "publisher": "orders-1",
        "seq": 7,
        "topic": "orders",
        "key": "k",
        "value": "1",
        "headers": {"h": "1"},
        "at": AT,
    }
    assert json.loads(lines[0]) == first
    assert samples.returned == 2
    assert samples.options["lake"] is not None
    assert [json.loads(line)["value"] for line in run("read", "--count", "1", "--json").stdout.splitlines()] == ["/w=="]


def test_what_was_printed_is_acknowledged_when_ctrl_c_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = Samples(b"one", b"two", b"three")
    monkeypatch.setattr(client, "SampleReader", samples)
    shown: list[Any] = []

    def show(fields: Any) -> None:
        if len(shown) == 1:
            signal.raise_signal(signal.SIGINT)
        shown.append(fields)

    monkeypatch.setattr(messages.terminal, "echo_json", show)
    assert run("read", "--json").exit_code == 0
    assert [line["value"] for line in shown] == ["one"]
    assert samples.returned == 1


# -- consume ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> QueueSystem:
    system = QueueSystem(QueueSettings(name="work", topics=["orders"], max_failures=2))
    for value in (b"one", b"two"):
        system.publish(value, topic="orders")

    def consumer(_kafka: Any, *, queue: str, name: str, outcomes: Any, **_options: Any) -> Any:
        assert queue == "work"
        return system.consumer(name=name, outcomes=outcomes)

    monkeypatch.setattr(client, "QueueConsumer", consumer)
    return system


def test_messages_of_a_queue_are_printed_and_settled(queue: QueueSystem) -> None:
    result = run("consume", "work", "--name", "w1", "--count", "2", "--json")
    assert result.exit_code == 0, result.output
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(line["value"], line["delivery"]) for line in found] == [("one", 1), ("two", 1)]
    assert queue.depth == 0
    assert [event.outcome for event in queue.events if event.event == "left"] == ["settled", "settled"]


def test_a_failed_message_comes_back_and_says_so(queue: QueueSystem) -> None:
    result = run("consume", "work", "--outcome", "failed", "--count", "3")
    assert result.exit_code == 0, result.output
    assert "delivery 2" in result.stdout
    assert queue.depth < 2


def test_an_unknown_outcome_is_refused() -> None:
    assert run("consume", "work", "--outcome", "lost").exit_code == 2


def test_the_queues_of_the_settings_complete_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tmp_path / "ackstream.toml"
    settings.write_text('[[queues]]\nname = "work"\ntopics = ["a"]\n[[queues]]\nname = "print"\ntopics = ["b"]\n')
    monkeypatch.setenv("ACKSTREAM_CONF", str(settings))
    monkeypatch.setenv("_ACKSTREAM_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "ackstream consume w")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert CliRunner().invoke(app, [], prog_name="ackstream").stdout.split() == ["work"]


def test_a_queue_is_drained_and_the_number_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    drained: list[tuple[str, float]] = []

    def drain(_kafka: Any, *, queue: str, timeout: float) -> int:
        drained.append((queue, timeout))
        return 1_003

    monkeypatch.setattr(client, "drain_queue", drain)
    result = run("drain", "orders[eu]", "--timeout", "5s")
    expected = "The queue orders[eu] is drained; messages given up: 1,003.\n"
    assert (result.exit_code, result.stdout, drained) == (0, expected, [("orders[eu]", 5)])


@pytest.mark.parametrize(("error", "code"), [(client.UnknownQueueError, 1), (client.BindTimeout, 3)])
def test_a_queue_that_is_not_drained_is_an_error(
    monkeypatch: pytest.MonkeyPatch, error: type[client.ClientError], code: int
) -> None:
    monkeypatch.setattr(client, "drain_queue", Mock(side_effect=error("Correct the name.")))
    result = run("drain", "orders")
    assert (result.exit_code, result.stdout, result.stderr) == (code, "", "Correct the name.\n")
