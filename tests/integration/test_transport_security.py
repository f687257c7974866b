"""TLS of every transport on a real broker of its kind: whom a connection trusts, and who it shows to be.

The authority is the test's own, so that the machine trusts none of the brokers.
"""

from __future__ import annotations

import ssl
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from ackstream.connectivity.transports.transport import OutgoingMessage, Published
from ackstream.errors import UnreachableError
from tests.harness.certificates import Authority
from tests.harness.remotes import Amqp091, Amqp10, Mqtt, Mqtt5, Remote
from tests.harness.service import Service
from tests.harness.waiting import eventually
from tests.integration.test_transports import System, command, consuming, publishing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.harness.brokers import RunningBroker

pytestmark = pytest.mark.integration
_numbers = count()
_PASSWORD = "47110815"


@dataclass
class Secured:
    """A broker, its authority, and the files of a client that it trusts."""

    authority: Authority
    broker: RunningBroker
    remote: type[Remote]
    client: dict[str, Any]

    def settings(self, listener: str, **tls: Any) -> dict[str, Any]:
        """Return the settings of a connection over TLS to one of the listeners."""
        return {"host": "localhost", "port": self.broker.tls[listener], "tls": {"ca": str(self.authority.ca), **tls}}


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[type[Remote]], Secured]]:
    """Return what starts the broker of a remote, or finds it running."""
    running: dict[Any, tuple[Authority, RunningBroker, dict[str, Any]]] = {}
    with ExitStack() as stack:

        def start(remote: type[Remote]) -> Secured:
            kind: Any = remote.broker
            if kind not in running:
                directory = tmp_path_factory.mktemp("secured")
                authority = Authority(directory)
                certificate, key = authority.issue_pair("plant", password=_PASSWORD)
                client = {"certificate": str(certificate), "key": str(key), "key_password": _PASSWORD}
                running[kind] = authority, stack.enter_context(kind(directory, authority)), client
            authority, broker, client = running[kind]
            return Secured(authority, broker, remote, client)

        yield start


@pytest.fixture(params=[Mqtt, Mqtt5, Amqp10, Amqp091], ids=lambda remote: remote.__name__)
def secured(request: pytest.FixtureRequest, brokers: Callable[[type[Remote]], Secured]) -> Secured:
    return brokers(request.param)


@pytest.fixture
def remote(secured: Secured) -> Iterator[Remote]:
    found = secured.remote(secured.broker, f"s{next(_numbers)}")
    yield found
    found.close()


def test_a_connection_shows_its_certificate_and_trusts_its_authority(secured: Secured, remote: Remote) -> None:
    login = {"username": "guest", "password": "guest"} if secured.remote is Amqp091 else {}
    system, results = System(), list[Published]()
    connection = remote.connection(targets=[remote.target()]) | secured.settings("mutual", **secured.client) | login
    with consuming(connection, system), publishing(connection) as publisher:
        remote.send(command("a"))
        eventually(lambda: system.asked == ["a"] and remote.depth() == 0, "the settlement")
        address = connection["targets"][0]["address"]
        publisher.publish(OutgoingMessage(address, {"correlation-id": "b"}, b"1"), results.append)
        eventually(lambda: results, "the confirmation")
    assert results[0].succeeded
    assert [payload for _, payload in eventually(remote.receive, "the message")] == [b"1"]


def refused(connection: dict[str, Any]) -> list[str]:
    """Return why source and publisher are not opened."""
    found = []
    for opening in (consuming(connection, System()), publishing(connection)):
        with pytest.raises(UnreachableError) as caught, opening:
            pass
        found.append(str(caught.value))
    return found


def test_a_broker_that_demands_a_certificate_refuses_those_without_one(secured: Secured, remote: Remote) -> None:
    said = refused(remote.connection() | secured.settings("mutual"))
    assert all("correct connections.host, port, tls" in each for each in said)


@pytest.mark.parametrize(
    ("listener", "tls"),
    [
        pytest.param("foreign", True, id="of-an-unknown-authority"),
        pytest.param("expired", {}, id="expired"),
        pytest.param("foreign", {}, id="of-another-host"),
    ],
)
def test_a_certificate_that_cannot_be_trusted_ends_the_connection_with_a_sentence(
    secured: Secured, remote: Remote, listener: str, tls: Any
) -> None:
    connection = remote.connection() | secured.settings(listener)
    said = refused(connection | ({"tls": True} if tls is True else {}))
    assert all("correct connections.host, port, tls" in each and "ertificate" in each for each in said), said


def test_the_name_of_a_host_is_only_not_compared_on_demand(secured: Secured, remote: Remote, tmp_path: Path) -> None:
    system = System()
    with consuming(remote.connection() | secured.settings("foreign", verify_hostname=False), system):
        remote.send(command("a"))
        eventually(lambda: system.asked == ["a"], "the signal")
    # the authority still counts
    other = {"ca": str(Authority(tmp_path, "another").ca), "verify_hostname": False}
    refused(remote.connection() | secured.settings("foreign") | {"tls": other})


# -- HTTP --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def service(authority: Authority, **options: Any) -> Service:
    """Return a service that demands a certificate of its clients."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue_pair("service", **options))
    context.load_verify_locations(authority.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    return Service(context)


def pushed(url: str, tls: Any) -> Published:
    target = {"address": "POST:/", "topics": ["_/_/things/twin/events"]}
    results: list[Published] = []
    with publishing({"id": "s", "type": "http-push", "url": url, "targets": [target], "tls": tls}) as publisher:
        publisher.publish(OutgoingMessage("POST:/x", {}, b"1"), results.append)
        eventually(lambda: results, "the response")
    return results[0]


def test_a_service_over_https_is_that_of_the_authority_and_knows_its_client(authority: Authority) -> None:
    certificate, key = authority.issue_pair("plant")
    own = {"ca": str(authority.ca), "certificate": str(certificate), "key": str(key)}
    with ExitStack() as stack:
        running = service(authority)
        stack.callback(running.close)
        assert pushed(running.url, own).status == 200
        # no certificate, and no authority
        assert [pushed(running.url, tls).status for tls in ({"ca": str(authority.ca)}, True)] == [503, 503]
        assert len(running.requests) == 1
        for options in ({"expired": True}, {"host": "other.example"}):
            other = service(authority, **options)
            stack.callback(other.close)
            found = pushed(other.url, own)
            assert (found.status, found.away) == (503, True)
            assert "certificate" in found.reason
