"""What a broker refuses, or is not to be trusted for, is one sentence at once; one that is away is left to the library.

The other side is a TLS server; what a real broker does with logins is in tests/integration/test_secured.py.
"""

from __future__ import annotations

import getpass
import os
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from ackstream.errors import AccessRefusedError, UnreachableError
from ackstream.kafka import clients
from ackstream.kafka.login import addresses, check_login, operator
from ackstream.settings import Kafka
from ackstream.settings.kafka import KafkaSecurity
from ackstream.settings.security import Tls
from tests.harness.certificates import Authority
from tests.harness.ports import ending_each, free_ports


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@contextmanager
def served(context: ssl.SSLContext | None) -> Iterator[int]:
    """Answer each request as one for the versions of the API, naming none; give the port. ``None``: without TLS."""
    with closing(socket.create_server(("", 0))) as listener:

        def serve() -> None:
            while True:
                try:
                    raw, _ = listener.accept()
                except OSError:
                    return
                with suppress(OSError), ExitStack() as stack:
                    connection = stack.enter_context(raw)
                    if context is not None:
                        connection = stack.enter_context(context.wrap_socket(raw, server_side=True))
                    while request := connection.recv(4_096):
                        number = request[8:12]
                        connection.sendall(struct.pack(">i", 10) + number + bytes(6))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


def _context(certificate: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_ca)
    return context


def _refusal(bootstrap: str, **tls: Any) -> str:
    with pytest.raises(AccessRefusedError) as caught:
        check_login(bootstrap, KafkaSecurity(protocol="SSL", tls=Tls(**tls)))
    return str(caught.value)


def test_a_broker_of_the_named_authority_is_asked_once(authority: Authority) -> None:
    security = KafkaSecurity(protocol="SSL", tls=Tls(ca=authority.ca))
    with served(_context(authority.issue("broker"))) as port:
        check_login(f"localhost:{port}", security)
    # nothing listens any more
    check_login(f"localhost:{port}", security)


def test_an_expired_certificate_is_to_be_renewed(authority: Authority) -> None:
    certificate, key = authority.issue_pair("old", expired=True)
    both = certificate.with_name("both.pem")
    both.write_text(key.read_text() + certificate.read_text())
    with served(_context(both)) as port:
        sentence = _refusal(f"localhost:{port}", ca=authority.ca)
    assert sentence == f"The certificate of Kafka at localhost:{port} has expired: renew it at the broker."


def test_an_unknown_authority_is_to_be_named(authority: Authority) -> None:
    with served(_context(authority.issue("broker"))) as port:
        sentence = _refusal(f"localhost:{port}")
    assert sentence == (
        f"The certificate of Kafka at localhost:{port} is of no authority in the system: name the file with its "
        f"authority as kafka.security.tls.ca."
    )


def test_a_certificate_for_another_name_is_refused_unless_names_are_not_verified(authority: Authority) -> None:
    with served(_context(authority.issue("broker"))) as port:
        assert f"at 127.0.0.2:{port} is for another name" in _refusal(f"127.0.0.2:{port}", ca=authority.ca)
        check_login(f"127.0.0.2:{port}", KafkaSecurity(protocol="SSL", tls=Tls(ca=authority.ca, verify_hostname=False)))


def test_a_broker_that_wants_a_certificate_says_so_and_refuses_a_foreign_one(
    authority: Authority, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    certificate, key = Authority(tmp_path / "other").issue_pair("me")
    mine = authority.issue("mine")
    with served(_context(authority.issue("broker"), authority.ca)) as port:
        assert "wants a certificate of its clients" in _refusal(f"localhost:{port}", ca=authority.ca)
        foreign = _refusal(f"localhost:{port}", ca=authority.ca, certificate=certificate, key=key)
        check_login(f"localhost:{port}", KafkaSecurity(protocol="SSL", tls=Tls(ca=authority.ca, certificate=mine)))
    assert f"refuses the certificate {certificate} (" in foreign
    assert "renew it, or have it issued by an authority that the broker trusts" in foreign


def test_a_broker_without_tls_is_not_spoken_to_with_it() -> None:
    with served(None) as port:
        sentence = _refusal(f"localhost:{port}")
    assert f"Kafka at localhost:{port} does not use TLS as SSL needs it" in sentence
    assert "correct kafka.security.protocol" in sentence


def test_a_broker_that_is_away_is_left_to_the_library() -> None:
    (port,) = free_ports(1)
    check_login(f"localhost:{port}", KafkaSecurity(protocol="SSL"))


@pytest.mark.parametrize("tls", [True, False])
def test_what_listens_but_is_no_open_kafka_is_recognised(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, *, tls: bool
) -> None:
    monkeypatch.setitem(clients._COMMON, "bootstrap_timeout_ms", 200)
    context = _context(authority.issue("broker")) if tls else None
    with served(context) as port, pytest.raises(UnreachableError) as caught:
        clients.connect_admin(Kafka(bootstrap=f"localhost:{port}"))
    hint = (
        f"localhost:{port} expects TLS: set kafka.security.protocol to SSL or SASL_SSL."
        if tls
        else f"something else answers at localhost:{port}, or clients have to log in"
    )
    assert f"No Kafka answers at localhost:{port}: {hint}" in str(caught.value)


def test_what_ends_each_connection_is_not_called_another_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(clients._COMMON, "bootstrap_timeout_ms", 200)
    with ending_each() as port, pytest.raises(UnreachableError) as caught:
        clients.connect_admin(Kafka(bootstrap=f"127.0.0.1:{port}"))
    assert (
        f"No Kafka answers at 127.0.0.1:{port}: the service at 127.0.0.1:{port} ends each connection: start the "
        f"broker behind it"
    ) in str(caught.value)


def test_addresses_are_those_of_the_settings() -> None:
    assert list(addresses("a:1, b:2,[::1]:3")) == [("a", 1), ("b", 2), ("::1", 3)]


def test_an_operator_is_named_by_the_login_then_by_the_user_then_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found: 1000830000")

    login = KafkaSecurity.model_construct(username="ada")
    assert operator(Kafka().model_copy(update={"security": login})) == "ada"
    assert operator(Kafka()) == getpass.getuser()
    monkeypatch.setattr(getpass, "getuser", unknown)
    assert operator(Kafka()) == str(os.getuid())
