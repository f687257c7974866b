"""The ``ackstream`` command, and the commands that start programs: submit, run, gateway, connect, route.

Each command imports its modules when it runs, so that help and version are fast.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Callable
from contextlib import ExitStack
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from ackstream import __version__, errors
from ackstream.cli import administration, messages, monitoring, requests, tables, terminal
from ackstream.local import machine

if TYPE_CHECKING:
    from ackstream.connectivity.transports.transport import Runner
    from ackstream.settings import Settings


def exit_code(error: errors.AckstreamError) -> int:
    """Return the exit code of a command that ends with an error."""
    wrong = (errors.InputError, errors.SettingsError, errors.BadParameterError, errors.InconsistentQosError)
    if isinstance(error, wrong):
        return terminal.WRONG_INPUT
    return terminal.NO_ANSWER if isinstance(error, (errors.UnreachableError, TimeoutError)) else terminal.FAILED


class Commands(TyperGroup):
    """Prints a product error as its sentence, in red on standard error, without a stack trace."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; end with the exit code of its error."""
        machine.keep_private()
        terminal.spare_proxies()
        sys.excepthook = terminal.show_error
        for stream in sys.stdout, sys.stderr:
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # characters that its encoding lacks
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(terminal.INTERRUPTED) from None
        except Exception as error:
            if (own := _own_error(error)) is None:
                raise
            terminal.show_failure(str(own))
            raise typer.Exit(exit_code(own)) from None


def _own_error(error: Exception) -> errors.AckstreamError | None:
    """Return an error of the product unchanged; convert one of Kafka's library about its broker to one."""
    if isinstance(error, errors.AckstreamError):
        return error
    if type(error).__module__.partition(".")[0] != "kafka":
        return None
    from ackstream.kafka.clients import EXPECTED, failure

    return failure(terminal.load().kafka, error) if isinstance(error, EXPECTED) else None


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    # brackets are text, not markup
    rich_markup_mode=None,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    help="Durable acknowledgements for commands and records over Kafka.",
    epilog="Exit codes: 0 done; 1 failed, or a negative answer; 2 a wrong option, argument or setting; 3 no answer "
    "from Kafka or a job; 130 Ctrl-C.",
)


def _print_version(*, wanted: bool) -> None:
    if wanted:
        terminal.echo(f"ackstream {__version__}")
        raise typer.Exit


@app.callback()
def options(
    *,
    settings: Annotated[
        Path | None,
        typer.Option(
            help="Settings file instead of conf/ackstream.toml in the working directory.",
            envvar="ACKSTREAM_CONF",
            metavar="FILE",
        ),
    ] = None,
    version: Annotated[  # noqa: ARG001 - its callback prints it
        bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Take the options of all commands."""
    if settings is not None:
        # that of the processes which a command starts, too
        os.environ["ACKSTREAM_CONF"] = str(settings)


@app.command()
def demo(
    commands: Annotated[int, typer.Option(min=1, help="Number of commands.", metavar="N")] = 2_000,
    rate: Annotated[
        float, typer.Option(min=1, max=2_000, help="Commands per second, up to 2000.", metavar="RATE")
    ] = 50,
    *,
    secure: Annotated[bool, typer.Option("--secure", help="Use TLS, and a login and ACLs per party.")] = False,
) -> None:
    """Send commands to simulated devices and show how they end; exit 1 if the counts do not add up.

    Starts Kafka unless it runs. The Delta tables stay in the directory `demo` of the local data.
    """
    console = terminal.Terminal()
    with terminal.Interrupts() as interrupts:
        try:
            with ExitStack() as stack:
                try:
                    environment = machine.shared_with_tests("demo/secured.py").environment
                    own = stack.enter_context(environment(terminal.load(), console, secure=secure))
                    run = machine.shared_with_tests("demo/course.py").run
                    good = run(own, console, commands, rate, interrupts, stack)
                finally:
                    interrupts.ignore()
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - re-raised
            # errors during an interrupted shutdown carry no information
            if interrupts.seen or isinstance(error, KeyboardInterrupt):
                console.print("Stopped; nothing is left running.")
                raise typer.Exit(terminal.INTERRUPTED) from None
            raise _reason(error) from None
    raise typer.Exit(0 if good else terminal.FAILED)


def _reason(error: BaseException) -> BaseException:
    """Return the first product error in the chain of causes, else the error itself."""
    found, step = error, error.__context__
    while step is not None:
        found = step if isinstance(step, errors.AckstreamError) else found
        step = step.__context__
    return found


def conformance(
    paths: Annotated[list[Path], typer.Argument(help="Files of cases (JSON Lines), or directories.", metavar="PATH")],
) -> None:
    """Run Ditto Protocol cases against the library; exit 1 if one fails."""
    raise typer.Exit(machine.shared_with_tests("conformance/runner.py").main(paths))


# -- programs ----------------------------------------------------------------------------------------------------------

_OPTIONS = {"spark.master": "--master", "spark.submit.deployMode": "--deploy-mode"}
"""Entries that have an option."""

MIRROR = "mirror"
"""The one job with an argument."""

Standby = Annotated[
    bool, typer.Option("--standby", help="Wait while another process runs the job; replace it within seconds.")
]


def _jobs(incomplete: str) -> list[str]:
    return [name for name in machine.jobs() if name.startswith(incomplete)]


def submit(
    job: Annotated[
        str, typer.Argument(help="Script in jobs/, such as correlate.", metavar="JOB", autocompletion=_jobs)
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(help="For mirror the name of a destination.", metavar="-- ARGUMENT"),
    ] = None,
    *,
    master: Annotated[
        str | None, typer.Option(help="Spark master, such as yarn, instead of that of the settings.", metavar="URL")
    ] = None,
    deploy_mode: Annotated[Literal["client", "cluster"], typer.Option(help="Where the driver runs.")] = "client",
    conf: Annotated[
        list[str] | None, typer.Option(help="Spark entry; overrides the settings; repeatable.", metavar="KEY=VALUE")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the spark-submit command.")] = False,
    standby: Standby = False,
) -> None:
    """Run a job by spark-submit; with log.level = "debug", print the complete command first.

    Uses SPARK_HOME, your spark-defaults.conf and, on a cluster, PYSPARK_PYTHON.
    """
    settings = terminal.load()
    given = {"master": master or settings.spark.master, "conf": settings.spark.conf | dict(map(_entry, conf or ()))}
    settings = settings.model_copy(update={"spark": settings.spark.model_copy(update=given)})
    if job == MIRROR:
        from ackstream.jobs.mirror.job import named

        # its argument names a destination
        named(settings, arguments or ())
        if standby:
            raise errors.InputError("The mirror has no lease that a standby could wait for: leave out --standby.")
    elif arguments:
        raise errors.InputError(
            f"The job {job} takes no arguments, so {arguments[0]!r} would have no effect: leave it out; options of "
            f"`ackstream submit` stand before --."
        )
    _submit(settings, job, *(arguments or ()), deploy_mode=deploy_mode, dry_run=dry_run, standby=standby)


def run_together(
    jobs: Annotated[
        list[str], typer.Argument(help="Jobs, such as correlate archive twin.", metavar="JOB…", autocompletion=_jobs)
    ],
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the spark-submit command.")] = False,
    standby: Standby = False,
) -> None:
    """Run several jobs in one Spark session, which saves memory.

    When one ends, all end. A mirror runs alone: `ackstream submit mirror NAME`.
    """
    settings, known = terminal.load(), [name for name in machine.jobs() if name != MIRROR]
    if unknown := [name for name in jobs if name not in known]:
        raise errors.InputError(f"{unknown[0]!r} cannot be run with others: the jobs are {', '.join(known)}.")
    names, script = list(dict.fromkeys(jobs)), machine.installation_root() / "jobs" / "together" / "__main__.py"
    _submit(settings, "+".join(names), *names, script=script, dry_run=dry_run, standby=standby)


def _submit(
    settings: Settings, *job: str, dry_run: bool, standby: bool, deploy_mode: str = "client", script: Path | None = None
) -> None:
    from ackstream.local.submit import JAVA_OPTIONS, MASKED, STANDBY, run, submit_command, submit_environment
    from ackstream.observe import logs

    arguments, console = [STANDBY] * standby, terminal.Terminal(stderr=True)
    command = submit_command(settings, *job, *arguments, deploy_mode=deploy_mode, console=console, script=script)
    if dry_run or settings.log.level == "debug":
        terminal.echo(shlex.join(command), err=not dry_run)
        for key in settings.spark.conf:
            terminal.echo(f"  {key}={MASKED}", err=True)
    if not dry_run:
        if settings.log.format == "json":
            logs.configure(settings.log, program=job[0])
        _announce(settings, f"Starting {job[0]} with Spark at {settings.spark.master}.")
        environment = submit_environment(settings.spark.master, deploy_mode, settings.log.format)
        run(command, environment, settings.spark.conf.get(JAVA_OPTIONS, ""))


def _announce(settings: Settings, line: str) -> None:
    """Print a line about a program that starts or ends, in the format of its log."""
    if settings.log.format == "json":
        logging.getLogger(__name__).info(line)
    else:
        terminal.Terminal(stderr=True, soft_wrap=True).print(line, highlight=False)


def _entry(text: str) -> tuple[str, str]:
    key, value = terminal.name_and_value("--conf", text, "write KEY=VALUE, such as spark.executor.memory=2g")
    if option := _OPTIONS.get(key):
        raise errors.InputError(f"--conf {key} would have no effect: use {option}.")
    return key, value


def gateway() -> None:
    """Serve things over HTTP and WebSocket, and the live page."""
    import asyncio

    from ackstream.gateway.exchange import connected
    from ackstream.gateway.server import Server
    from ackstream.observe import logs
    from ackstream.observe.endpoint import serving

    settings = logs.begin("gateway")

    def print_address(address: str) -> None:
        urls = "things at /api/2/things, /ws/2; the live page at /, the API at /doc"
        _announce(settings, f"The gateway is at {address}: {urls}.")

    with serving(settings.metrics, "gateway"), connected(settings) as dependencies:
        try:
            with terminal.Interrupts():
                asyncio.run(Server(dependencies, print_address).serve())
        except SystemExit:
            # uvicorn has logged the reason
            raise errors.LocalError(
                f"The gateway cannot listen at {settings.gateway.host}:{settings.gateway.port}: stop the program that "
                f"uses the port, or choose another one with gateway.port (ACKSTREAM_GATEWAY_PORT)."
            ) from None
        except KeyboardInterrupt:
            raise typer.Exit from None


def connect() -> None:
    """Run the connections of the settings, to and from other systems."""
    from ackstream.connectivity.connector import Connector

    _run("connect", "connections", "id", Connector)


def route() -> None:
    """Run the routes of the settings, which send publishers' messages to other systems."""
    from ackstream.connectivity.routes import Router

    _run("route", "routes", "name", Router)


def _run(program: str, key: str, name: str, runner: Callable[[Settings, Any], Runner]) -> None:
    """Run the parts of the settings under a key, which have their names under another one."""
    from ackstream.observe import logs
    from ackstream.observe.endpoint import serving

    settings = logs.begin(program)
    parts = getattr(settings, key)
    if not parts:
        raise errors.SettingsError(f"The settings define no {key}: add [[{key}]], see conf/ackstream.toml.")
    # other systems are unreachable now and then: the program itself logs that, and the time of its next attempt
    logging.getLogger("kafka").setLevel(logging.ERROR)
    with terminal.Interrupts(), serving(settings.metrics, program), runner(settings, parts) as running:
        _announce(settings, f"Running {', '.join(getattr(part, name) for part in parts)}. Ctrl-C stops it.")
        try:
            running.run()
        except KeyboardInterrupt:
            _announce(settings, "Closing.")


# -- all commands ------------------------------------------------------------------------------------------------------

NAMES = {"print_settings": "settings", "print_jars": "jars", "run_together": "run"}
"""Commands with another name than their function."""
COMMANDS: tuple[Callable[..., None], ...] = (
    *(administration.up, administration.down, administration.status, administration.print_settings),
    *(administration.print_jars, run_together, submit, gateway, connect, route),
    *(requests.send, requests.ack, requests.respond),
    *(messages.publish, messages.read, messages.consume, messages.drain, monitoring.watch, monitoring.inflight),
    *(tables.outcomes, tables.sql, tables.maintain, tables.migrate, administration.redrive),
    *(administration.register, monitoring.topics, administration.acls, administration.password, conformance),
)
"""The commands in the order of the help text."""
for command in COMMANDS:
    app.command(NAMES.get(command.__name__))(command)
app.add_typer(messages.readers, name="readers")
