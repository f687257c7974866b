"""The programs of docs/clients on the real broker; what they write fits the schemas of the topics, too."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer

from ackstream.client import Ack, LabelsTakenError, Publisher, Responder, SampleReader, WriterQos
from ackstream.kafka.topics import ensure_topics
from ackstream.local import machine
from ackstream.protocol.record_headers import SPRING_CORRELATION_ID
from ackstream.settings import Kafka, Settings
from tests.contract.checking import Contract
from tests.harness.acknowledging import TOPICS, Acknowledging
from tests.harness.ditto_clients import class_path, run_java
from tests.harness.kafka import records
from tests.harness.scripts import module_of
from tests.harness.system import System
from tests.harness.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    Run = Callable[..., list[str]]

pytestmark = pytest.mark.integration

CLIENTS = Path(__file__).parent.parent.parent / "docs" / "clients"
PROGRAMS = sorted(CLIENTS.glob("*.java"))
CONTRACT = Contract()
OVER = """
final class Over {
    public static void main(String[] arguments) {
        long timestamp = System.currentTimeMillis() - Long.parseLong(arguments[0]);
        System.out.println(AcknowledgingParty.isOver(timestamp, arguments[1]));
        System.out.println(OrderRequests.isOver(timestamp, arguments[1]));
        System.out.println(SpringParty.isOver(timestamp, arguments[1]));
    }
}
"""
"""Prints whether the timeout of a request of an age in milliseconds is over, by each program that checks it."""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Compile the programs; return the directory of their classes, and what the compiler prints."""
    classes = tmp_path_factory.mktemp("classes")
    javac = machine.find_java().program.with_name("javac")
    over = classes / "Over.java"
    over.write_text(OVER, "utf-8")
    options = ["-Xlint:all", "-Werror", "-proc:none", "-d", classes, "-cp", class_path("clients")]
    command = [javac, *options, *PROGRAMS, over]
    return classes, subprocess.run(command, check=False, capture_output=True, text=True).stderr


@pytest.fixture
def run(compiled: tuple[Path, str], kafka: Kafka) -> Run:
    """Return what runs a program with further arguments, and returns the lines that it prints."""

    def run(program: str, *arguments: str) -> list[str]:
        given = kafka.bootstrap, kafka.topic_prefix, *arguments
        if program.endswith(".py"):
            return subprocess.check_output([sys.executable, CLIENTS / program, *given], text=True).splitlines()
        return run_java("clients", program, *given, classes=compiled[0])

    return run


def _unfit(kafka: Kafka, topic: str) -> list[bytes]:
    """Return the records of a topic that are none of its kinds."""
    found = records(kafka, topic)
    assert found
    return [record.value for record in found if len(CONTRACT.fits(topic, record.headers, record.value)) != 1]


def test_the_programs_compile_without_a_warning(compiled: tuple[Path, str]) -> None:
    assert compiled[1] == ""


def test_springs_template_gets_the_answer_and_the_timeout(
    spark: SparkSession, kafka: Kafka, tmp_path: Path, run: Run
) -> None:
    with (
        closing(System(kafka, tmp_path, clock=True)) as system,
        system.correlate(spark),
        Responder(kafka, handler=lambda _: Ack(204), labels=["fleet:done"]),
    ):
        (answered,) = run("SpringRequester", "org.acme:lamp", "on", "fleet:done")
        (silent,) = run("SpringRequester", "org.acme:lamp", "off", "fleet:done", "nobody:here")
    assert answered.startswith("204 acknowledgements ")
    assert silent.startswith("424 timeout ")
    assert '"nobody:here":{"status":408' in silent
    for topic in ("signals", "acks", "replies"):
        assert _unfit(kafka, topic) == []


def test_springs_template_completes_with_the_reply_that_the_page_on_testing_has(kafka: Kafka, run: Run) -> None:
    (shown,) = re.findall(
        r"```\n(key: .*?)\n```", (CLIENTS.parent / "guides" / "testing.md").read_text("utf-8"), re.DOTALL
    )
    *lines, value = shown.splitlines()
    named = dict(line.split(": ", 1) for line in lines)
    key = named.pop("key").encode()
    ensure_topics(Settings(kafka=kafka), ("signals", "replies"))
    with ThreadPoolExecutor() as pool, KafkaProducer(bootstrap_servers=kafka.bootstrap) as producer:
        running = pool.submit(run, "SpringRequester", "org.acme:lamp", "on", "fleet:done")
        (request, *_) = eventually(lambda: records(kafka, "signals"), "the request")
        headers = [(name, text.encode()) for name, text in named.items() if name != SPRING_CORRELATION_ID]
        headers.append((SPRING_CORRELATION_ID, dict(request.headers)[SPRING_CORRELATION_ID]))
        producer.send(kafka.topic("replies"), key=key, value=value.encode(), headers=headers).get(PATIENCE_SECONDS)
        assert running.result() == [f"204 acknowledgements {value}"]
    assert _unfit(kafka, "replies") == []


def test_a_party_declares_its_label_and_acknowledges_under_it(
    spark: SparkSession, kafka: Kafka, tmp_path: Path, run: Run
) -> None:
    asking: dict[str, Any] = {"requested_acks": ["fleet:done"], "timeout": "60s"}
    of_spring = uuid.uuid4()

    def claimed() -> bool:
        return any(record.value and b"fleet:done" in record.value for record in records(kafka, "declarations"))

    def answered() -> list[str]:
        return [
            name for name, reply in system.replies().items() if reply["record"]["completed-by"] == b"acknowledgements"
        ]

    with (
        closing(System(kafka, tmp_path, clock=True)) as system,
        system.correlate(spark) as query,
        ThreadPoolExecutor() as pool,
    ):
        running = pool.submit(run, "AcknowledgingParty", "java", "fleet:done", "3")
        # it has joined its group before
        eventually(claimed, "the claim", query)
        with pytest.raises(LabelsTakenError, match=r"fleet:done \(by the group java\)"):
            Responder(kafka, handler=lambda _: Ack(204), labels=["fleet:done"])
        # of no use, and about other labels
        system.send("signals", {"topic": "x", "headers": {"requested-acks": ["fleet:done"]}})
        system.send("signals", b"no JSON")
        system.command("other", requested_acks=["other:done"], timeout="60s")
        # its id is in the JSON, in Spring's header, or nowhere
        system.command("own", **asking)
        system.command(None, {"kafka_correlationId": of_spring.bytes}, **asking)
        system.command(None, **asking)
        lines = running.result()
        eventually(lambda: len(answered()) == 3, "the replies", query)
        # it has given the label back
        responder = Responder(kafka, handler=lambda _: Ack(204), labels=["fleet:done"])
        with responder, pytest.raises(AssertionError, match="Others hold the label fleet:done"):
            run("AcknowledgingParty", "java", "fleet:done", "1")
        ids = answered()
    assert {line.split()[1] for line in lines} == set(ids)
    assert {line.split(" ", 2)[2] for line in lines} == {"/attributes/x 1"}
    assert {"own", of_spring.hex.upper()} < set(ids)
    for topic in ("acks", "declarations"):
        assert _unfit(kafka, topic) == []


@pytest.fixture
def orders(kafka: Kafka) -> str:
    """Create a topic of an application; return its real name."""
    name = f"{kafka.topic_prefix}orders"
    with KafkaAdminClient(bootstrap_servers=kafka.bootstrap) as admin:
        admin.create_topics({name: {"num_partitions": 2, "replication_factor": 1}})
        admin.wait_for_topics([name])
    return name


@pytest.mark.parametrize(
    ("age_ms", "timeout", "over"),
    [(11_000, "10s", True), (1_000, "10s", False), (600, "500ms", True), (90_000, "2m", False), (9_000, "soon", False)],
)
def test_a_request_whose_timeout_is_over_is_not_acknowledged(
    compiled: tuple[Path, str], age_ms: int, timeout: str, *, over: bool
) -> None:
    program = module_of(CLIENTS / "orders.py")
    assert program.is_over(round(time.time() * 1000) - age_ms, timeout) is over
    in_java = run_java("clients", "Over", str(age_ms), timeout, classes=compiled[0])
    assert in_java == [str(over).lower()] * 3


def test_orders_are_confirmed_by_record_headers(
    spark: SparkSession, kafka: Kafka, tmp_path: Path, run: Run, orders: str
) -> None:
    labels = ("warehouse:packed", "bank:paid")
    with (
        closing(System(kafka, tmp_path, clock=True, request_topics=(re.escape(orders),))) as system,
        system.correlate(spark),
        ThreadPoolExecutor() as pool,
        KafkaProducer(bootstrap_servers=kafka.bootstrap) as producer,
    ):
        # its timeout is over before a party has started: none confirms it
        over = [("requested-acks", ",".join(labels).encode()), ("timeout", b"1ms")]
        producer.send(orders, value=b"late", headers=over).get(PATIENCE_SECONDS)
        pairs = ("OrderRequests", "orders.py"), ("orders.py", "OrderRequests"), ("orders.py", "SpringParty")
        for number, (asks, confirms) in enumerate(pairs):
            parties = [
                pool.submit(run, confirms, "confirm", orders, f"responder-{label}", label, "1") for label in labels
            ]
            (reply,) = run(asks, "ask", orders, "order-17", f"{number} by {asks}", *labels)
            for party in parties:
                assert [line.split(" ", 2)[2] for line in party.result()] == [f"{number} by {asks}"]
            assert reply.startswith("200 acknowledgements ")
            assert all(f'"{label}":{{"status":200,"payload":' in reply for label in labels)
        # a requester that has lost its reply finds it
        (identity,) = {*re.findall(r'"correlation-id":"([^"]+)"', reply)}
        found, unknown = (run("OrderRequests", "find", one, "600") for one in (identity, "unknown"))
    assert ({*found}, unknown) == ({reply}, [])
    for topic in ("acks", "replies"):
        assert _unfit(kafka, topic) == []


@pytest.fixture
def topics(kafka: Kafka) -> Iterator[Kafka]:
    """Return topics that are served: messages to the topic ``orders`` are stored, all others are refused."""
    ensure_topics(Settings(kafka=kafka), TOPICS)
    with Acknowledging(kafka):
        yield kafka


def test_the_publisher_learns_what_is_stored_and_what_is_refused(topics: Kafka, run: Run) -> None:
    with SampleReader(topics, name="r", writers=["orders-1"], start_timeout=PATIENCE_SECONDS) as reader:
        lines = run("MessagePublisher", "orders-1", "orders", "a", "b", "c")
        refused = run("MessagePublisher", "orders-1", "secret", "d")
        # a session goes on behind the numbers of the one before
        lines += run("MessagePublisher", "orders-1", "orders", "e")
        found = []
        while len(found) < 4 and (samples := reader.take(4, PATIENCE_SECONDS)):
            found += [(one.seq, one.value) for one in samples]
    stored = [range(int(first), int(last) + 1) for _, first, last in map(str.split, lines)]
    assert [number for run in stored for number in run] == [1, 2, 3, 5]
    assert refused == ["refused 4 not entitled"]
    assert found == [(1, b"a"), (2, b"b"), (3, b"c"), (5, b"e")]
    for topic in ("messages", "publisher-acks", "stored"):
        assert _unfit(topics, topic) == []


def test_the_reader_acknowledges_and_its_next_run_goes_on_behind(topics: Kafka, run: Run) -> None:
    with Publisher(topics, name="orders-1", writer_qos=WriterQos(), logon_timeout=PATIENCE_SECONDS) as publisher:
        # nobody reads yet: these wait for nobody
        for value in (b"a", b"b", b"c"):
            publisher.publish(value, topic="orders").result(PATIENCE_SECONDS)
        publisher.publish(b"x", topic="secret")
        publisher.publish(b"d", topic="orders").result(PATIENCE_SECONDS)
        # it is known from now on, and waited for
        first = run("MessageReader", "java", "orders-1", "0")
        for value in (b"e", b"f"):
            publisher.publish(value, topic="orders").result(PATIENCE_SECONDS)
        waiting = publisher.waiting_for()
        second = run("MessageReader", "java", "orders-1", "1")
        third = run("MessageReader", "java", "orders-1", "1")
        publisher.wait_for_acknowledgments(max_wait=PATIENCE_SECONDS)
    assert (first, waiting) == ([], ("java",))
    assert second + third == ["read 6 e", "read 7 f"]
    assert _unfit(topics, "app-acks") == []
