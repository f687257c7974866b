"""``ackstream submit`` and ``run``: start jobs by ``spark-submit``, on this machine or a cluster."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ackstream.cli.console.terminal import Terminal, echo
from ackstream.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    from ackstream.settings import load

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
    from ackstream.settings import load

    settings, known = load(), [name for name in installation.jobs() if name != MIRROR]
    if unknown := [name for name in jobs if name not in known]:
        raise InputError(f"{unknown[0]!r} cannot be run with others: the jobs are {', '.join(known)}.")
    names, script = list(dict.fromkeys(jobs)), Path(__file__).parent / "together" / "__main__.py"
    command = submit_command(settings, "+".join(names), *names, script=script, console=Terminal(stderr=True))
    echo(shlex.join(command), err=not dry_run)
    if not dry_run:
        run(command, submit_environment(settings.spark.master, log_format=settings.log.format))


def _entry(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise InputError(f"--conf is {text!r}: write KEY=VALUE, such as spark.executor.memory=2g.")
    if option := _OPTIONS.get(key):
        raise InputError(f"--conf {key} would have no effect: use {option}.")
    return key, value


def _check(settings: Settings, job: str, arguments: Sequence[str]) -> None:
    """Refuse arguments that a job does not take; one that it lacks or cannot read.

    :raises InputError: it takes none
    :raises SettingsError: the argument names no destination
    """
    if job == MIRROR:
        from ackstream.jobs.mirror.job import named

        named(settings, arguments)
    elif arguments:
        raise InputError(
            f"The job {job} takes no arguments, so {arguments[0]!r} would have no effect: leave it out; options of "
            f"`ackstream submit` stand before --."
        )
