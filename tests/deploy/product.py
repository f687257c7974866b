"""What the files of deploy/ name must exist in the product: commands, jobs, settings, paths, users."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer.main

from ackstream.cli.main import app
from ackstream.local.machine import jobs
from ackstream.observe.endpoint import LIVE, METRICS, READY
from ackstream.settings import Settings, load

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PATHS = {LIVE, READY, METRICS}
USER = 10001
"""The user of the image, whom the manifests name, too."""


def check_command(arguments: Sequence[str]) -> str:
    """Parse the arguments of ``ackstream`` as the program does, and return the name of its command.

    :raises AssertionError: there is no such command or job
    :raises Exception: there is no such option or argument; of Typer
    """
    commands: Mapping[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    name, *rest = arguments
    assert name in commands, name
    with commands[name].make_context(name, rest) as own:
        named = {"submit": [own.params.get("job")], "run": own.params.get("jobs")}.get(name, [])
    assert set(named or ()) <= set(jobs()), named
    return name


def settings(environment: Mapping[str, str], file: Path | None = None) -> Settings:
    """Read the settings that a process gets; variables of other programs are of no interest.

    :raises SettingsError: a variable or a key is none of the settings, or has a wrong value
    """
    own = {name: text for name, text in environment.items() if name.startswith("ACKSTREAM_")}
    own.pop("ACKSTREAM_CONF", None)
    return load(file or Path(os.devnull), own)
