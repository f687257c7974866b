"""A cluster of Spark's own kind on loopback, of the jars inside PySpark: a master, and workers that start executors.

All of it are processes of this machine, which can be killed one by one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from ackstream.local import machine
from tests.harness.ports import free_ports
from tests.harness.processes import LoggedProcess
from tests.harness.waiting import eventually

HOST = "127.0.0.1"
CORES, MEMORY = 2, "2g"
"""Of a worker, to share out: nothing keeps its executors to them."""

DAEMON_MEMORY = "192m"
MASTER, WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
ANSWER_SECONDS = 5
_EXECUTOR = re.compile(
    r"^\s*(?P<pid>\d+) .*CoarseGrainedExecutorBackend.* --worker-url spark://Worker@[^:]+:(?P<port>\d+)"
)


class Overview(NamedTuple):
    """What the master shows as JSON.

    :ivar used: cores in use of each worker that is alive, by the worker's port
    :ivar applications: names of those that run
    """

    used: dict[int, int]
    applications: tuple[str, ...]

    @classmethod
    def of(cls, shown: dict[str, Any]) -> Overview:
        alive = [worker for worker in shown["workers"] if worker["state"] == "ALIVE"]
        return cls(
            {worker["port"]: worker["coresused"] for worker in alive},
            tuple(application["name"] for application in shown["activeapps"]),
        )


def executors(listing: str, port: int) -> list[int]:
    """Return the processes of executors that the worker with a port has started.

    :param listing: what ``ps -A -ww -o pid=,args=`` prints
    """
    found = filter(None, map(_EXECUTOR.match, listing.splitlines()))
    return [int(match["pid"]) for match in found if int(match["port"]) == port]


class Daemon(LoggedProcess):
    """A master or a worker: a JVM of its own, started by Spark's own program for that."""

    def __init__(self, name: str, arguments: list[str], directory: Path) -> None:
        command = [str(machine.spark_home() / "bin" / "spark-class"), *arguments]
        # no settings of the product, no Spark of the caller's
        own = {name: text for name, text in os.environ.items() if not name.startswith(("ACKSTREAM_", "SPARK_"))}
        own |= {
            "SPARK_HOME": str(machine.spark_home()),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_LOCAL_DIRS": str(directory),
            "SPARK_DAEMON_MEMORY": DAEMON_MEMORY,
        }
        super().__init__(name, command, own, directory)


class Worker(Daemon):
    """A worker; its port is the same after each start.

    :ivar port: by which the master and the executors know it
    """

    def __init__(self, number: int, port: int, page: int, master: str, directory: Path) -> None:
        self.port = port
        arguments = [
            WORKER,
            *("--host", HOST, "--port", str(port), "--webui-port", str(page)),
            *("--cores", str(CORES), "--memory", MEMORY, "--work-dir", str(directory / f"worker-{number}")),
            master,
        ]
        super().__init__(f"worker-{number}", arguments, directory)

    def executors(self) -> list[int]:
        """Return the processes of its executors."""
        finished = subprocess.run(
            ["ps", "-A", "-ww", "-o", "pid=,args="], stdout=subprocess.PIPE, text=True, check=True
        )
        return executors(finished.stdout, self.port)

    def kill_executor(self) -> int:
        """Kill -9 one of its executors; return the process that it was."""
        victim: int = eventually(self.executors, f"an executor of {self.name}")[0]
        os.kill(victim, signal.SIGKILL)
        return victim


class Standalone:
    """The cluster.

    :ivar url: what ``--master`` is told
    """

    def __init__(self, directory: Path, stack: ExitStack, workers: int = 2) -> None:
        """Start all, and wait until the master knows the workers; ``stack`` kills them."""
        port, page, *others = free_ports(2 + 2 * workers)
        self.url, self._page = f"spark://{HOST}:{port}", f"http://{HOST}:{page}/json/"
        stack.callback(self.close)
        self.daemons: list[Daemon] = []
        self.workers: list[Worker] = []
        arguments = [MASTER, "--host", HOST, "--port", str(port), "--webui-port", str(page)]
        self.daemons.append(Daemon("master", arguments, directory))
        eventually(lambda: self.overview() is not None, "the master of Spark")
        for number in range(workers):
            worker = Worker(number, others[2 * number], others[2 * number + 1], self.url, directory)
            self.workers.append(worker)
            self.daemons.append(worker)
        eventually(lambda: len(self.used()) == workers, "the workers of Spark")

    def close(self) -> None:
        """Kill all, the executors too: those whose worker has gone end by themselves, but later."""
        for daemon in self.daemons:
            daemon.kill()
        for worker in self.workers:
            for pid in worker.executors():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def overview(self) -> Overview | None:
        """Return what the master shows; ``None`` before it answers.

        :raises AssertionError: it has ended
        """
        self.daemons[0].check()
        try:
            with urllib.request.urlopen(self._page, timeout=ANSWER_SECONDS) as answer:
                return Overview.of(json.load(answer))
        except OSError:
            return None

    def used(self) -> dict[int, int]:
        """Return the cores in use of each worker that is alive, by its port."""
        overview = self.overview()
        return {} if overview is None else overview.used
