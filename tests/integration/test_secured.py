"""All jobs and all clients on a Kafka that they log in to, each with what it needs and nothing else; and refusals."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourceType,
)

from ackstream.client import (
    Ack,
    Command,
    Publisher,
    QueryClient,
    QueueConsumer,
    Requester,
    Responder,
    SampleReader,
    Subscriber,
)
from ackstream.errors import AccessRefusedError, UnreachableError
from ackstream.kafka.clients import close_producer, connect_admin, connect_producer
from ackstream.kafka.parties import OPERATOR, PARTIES, apply_acls
from ackstream.kafka.reader import check_topics
from ackstream.kafka.topics import ensure_topics, prepare
from ackstream.protocol.ditto.twin.subscriptions import subscription
from ackstream.settings import Kafka, Lake, Settings, load
from ackstream.settings.kafka import KafkaSecurity
from tests.harness import programs
from tests.harness.certificates import Authority
from tests.harness.lake import rows
from tests.harness.ports import free_ports
from tests.harness.processes import QUICK, Job, Program, alive, environment
from tests.harness.secured import PASSWORD, USER, SecuredBroker
from tests.harness.system import System
from tests.harness.tokens import TokenServer
from tests.harness.waiting import PATIENCE_SECONDS, eventually

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytestmark = pytest.mark.integration

MANUAL = Path(__file__).parents[2] / "docs/operate/operations.md"
THING = "org.acme:lamp"
CLIENT, SECRET = "jobs", "s3cret+%& of the client"


@pytest.fixture(scope="module")
def tokens() -> Iterator[tuple[TokenServer, str]]:
    server = TokenServer({CLIENT: SECRET})
    with server.running() as keys:
        yield server, keys


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, tokens: tuple[TokenServer, str]) -> Iterator[SecuredBroker]:
    broker = SecuredBroker(tmp_path_factory.mktemp("secured"), tokens[1])
    with pytest.MonkeyPatch.context() as patch:
        # which Kafka 4 demands for any URL of keys
        patch.setenv("JDK_JAVA_OPTIONS", f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={tokens[1]}")
        broker.start()
    yield broker
    broker.stop()


@pytest.fixture(scope="module")
def operator(broker: SecuredBroker) -> Settings:
    """Return the operator's settings of a system of which all parties have their login."""
    settings = broker.as_user(Settings(kafka=Kafka(topic_prefix="s-", partitions=2)), OPERATOR)
    ensure_topics(settings)
    broker.admit(settings)
    return settings


@pytest.fixture
def kafkas(broker: SecuredBroker, operator: Settings) -> dict[str, Kafka]:
    """Return the settings of Kafka of each party, as they stand in its file."""
    assert operator.kafka.topic_prefix == "s-"
    return {party: load(broker.settings_file(party), {}).kafka for party in PARTIES}


# -- everything --------------------------------------------------------------------------------------------------------


def _environment(tmp_path: Path, port: int) -> dict[str, str]:
    destination = {"name": "standby", "path": str(tmp_path / "standby"), "type": "sync"}
    source = {"addresses": ["inbound"], "qos": 1, "start": "earliest"}
    tables: dict[str, Any] = {
        "DESTINATIONS": [destination | {"ack_conflation_interval": "500ms"}],
        "SETTLE_REQUIRED": [{"role": "Processor"}],
        "QUEUES": [{"name": "orders", "topics": ["orders"]}],
        "CONNECTIONS": [{"id": "outside", "type": "kafka", "sources": [source]}],
    }
    texts = {
        "GATEWAY_PORT": str(port),
        "QUEUE_STARTING": "earliest",
        "SPARK_CONF": json.dumps(QUICK),
        "SPARK_DRIVER_MEMORY": "2g",
        **{name: json.dumps(value) for name, value in tables.items()},
    }
    return {f"ACKSTREAM_{name}": text for name, text in texts.items()}


def _allow(operator: Settings, principal: str, topic: str) -> None:
    resource = ResourcePattern(ResourceType.TOPIC, topic, ACLResourcePatternType.LITERAL)
    with connect_admin(operator.kafka) as admin:
        admin.create_acls([ACL(principal, "*", ACLOperation.READ, ACLPermissionType.ALLOW, resource)])


def test_every_party_works_with_a_login_of_its_own_and_exactly_its_acls(
    broker: SecuredBroker, operator: Settings, kafkas: dict[str, Kafka], tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    lake = Lake(path=str(tmp_path / "lake"), checkpoints=str(tmp_path / "checkpoints"))
    settings = Settings(kafka=Kafka(bootstrap=broker.bootstrap, topic_prefix="s-", partitions=2), lake=lake)
    with connect_admin(operator.kafka) as admin:
        admin.create_topics({"inbound": {"num_partitions": 1, "replication_factor": 1}})
    # of another system, as it were: no party's by itself
    _allow(operator, "User:s-connect", "inbound")
    more = _environment(tmp_path, port)
    with ExitStack() as stack:
        running = []
        for name, arguments in (("jobs", ["-c", programs.JOBS]), ("gateway", ["gateway"]), ("connect", ["connect"])):
            login = {"ACKSTREAM_CONF": str(broker.settings_file(name))} if name in PARTIES else {}
            login |= {"LOGINS": str(broker.directory)}
            running.append(Program(name, arguments, settings, tmp_path, more | login))
            stack.callback(running[-1].kill)

        def runs(look: Any) -> Any:
            return lambda: alive(running) and look()

        # gateway, correlate, twin, subscriber
        events = [subscription("events")]
        stack.enter_context(
            Subscriber(
                kafkas["subscriber"],
                handler=lambda _: Ack(204),
                subscriptions=events,
                labels=["app:seen"],
                start="earliest",
            )
        )
        eventually(runs(lambda: _put(port)), "an answer of the gateway with both acknowledgements")
        # requester, and a responder that shares its work
        group = "responder-meters"
        answers = Responder(
            kafkas["responder"], handler=lambda it: Ack(payload=it.value), labels=["meter"], group=group
        )
        stack.enter_context(answers)
        requester = stack.enter_context(Requester(kafkas["requester"]))
        command = Command.modify_attribute(THING, "n", 2)
        reply = requester.request(command, acks=["twin-persisted", "meter"], timeout=PATIENCE_SECONDS)
        assert (reply.ok, sorted(reply.acks)) == (True, ["meter", "twin-persisted"])
        # persist, mirror, settle, publisher, reader
        reader = stack.enter_context(
            SampleReader(kafkas["reader"], name="P1", role="Processor", start_timeout=PATIENCE_SECONDS)
        )
        publisher = stack.enter_context(Publisher(kafkas["publisher"], name="p1", logon_timeout=PATIENCE_SECONDS))
        publisher.publish_await_acknowledgement(b"1", PATIENCE_SECONDS, topic="orders")
        (sample,) = eventually(runs(lambda: reader.take(timeout=1.0)), "the sample")
        reader.acknowledge_sample(sample)
        # queues and query
        options = {"queue": "orders", "name": "A", "bind_timeout": PATIENCE_SECONDS}
        consumer = stack.enter_context(QueueConsumer(kafkas["worker"], **options))
        message = eventually(runs(lambda: consumer.receive(1.0)), "the message of the queue")
        message.settle()
        query = stack.enter_context(QueryClient(kafkas["query-client"], name="q1", timeout=PATIENCE_SECONDS))
        stream = query.subscribe("orders", bookmark="EPOCH")
        found = eventually(runs(lambda: stream.receive(1.0)), "the message of the subscription")
        assert (sample.value, message.value, found.value) == (b"1", b"1", b"1")
        # connector and archive
        producer = connect_producer(operator.kafka, "inbound")
        stack.callback(close_producer, producer)
        brought = System.command_json("in-1", requested_acks=["twin-persisted"])
        producer.send("inbound", json.dumps(brought).encode()).get(PATIENCE_SECONDS)
        eventually(runs(lambda: "in-1" in _archived(lake)), "the outcome of the command that was brought")
        eventually(runs(lambda: rows(lake, "deliveries", "reader")), "the acknowledgement of the reader")
    logs = "".join(program.log.read_text("utf-8") for program in running)
    passwords = [file.read_text("ascii") for file in broker.directory.glob("*.password")]
    assert not [password for password in passwords if password in logs]


def _put(port: int) -> bool:
    with suppress(httpx.TransportError):
        url = f"http://127.0.0.1:{port}/api/2/things/{THING}"
        asked = {"requested-acks": "twin-persisted,app:seen", "timeout": "30s"}
        found = httpx.put(url, params=asked, json={"attributes": {"n": 1}}, timeout=60)
        return found.status_code == 200
    return False


def _archived(lake: Lake) -> set[str]:
    return {row["correlation_id"].partition("#")[0] for row in rows(lake, "outcomes", "correlation_id")}


# -- other ways to log in ----------------------------------------------------------------------------------------------


def _login(broker: SecuredBroker, tokens: TokenServer, way: str) -> tuple[str, Kafka]:
    """Return the principal and the settings of a way to log in."""
    if way == "mutual":
        certificate, key = Authority(broker.directory).issue_pair("jobs", password=PASSWORD)
        tls = {"certificate": certificate, "key": key, "key_password": PASSWORD}
        return "User:CN=jobs", broker.by("mutual", tls=tls)
    if way == "bearer":
        oauth = {"token_url": tokens.token_url, "client_id": CLIENT, "client_secret": SECRET, "scope": "kafka"}
        return f"User:{CLIENT}", broker.by("bearer", mechanism="OAUTHBEARER", oauth=oauth)
    return f"User:{USER}", broker.by(way, mechanism="PLAIN", username=USER, password=PASSWORD)


WAYS = ("mutual", "bearer", "plain")
JOBS = """
import json, os, sys
from contextlib import ExitStack

from ackstream.jobs.correlate.job import JOB
from ackstream.local import jars
from ackstream.local.submit import JAVA_OPTIONS, java_options
from ackstream.settings import load
from ackstream.spark.session import session

spark = session(load(), "logins", jars=jars.resolve("spark"), conf={JAVA_OPTIONS: java_options()})
with ExitStack() as stack, open(sys.argv[1]) as logins:
    systems = [load(environment=each) for each in json.load(logins)]
    queries = [stack.enter_context(JOB.running(spark.newSession(), settings)) for settings in systems]
    while not any(query.awaitTermination(1) for query in queries):
        pass
"""
"""Correlate for several systems in one driver, which takes as long to start as for one."""


@pytest.fixture(scope="module")
def logins(
    broker: SecuredBroker,
    operator: Settings,
    tokens: tuple[TokenServer, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Program, dict[str, Kafka]]]:
    """Run the jobs of a system for each way to log in; yield their program, and the settings of Kafka by the way."""
    directory, found, parties = tmp_path_factory.mktemp("logins"), {}, ["correlate", "requester", "responder"]
    systems = []
    for way in WAYS:
        principal, kafka = _login(broker, tokens[0], way)
        as_operator = Settings(kafka=operator.kafka.model_copy(update={"topic_prefix": f"{way}-"}))
        ensure_topics(as_operator)
        apply_acls(as_operator, dict.fromkeys(parties, principal), parties)
        found[way] = own = kafka.model_copy(update={"topic_prefix": f"{way}-", "partitions": 2})
        lake = Lake(path=str(directory / way / "lake"), checkpoints=str(directory / way / "checkpoints"))
        variables = environment(Settings(kafka=own, lake=lake)).items()
        systems.append({name: text for name, text in variables if name.startswith("ACKSTREAM_")})
    (directory / "logins.json").write_text(json.dumps(systems))
    more = {"ACKSTREAM_SPARK_CONF": json.dumps(QUICK)}
    jobs = Program("jobs", ["-c", JOBS, str(directory / "logins.json")], Settings(), directory, more)
    yield jobs, found
    jobs.kill()


@pytest.mark.parametrize("way", WAYS)
def test_jobs_and_clients_log_in_by_certificate_by_token_and_by_password(
    logins: tuple[Program, dict[str, Kafka]], way: str
) -> None:
    jobs, own = logins[0], logins[1][way]
    with ExitStack() as stack:
        stack.enter_context(
            Responder(own, handler=lambda it: Ack(payload=it.value), labels=["meter"], start="earliest")
        )
        requester = stack.enter_context(Requester(own))
        asked = requester.send(Command.modify_attribute(THING, "n", 2), acks=["meter"], timeout=PATIENCE_SECONDS)
        eventually(lambda: alive([jobs]) and asked.done(), "the answer of the jobs")
        assert (asked.result().ok, list(asked.result().acks)) == (True, ["meter"])
    assert not [secret for secret in (PASSWORD, SECRET, "PRIVATE KEY") if secret in jobs.log.read_text("utf-8")]


def test_the_settings_of_the_manual_are_those_of_a_login(broker: SecuredBroker) -> None:
    (block,) = re.findall(r"```toml\n(\[kafka\.security\]\n.*?)```", MANUAL.read_text("utf-8"), re.DOTALL)
    found: dict[str, Any] = tomllib.loads(block.replace("ca.pem", str(broker.ca)))["kafka"]["security"]
    found |= {"mechanism": "SCRAM-SHA-512", "username": "operator", "password": broker.kafka.security.password}
    with connect_admin(Kafka(bootstrap=broker.bootstrap, security=KafkaSecurity(**found))) as admin:
        assert admin.list_topics() is not None


# -- refusals ----------------------------------------------------------------------------------------------------------


def _refusal(kafka: Kafka) -> str:
    with pytest.raises(AccessRefusedError) as caught:
        Requester(kafka)
    return str(caught.value)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"])
def test_a_wrong_password_is_one_sentence(broker: SecuredBroker, mechanism: str) -> None:
    login = {"mechanism": mechanism, "username": USER, "password": "47110815"}
    sentence = _refusal(broker.by("plain", **login))
    if mechanism == "PLAIN":
        assert f"refuses the login of {USER} by PLAIN (Authentication failed: Invalid username or password)" in sentence
        assert "correct kafka.security.username and password, or create the user there" in sentence
    else:
        assert f"does not take a login by {mechanism}: it offers PLAIN. Correct kafka.security.mechanism" in sentence
    assert "47110815" not in sentence


def test_a_wrong_password_of_scram_is_one_sentence(broker: SecuredBroker) -> None:
    right = broker.kafka.security
    wrong = right.model_copy(update={"password": KafkaSecurity(**_plain("47110815")).password})
    sentence = _refusal(Kafka(bootstrap=broker.bootstrap, security=wrong))
    assert f"Kafka at {broker.bootstrap} refuses the login of operator by SCRAM-SHA-512" in sentence


def _plain(password: str) -> dict[str, Any]:
    return {"protocol": "SASL_SSL", "mechanism": "PLAIN", "username": USER, "password": password}


def test_certificates_that_are_not_to_be_trusted_are_one_sentence(broker: SecuredBroker, tmp_path: Path) -> None:
    assert "has expired: renew it at the broker" in _refusal(broker.by("expired"))
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other", "another")
    unknown = broker.by("mutual", tls={"ca": other.ca})
    assert f"is of no authority in {other.ca}: name the file with its authority" in _refusal(unknown)
    assert "wants a certificate of its clients" in _refusal(broker.by("mutual"))
    certificate, key = other.issue_pair("me")
    foreign = broker.by("mutual", tls={"certificate": certificate, "key": key})
    assert f"refuses the certificate {certificate}" in _refusal(foreign)


def test_a_client_that_the_authorisation_server_refuses_is_one_sentence(
    broker: SecuredBroker, tokens: tuple[TokenServer, str]
) -> None:
    oauth = {"token_url": tokens[0].token_url, "client_id": CLIENT, "client_secret": "47110815"}
    sentence = _refusal(broker.by("bearer", mechanism="OAUTHBEARER", oauth=oauth))
    assert f"refuses the client {CLIENT} (401 invalid_client" in sentence


def test_a_token_that_the_broker_refuses_is_one_sentence(broker: SecuredBroker) -> None:
    stranger = TokenServer({CLIENT: SECRET})
    with stranger.running():
        oauth = {"token_url": stranger.token_url, "client_id": CLIENT, "client_secret": SECRET}
        sentence = _refusal(broker.by("bearer", mechanism="OAUTHBEARER", oauth=oauth))
    assert f"refuses the token that {stranger.token_url} gives to {CLIENT}" in sentence


def test_a_missing_acl_is_one_sentence(kafkas: dict[str, Kafka], operator: Settings) -> None:
    where = f"Kafka at {operator.kafka.bootstrap} does not allow"
    remedy = "an ACL is missing. `ackstream acls` prints those that each party needs"
    events = [subscription("events")]
    attempts: dict[str, Any] = {
        "s-requester to read the topic s-signals": lambda: Responder(kafkas["requester"], handler=lambda _: None),
        "s-archive to read the topic s-replies": lambda: Requester(kafkas["archive"]),
        "s-gateway to write the topic s-dead-letters": lambda: check_topics(
            None, kafkas["gateway"], writes=["s-dead-letters"]
        ),
        "s-responder to use the consumer group s-mine": lambda: Responder(
            kafkas["responder"], handler=lambda _: None, group="mine"
        ),
        "s-responder to read the topic s-events": lambda: Subscriber(
            kafkas["responder"], handler=lambda _: None, subscriptions=events
        ),
        "s-reader to write the topic s-messages": lambda: Publisher(kafkas["reader"], name="p"),
        "s-publisher to read the topic s-messages": lambda: SampleReader(kafkas["publisher"], name="P"),
        "s-publisher to read the topic s-queue-deliveries": lambda: QueueConsumer(
            kafkas["publisher"], queue="q", name="A"
        ),
        "s-publisher to read the topic s-query-results": lambda: QueryClient(kafkas["publisher"], name="q"),
        "s-archive to read the topic s-signals": lambda: prepare(
            Settings(kafka=kafkas["archive"]), PARTIES["correlate"].topics, PARTIES["correlate"]
        ),
        "s-mirror to create the topic s-ledger, which is missing": lambda: prepare(
            Settings(kafka=kafkas["mirror"]), ["ledger"]
        ),
    }
    for what, attempt in attempts.items():
        with pytest.raises(AccessRefusedError) as caught:
            attempt()
        assert f"{where} {what}: {remedy}" in str(caught.value)


def test_a_missing_topic_is_hidden_from_all_but_the_operator(kafkas: dict[str, Kafka], operator: Settings) -> None:
    with pytest.raises(AccessRefusedError, match="to read the topic none-replies"):
        Requester(kafkas["requester"].model_copy(update={"topic_prefix": "none-"}))
    with pytest.raises(UnreachableError, match="There is no topic none-"):
        Requester(operator.kafka.model_copy(update={"topic_prefix": "none-"}))


@pytest.mark.parametrize("command", [["watch", "--once"], ["readers", "list"], ["acls", "--apply"]])
def test_a_command_that_is_refused_prints_one_sentence(
    broker: SecuredBroker, operator: Settings, tmp_path: Path, command: list[str]
) -> None:
    wrong = operator.kafka.security.model_copy(update={"password": KafkaSecurity(**_plain("47110815")).password})
    settings = Settings(kafka=Kafka(bootstrap=broker.bootstrap, topic_prefix="s-", security=wrong))
    program = Program("command", command, settings, tmp_path)
    eventually(lambda: program.ended, "its end")
    (line,) = program.log.read_text("utf-8").splitlines()
    assert program.status == 1
    assert line.startswith(f"Kafka at {broker.bootstrap} refuses the login of operator by SCRAM-SHA-512 (")


# by default the tests of missing ACLs show the sentence, and those of drivers how they end with one
@pytest.mark.long
def test_a_job_that_is_refused_ends_with_one_sentence(
    broker: SecuredBroker, kafkas: dict[str, Kafka], tmp_path: Path
) -> None:
    lake = Lake(path=str(tmp_path / "lake"), checkpoints=str(tmp_path / "checkpoints"))
    job = Job("correlate", Settings(kafka=kafkas["archive"], lake=lake), tmp_path)
    eventually(lambda: job.ended, "its end")
    assert job.status == 1
    lines = job.log.read_text("utf-8").splitlines()
    assert f"Kafka at {broker.bootstrap} does not allow s-archive to read the topic s-signals" in lines[-1]
    assert not [line for line in lines if "Traceback" in line or line.startswith("\tat ")]
