"""The one-node Kafka of a laptop: formatted, started, awaited, and stopped by pid, without Docker."""

import base64
import contextlib
import os
import re
import subprocess
import time
import uuid
from collections.abc import Collection
from pathlib import Path
from typing import IO

import psutil
from kafka.errors import KafkaError
from rich.console import Console

from ackstream.errors import ClientError, LocalError
from ackstream.kafka import topics
from ackstream.kafka.clients import connect_admin
from ackstream.local import jars, machine
from ackstream.local.machine import PRIVATE, answers, command_line, is_free, java_text, locked, owner, write_file
from ackstream.settings import Kafka, Settings

CLUSTER_ID = base64.urlsafe_b64encode(uuid.uuid5(uuid.NAMESPACE_DNS, "ackstream").bytes).decode().rstrip("=")
"""The cluster id of every machine, by which foreign data is recognised."""

_ASCII = re.compile(r"[\x00-\x7e]")
_STARTED = "Kafka Server started"
_POLL_SECONDS = 0.05
_GRACE_SECONDS = 20.0
_LAST_LINES = 5


class Broker:
    """One Kafka node that outlives this process: data in ``DATA/kafka``, logs of two runs in ``DATA/logs``."""

    HOME = "kafka"

    def __init__(self, settings: Settings) -> None:
        self._local = local = settings.local
        self._home = local.data.absolute() / self.HOME
        self._properties = self._home / "broker.properties"
        self._version_file = self._home / "kafka-version"
        self._pid_file = self._home / "broker.pid"
        self.data = self._home / "data"
        self.log = local.data.absolute() / "logs" / "kafka.log"
        self.bootstrap = f"localhost:{local.port}"

    @property
    def kafka(self) -> Kafka:
        """The settings with which clients connect."""
        return Kafka(bootstrap=self.bootstrap)

    def as_user(self, settings: Settings, _user: str) -> Settings:
        """Return the settings of a system with the login of a user: the same, as this broker knows no logins."""
        return settings

    def admit(self, _settings: Settings) -> list[Path]:
        """Give each party of a system its login and its ACLs; return the files with their settings."""
        return []

    def start(self, console: Console | None = None) -> bool:
        """Start the broker, wait until it answers, and return whether it was not running; LocalError has the remedy."""
        machine.check_surroundings(spark=False)
        program = machine.find_java().program
        console = console or Console(quiet=True)
        class_path = jars.resolve("broker", console)
        remedy = "set local.data (ACKSTREAM_LOCAL_DATA) to one that can"
        waiting = "Another process is starting Kafka; waiting for it."
        with locked(self._home / "lock", remedy, lambda: console.print(waiting)):
            if self.pid() is not None:
                return False
            for key, port in (("port", self._local.port), ("controller_port", self._local.controller_port)):
                if not is_free(port):
                    also = " and kafka.bootstrap (ACKSTREAM_KAFKA_BOOTSTRAP)" if key == "port" else ""
                    raise LocalError(
                        f"Port {port} is in use by {owner(port) or 'another program'}: stop that, or set local.{key} "
                        f"(ACKSTREAM_LOCAL_{key.upper()}){also} to a free one."
                    )
            self.log.parent.mkdir(parents=True, exist_ok=True)
            if self.log.exists():
                self.log.replace(self.log.with_name("kafka.log.1"))
            # they may have a password
            properties = (
                f"{machine.conf('broker.properties').read_text('utf-8')}\n"
                f"# Written at every start: changes are lost\n{self._own_properties()}"
            )
            write_file(self._properties, java_text(properties, _ASCII).encode())
            with self.log.open("w") as log, console.status(f"Starting Kafka at {self.bootstrap}"):
                self._format(program, class_path, log)
                process = _run(program, self._local.heap, class_path, ["kafka.Kafka", str(self._properties)], log)
                try:
                    write_file(self._pid_file, b"%d\n" % process.pid)
                    self._await(process)
                except BaseException:
                    # an interrupted or failed start leaves nothing behind
                    process.kill()
                    process.wait()
                    self._pid_file.unlink(missing_ok=True)
                    raise
            # it outlives this process: without a return code Popen would warn that it is still running
            process.returncode = 0
        return True

    def stop(self) -> bool:
        """Stop the broker, by SIGKILL if SIGTERM has no effect; keep its data. Return whether it was running."""
        pid = self.pid()
        if pid is None:
            return False
        with contextlib.suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
            process = psutil.Process(pid)
            process.terminate()
            try:
                process.wait(_GRACE_SECONDS)
            except psutil.TimeoutExpired:
                process.kill()
                process.wait(_GRACE_SECONDS)
        self._pid_file.unlink(missing_ok=True)
        return True

    def pid(self) -> int | None:
        """Return the process id, ``None`` if the broker is not running; remove a stale pid file."""
        try:
            pid = int(self._pid_file.read_text("ascii"))
        except FileNotFoundError:
            return None
        except ValueError:
            pid = 0
        # never another program with a reused pid
        if pid > 0 and str(self._properties) in command_line(pid):
            return pid
        self._pid_file.unlink(missing_ok=True)
        return None

    def answers(self) -> bool:
        """Return whether the broker is running and accepts connections."""
        return self.pid() is not None and answers(self._local.port)

    def _own_properties(self) -> str:
        client, controller = self.bootstrap, f"localhost:{self._local.controller_port}"
        return (
            f"listeners=PLAINTEXT://{client},CONTROLLER://{controller}\n"
            f"advertised.listeners=PLAINTEXT://{client}\n"
            f"controller.quorum.voters=1@{controller}\n"
            f"log.dirs={self.data}\n"
        )

    def _format_arguments(self) -> list[str]:
        return ["-t", CLUSTER_ID, "-c", str(self._properties)]

    def _format(self, program: Path, class_path: list[Path], log: IO[str]) -> None:
        """Give an empty data directory its cluster id; refuse data of another cluster or a newer Kafka."""
        versions = [match[1] for jar in class_path if (match := re.fullmatch(r"kafka_2\.\d+-(.+)\.jar", jar.name))]
        if not versions:
            raise LocalError(f"The broker jars of {machine.conf('ivy.xml')} do not include Kafka: restore the file.")
        version = versions[0]
        formatted = self.data / "meta.properties"
        if formatted.exists():
            self._check_data(formatted.read_text("utf-8"), version)
        else:
            arguments = ["kafka.tools.StorageTool", "format", *self._format_arguments()]
            process = _run(program, "128m", class_path, arguments, log)
            if process.wait() != 0:
                raise self._died("could not format its data directory")
        self._version_file.write_text(version + "\n", "ascii")

    def _check_data(self, meta: str, version: str) -> None:
        found = re.search(r"^cluster\.id=(.*)$", meta, re.MULTILINE)
        remedy = "move it away, or set local.data (ACKSTREAM_LOCAL_DATA) to another directory"
        if found is None or found[1] != CLUSTER_ID:
            other = found[1] if found else "without an id"
            raise LocalError(f"The data in {self.data} belong to another Kafka cluster ({other}): {remedy}.")
        before = self._version_file.read_text("ascii").strip() if self._version_file.exists() else version
        if _release(before) > _release(version):
            raise LocalError(
                f"The data in {self.data} were written by Kafka {before}, which is newer than this one ({version}): "
                f"{remedy}."
            )

    def _await(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + self._local.start_timeout / 1000
        while _STARTED not in self.log.read_text("utf-8", "replace"):
            if process.poll() is not None:
                raise self._died("ended while it started")
            if time.monotonic() > deadline:
                raise self._died(
                    f"did not start within {self._local.start_timeout / 1000:g} s (local.start_timeout, "
                    f"ACKSTREAM_LOCAL_START_TIMEOUT)"
                )
            time.sleep(_POLL_SECONDS)
        remaining = max(1000, int((deadline - time.monotonic()) * 1000))
        try:
            with connect_admin(self.kafka, bootstrap_timeout_ms=remaining) as admin:
                admin.describe_cluster()
        except (KafkaError, ClientError) as error:
            raise self._died(f"started but does not answer ({error})") from None

    def _died(self, how: str) -> LocalError:
        lines = [line for line in self.log.read_text("utf-8", "replace").splitlines() if line.strip()]
        # the first error is the cause, the others are its consequences
        causes = [line for line in lines if re.search(r" ERROR |^Error|Exception:", line)]
        shown = dict.fromkeys([*causes[:1], *lines[-_LAST_LINES:]])
        excerpt = "".join(f"\n  {line}" for line in shown) or " nothing"
        return LocalError(
            f"Kafka {how}: fix what its log {self.log} reports and start it again. The log says:{excerpt}"
        )


def create_topics(settings: Settings, names: Collection[str] = topics.TOPICS) -> list[str]:
    """Create missing topics; return their real names once every partition has a leader that answers.

    :raises LocalError: a topic cannot be created, or has no leader within ``local.start_timeout``
    """
    # the metadata name a leader before it answers: until then it refuses clients (NOT_LEADER_OR_FOLLOWER)
    created, deadline = topics.ensure_topics(settings, names), time.monotonic() + settings.local.start_timeout / 1000
    with connect_admin(settings.kafka) as admin:
        while True:
            try:
                topics.ends(admin, topics.replicas(admin, map(settings.kafka.topic, names)))
            except KafkaError as error:
                if time.monotonic() > deadline:
                    raise LocalError(
                        f"Kafka has no leader for each topic ({error}): see its log, and repeat."
                    ) from None
                time.sleep(_POLL_SECONDS)
            else:
                return created


def _run(
    program: Path, heap: str, class_path: list[Path], arguments: list[str], log: IO[str]
) -> subprocess.Popen[bytes]:
    """Start Java in its own session, so that Ctrl-C in the terminal does not reach it."""
    # C1 alone starts faster and needs less memory; a laptop's broker is never busy enough to miss C2. Kafka finds its
    # keywords by their upper case, and Turkish has another upper-case I
    options = [f"-Xmx{heap}", "-XX:TieredStopAtLevel=1", "-Duser.language=en"]
    return subprocess.Popen(
        [program, *options, f"-Dlog4j2.configurationFile={machine.conf('log4j2.properties')}", *arguments],
        # in the environment, so that the command line stays readable in ps
        env={**os.environ, "CLASSPATH": ":".join(map(str, class_path))},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        umask=PRIVATE,
    )


def _release(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))
