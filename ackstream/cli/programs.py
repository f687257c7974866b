"""``ackstream submit``, ``run``, ``gateway``, ``connect``, ``route``: start the programs of the system."""

from __future__ import annotations

import logging
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ackstream.cli.terminal import Interrupts, Terminal, echo, load, name_and_value
from ackstream.errors import InputError, LocalError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ackstream.connectivity.transports.transport import Runner
    from ackstream.settings import Settings

_OPTIONS = {"spark.master": "--master", "spark.submit.deployMode": "--deploy-mode"}
"""Entries that have an option."""

MIRROR = "mirror"
"""The one job with an argument."""


def _jobs(incomplete: str) -> list[str]:
    from ackstream.local.installation import jobs

    return [name for name in jobs() if name.startswith(incomplete)]


def submit(
    job: Annotated[
        str, typer.Argument(help="A script in jobs/, such as correlate.", metavar="JOB", autocompletion=_jobs)
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(help="Arguments of the job: of mirror the name of a destination.", metavar="-- ARGUMENT"),
    ] = None,
    *,
    master: Annotated[
        str | None,
        typer.Option(help="Where it runs, such as yarn, in place of spark.master of the settings.", metavar="URL"),
    ] = None,
    deploy_mode: Annotated[
        Literal["client", "cluster"], typer.Option(help="Where its driver runs: here, or in the cluster.")
    ] = "client",
    conf: Annotated[
        list[str] | None,
        typer.Option(help="An entry of Spark, over those of the settings; repeatable.", metavar="KEY=VALUE"),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the spark-submit command.")] = False,
) -> None:
    """Print the complete spark-submit command of a job and run it.

    SPARK_HOME and PYSPARK_PYTHON are respected, and so are the entries of your own spark-defaults.conf.
    """
    from ackstream.local.submit import MASKED, run, submit_command, submit_environment

    settings = load()
    given = {"master": master or settings.spark.master, "conf": settings.spark.conf | dict(map(_entry, conf or ()))}
    settings = settings.model_copy(update={"spark": settings.spark.model_copy(update=given)})
    _check(settings, job, arguments or ())
    command = submit_command(settings, job, *(arguments or ()), deploy_mode=deploy_mode, console=Terminal(stderr=True))
    echo(shlex.join(command), err=not dry_run)
    for key in settings.spark.conf:
        echo(f"  {key}={MASKED}", err=True)
    if not dry_run:
        run(command, submit_environment(settings.spark.master, deploy_mode, settings.log.format))


def run_together(
    jobs: Annotated[
        list[str], typer.Argument(help="Jobs, such as correlate archive twin.", metavar="JOB…", autocompletion=_jobs)
    ],
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the spark-submit command.")] = False,
) -> None:
    """Run several jobs in one Spark session, which takes less of a small machine than one for each.

    Ctrl-C stops all of them; when one ends, all end. A mirror runs by itself: `ackstream submit mirror NAME`.
    """
    from ackstream.local import installation
    from ackstream.local.submit import run, submit_command, submit_environment

    settings, known = load(), [name for name in installation.jobs() if name != MIRROR]
    if unknown := [name for name in jobs if name not in known]:
        raise InputError(f"{unknown[0]!r} cannot be run with others: the jobs are {', '.join(known)}.")
    names, script = list(dict.fromkeys(jobs)), Path(__file__).parent / "together" / "__main__.py"
    command = submit_command(settings, "+".join(names), *names, script=script, console=Terminal(stderr=True))
    echo(shlex.join(command), err=not dry_run)
    if not dry_run:
        run(command, submit_environment(settings.spark.master, log_format=settings.log.format))


def _entry(text: str) -> tuple[str, str]:
    key, value = name_and_value("--conf", text, "write KEY=VALUE, such as spark.executor.memory=2g")
    if option := _OPTIONS.get(key):
        raise InputError(f"--conf {key} would have no effect: use {option}.")
    return key, value


def _check(settings: Settings, job: str, arguments: Sequence[str]) -> None:
    """Refuse arguments that a job does not take, and for the mirror one that names no destination."""
    if job == MIRROR:
        from ackstream.jobs.mirror.job import named

        named(settings, arguments)
    elif arguments:
        raise InputError(
            f"The job {job} takes no arguments, so {arguments[0]!r} would have no effect: leave it out; options of "
            f"`ackstream submit` stand before --."
        )


def gateway() -> None:
    """Serve things over HTTP and WebSocket, and a live page of all requests; Ctrl-C stops it."""
    import asyncio

    from ackstream.gateway.exchange import connected
    from ackstream.gateway.server import Server
    from ackstream.observe.endpoint import serving

    settings = _logged("gateway")

    def print_address(address: str) -> None:
        line = f"The gateway is at {address}: things at /api/2/things, /ws/2; the live page at /, the API at /doc."
        Terminal(stderr=True, soft_wrap=True).print(line, highlight=False)

    with serving(settings.metrics, "gateway"), connected(settings) as dependencies:
        try:
            with Interrupts():
                asyncio.run(Server(dependencies, print_address).serve())
        except SystemExit:
            # uvicorn has logged the reason
            host, port = settings.gateway.host, settings.gateway.port
            raise LocalError(
                f"The gateway cannot listen at {host}:{port}: stop the program that uses the port, or choose another "
                f"one with gateway.port (ACKSTREAM_GATEWAY_PORT)."
            ) from None
        except KeyboardInterrupt:
            raise typer.Exit from None


def connect() -> None:
    """Run the connections of the settings: commands come in, events and messages go out. Ctrl-C stops it."""
    from ackstream.connectivity.connector import Connector

    settings = _logged("connect")
    connections = settings.connections
    names = [connection.id for connection in connections]
    _run(settings, "connect", "connections", names, lambda: Connector(settings, connections))


def route() -> None:
    """Run the routes of the settings: publishers' messages are passed on to other systems. Ctrl-C stops it."""
    from ackstream.connectivity.routes import Router

    settings = _logged("route")
    names = [route.name for route in settings.routes]
    _run(settings, "route", "routes", names, lambda: Router(settings, settings.routes))


def _run(settings: Settings, program: str, key: str, names: list[str], begin: Callable[[], Runner]) -> None:
    from ackstream.observe.endpoint import serving

    if not names:
        raise SettingsError(f"The settings define no {key}: add [[{key}]], see conf/ackstream.toml.")
    # other systems are unreachable now and then: the program itself logs that, and the time of its next attempt
    logging.getLogger("kafka").setLevel(logging.ERROR)
    console = Terminal(stderr=True)
    with Interrupts(), serving(settings.metrics, program), begin() as runner:
        console.print(f"Running {', '.join(names)}. Ctrl-C stops it.")
        try:
            runner.run()
        except KeyboardInterrupt:
            console.print("Closing.")


def _logged(program: str) -> Settings:
    """Read the settings, and configure the log by them."""
    from ackstream.observe import logs
    from ackstream.settings import Log

    # errors in the settings are logged, too
    logs.configure(Log(), program=program)
    settings = load()
    logs.configure(settings.log, program=program)
    return settings
