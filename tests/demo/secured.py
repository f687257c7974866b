"""The one-node Kafka with TLS, a login for each party, and the ACLs of each; and the Kafka and files of the demo.

Its authority, passwords and settings files are in ``DATA/secured``, which only their owner can read. Each file
``PARTY.toml`` has the settings with which a party connects; the operator's login may do everything.
"""

from __future__ import annotations

import ipaddress
import json
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

from kafka.admin import ScramMechanism, UserScramCredentialUpsertion
from kafka.errors import KafkaError
from rich.console import Console

from ackstream.errors import LocalError, UnreachableError
from ackstream.kafka import parties, topics
from ackstream.kafka.clients import connect_admin
from ackstream.kafka.parties import OPERATOR, PARTIES
from ackstream.local import machine
from ackstream.local.machine import locked, write_file
from ackstream.settings import Kafka, Lake, Settings
from ackstream.settings.kafka import KafkaSecurity
from ackstream.settings.security import Secret, Tls

if TYPE_CHECKING:
    from cryptography.x509 import ExtensionType

    from tests.demo.broker import Broker, create_topics
else:
    # the wheel has no package `tests`
    _plain = machine.shared_with_tests("demo/broker.py")
    Broker, create_topics = _plain.Broker, _plain.create_topics

MECHANISM = "SCRAM-SHA-512"
NODE = "ackstream-broker"
"""The name in the certificate of the broker, with which it is known to its controller."""


class SecuredBroker(Broker):
    """One Kafka node that requires a login."""

    HOME = "secured"

    @property
    def kafka(self) -> Kafka:
        """The operator's settings."""
        return Kafka(bootstrap=self.bootstrap, security=self._security(OPERATOR))

    def as_user(self, settings: Settings, user: str) -> Settings:
        """Return the settings of a system with the login of a user."""
        changed = {"bootstrap": self.bootstrap, "security": self._security(user)}
        return settings.model_copy(update={"kafka": settings.kafka.model_copy(update=changed)})

    def admit(self, settings: Settings) -> list[Path]:
        """Give each party of a system its login and its ACLs; return their settings files, the operator's first."""
        names = parties.principals(settings, {OPERATOR: f"User:{OPERATOR}"})
        users = {party: principal.partition(":")[2] for party, principal in names.items()}
        with connect_admin(self.kafka) as admin:
            known = admin.describe_user_scram_credentials()
            new = [user for party, user in users.items() if party != OPERATOR and user not in known]
            if new:
                mechanism = ScramMechanism.SCRAM_SHA_512
                admin.alter_user_scram_credentials(
                    [UserScramCredentialUpsertion(user, mechanism, self._password(user)) for user in new]
                )
        parties.apply_acls(self.as_user(settings, OPERATOR), names, PARTIES)
        return [self._write_settings(settings, party, users[party]) for party in (OPERATOR, *PARTIES)]

    def _security(self, user: str) -> KafkaSecurity:
        return KafkaSecurity(
            protocol="SASL_SSL",
            mechanism=MECHANISM,
            username=user,
            password=Secret(self._password(user)),
            tls=Tls(ca=self._home / "ca.pem"),
        )

    def _password(self, user: str) -> str:
        file = self._password_file(user)
        if not file.exists():
            write_file(file, secrets.token_urlsafe(24).encode())
        return file.read_text("ascii")

    def _password_file(self, user: str) -> Path:
        return self._home / f"{user}.password"

    def settings_file(self, party: str) -> Path:
        """Return the file with the settings of a party."""
        return self._home / f"{party}.toml"

    def _write_settings(self, settings: Settings, party: str, user: str) -> Path:
        path, own = self.settings_file(party), settings.lake
        if own == Lake():
            # checkpoints count the offsets of one Kafka
            own = Lake(path=str(self._home / "lake"), checkpoints=str(self._home / "checkpoints"))
        text = (
            f"# Settings of the party {party}, written by `ackstream up --secure`: ACKSTREAM_CONF={path}\n"
            f"[kafka]\nbootstrap = {_toml(self.bootstrap)}\ntopic_prefix = {_toml(settings.kafka.topic_prefix)}\n"
            f'[kafka.security]\nprotocol = "SASL_SSL"\nmechanism = "{MECHANISM}"\nusername = {_toml(user)}\n'
            f"password = {{ file = {_toml(self._password_file(user))} }}\n"
            f"tls = {{ ca = {_toml(self._home / 'ca.pem')} }}\n"
            f"[lake]\npath = {_toml(own.path)}\ncheckpoints = {_toml(own.checkpoints)}\n"
        )
        path.write_text(text, "utf-8")
        return path

    # -- differences from the open one ---------------------------------------------------------------------------------

    def _own_properties(self) -> str:
        self._home.chmod(0o700)
        authority = Authority(self._home)
        return (
            machine.conf("secured.properties")
            .read_text("utf-8")
            .format(
                client=self.bootstrap,
                controller=f"localhost:{self._local.controller_port}",
                data=self.data,
                # a new one with each start: it is never old
                certificate=authority.issue(NODE),
                ca=authority.ca,
                mechanism=MECHANISM,
                lower=MECHANISM.lower(),
                operator=OPERATOR,
                password=self._password(OPERATOR),
                node=NODE,
            )
        )

    def _format(self, program: Path, class_path: list[Path], log: IO[str]) -> None:
        try:
            super()._format(program, class_path, log)
        finally:
            (self._home / "format").unlink(missing_ok=True)

    def _format_arguments(self) -> list[str]:
        # in a file: all users of the machine can read the arguments of a program
        user = f"{MECHANISM}=[name={OPERATOR},password={self._password(OPERATOR)}]"
        file = self._home / "format"
        write_file(file, "\n".join([*super()._format_arguments(), "--add-scram", user]).encode())
        return [f"@{file}"]


AUTHORITY_VALID, VALID = timedelta(days=3650), timedelta(days=365)
HOSTS = ("localhost", "127.0.0.1", "::1")
_BEFORE = timedelta(days=1)
"""The start of validity before now: clocks of machines differ, and may be set for another time zone."""


def _toml(value: object) -> str:
    # a text of JSON is one of TOML
    return json.dumps(str(value), ensure_ascii=False)


class Authority:
    """Signs certificates for this machine; it is made once, and ``ca`` is the file with its own certificate."""

    def __init__(self, directory: Path, name: str = "ackstream local authority") -> None:
        """Take the authority of a directory, or make one."""
        from cryptography import x509  # noqa: PLC0415 - of the extra tls, which `ackstream status` does without
        from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415

        self._directory, self.ca, file = directory, directory / "ca.pem", directory / "ca.key"
        self._issuer: Any = None
        self._key: Any = None
        if not (file.exists() and self.ca.exists()):
            key, certificate = self._sign(name, AUTHORITY_VALID, x509.BasicConstraints(ca=True, path_length=0))
            write_file(file, key)
            self.ca.write_bytes(certificate)
        self._issuer = x509.load_pem_x509_certificate(self.ca.read_bytes()).subject
        self._key = load_pem_private_key(file.read_bytes(), None)

    def issue(self, name: str, valid: timedelta = VALID, hosts: Sequence[str] = HOSTS) -> Path:
        """Write a key and its certificate, by default for this machine, to one file; return it."""
        from cryptography.x509 import DNSName, IPAddress, SubjectAlternativeName  # noqa: PLC0415 - see above

        names = [IPAddress(ipaddress.ip_address(host)) if host[-1].isdigit() else DNSName(host) for host in hosts]
        file = self._directory / f"{name}.pem"
        write_file(file, b"".join(self._sign(name, valid, SubjectAlternativeName(names))))
        return file

    def _sign(self, name: str, valid: timedelta, extension: ExtensionType) -> tuple[bytes, bytes]:
        """Make a key and its certificate, which the key itself signs for the authority; return both in PEM."""
        from cryptography import x509  # noqa: PLC0415 - see above
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
        from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat  # noqa: PLC0415

        key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(timezone.utc)
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        builder = x509.CertificateBuilder(self._issuer or subject, subject, key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now + min(timedelta(), valid) - _BEFORE).not_valid_after(now + valid)
        builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        certificate = builder.sign(self._key or key, SHA256())
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return pem, certificate.public_bytes(Encoding.PEM)


# -- the demo ----------------------------------------------------------------------------------------------------------


@contextmanager
def environment(settings: Settings, console: Console, *, secure: bool = False) -> Iterator[Settings]:
    """Provide Kafka and empty directories for a block, and yield their settings; LocalError has the remedy.

    A Kafka started by ``ackstream up`` is reused, with separate topics that are deleted afterwards: these settings have
    a topic prefix. Otherwise one is started and stopped again. The lake is kept.

    :param secure: start one with TLS, and a login and ACLs for each party; the settings have the operator's login
    """
    home = settings.local.data / "demo"

    def refuse() -> NoReturn:
        raise LocalError(
            f"Another demo is running in {home}: wait for it to end, or set local.data (ACKSTREAM_LOCAL_DATA) and "
            f"local.port (ACKSTREAM_LOCAL_PORT) to other values."
        )

    with ExitStack() as stack:
        stack.enter_context(locked(home / "lock", "set local.data (ACKSTREAM_LOCAL_DATA) to one that can", refuse))
        borrowed = not secure and Broker(settings).answers()
        own = demo_settings(settings, home, f"demo-{int(time.time())}-" if borrowed else "")
        broker: Broker = SecuredBroker(own) if secure else Broker(own)
        # left over from a killed demo
        for left in (Broker(own), SecuredBroker(own)):
            left.stop()
        lake, logins = Path(own.lake.path), home / SecuredBroker.HOME
        if lake.is_dir():
            former = datetime.fromtimestamp(lake.stat().st_mtime, timezone.utc)
            console.print(f"Replacing the tables of the demo of {former:%Y-%m-%d %H:%M} UTC in {lake}", highlight=False)
        for path in (home / "kafka" / "data", logins, lake, Path(own.lake.checkpoints)):
            shutil.rmtree(path, ignore_errors=True)
        if borrowed:
            stack.callback(_delete_topics, own)
        else:
            # an interruption of the start leaves nothing running
            stack.callback(broker.stop)
            broker.start(console)
        own = broker.as_user(own, OPERATOR)
        create_topics(own)
        broker.admit(own)
        yield own


def demo_settings(settings: Settings, home: Path, topic_prefix: str) -> Settings:
    """Return settings that keep all data below ``home`` and use the local Kafka."""
    bootstrap, partitions = f"localhost:{settings.local.port}", settings.kafka.partitions
    return settings.model_copy(
        update={
            "kafka": Kafka(bootstrap=bootstrap, topic_prefix=topic_prefix, partitions=partitions),
            "local": settings.local.model_copy(update={"data": home}),
            "lake": Lake(path=str(home / "lake"), checkpoints=str(home / "checkpoints")),
            # an archive batch keeps a core busy for seconds, and here it shares two cores with correlate
            "archive": settings.archive.model_copy(update={"trigger": 10_000}),
        }
    )


def _delete_topics(settings: Settings) -> None:
    # the broker may be gone, and the topics with it
    with suppress(KafkaError, UnreachableError), connect_admin(settings.kafka) as client:
        client.delete_topics([settings.kafka.topic(name) for name in topics.TOPICS])
