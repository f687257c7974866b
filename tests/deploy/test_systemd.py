"""The units of systemd: directives that exist, commands and exit codes of the product, the same walls around all."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from ackstream.cli.terminal import FAILED, NO_ANSWER, WRONG_INPUT
from ackstream.local.machine import cache, jobs
from ackstream.spark.progress import STOP_SECONDS
from tests.deploy.product import DEPLOY, check_command, settings

UNITS = sorted((DEPLOY / "systemd").iterdir())
SERVICES = [path for path in UNITS if path.suffix == ".service"]
KNOWN = {
    "Unit": {"Description", "Wants", "After"},
    "Timer": {"OnCalendar", "RandomizedDelaySec", "Persistent"},
    "Install": {"WantedBy"},
    # the manual pages are systemd.exec, systemd.service, systemd.kill and systemd.resource-control
    "Service": {
        "Type", "User", "Group", "UMask", "WorkingDirectory", "StateDirectory", "StateDirectoryMode", "CacheDirectory",
        "Environment", "EnvironmentFile", "ExecStart", "Restart", "RestartSec", "RestartPreventExitStatus",
        "SuccessExitStatus", "KillMode", "TimeoutStopSec", "MemoryMax",
    },
}  # fmt: skip
WALLS = {
    "NoNewPrivileges", "CapabilityBoundingSet", "ProtectSystem", "ProtectHome", "PrivateTmp", "PrivateDevices",
    "ProtectClock", "ProtectHostname", "ProtectKernelTunables", "ProtectKernelModules", "ProtectKernelLogs",
    "ProtectControlGroups", "RestrictAddressFamilies", "RestrictNamespaces", "RestrictRealtime", "RestrictSUIDSGID",
    "LockPersonality", "SystemCallArchitectures", "SystemCallFilter", "SystemCallErrorNumber",
}  # fmt: skip
"""What keeps a process from the rest of the machine. Not among them: MemoryDenyWriteExecute, since Java compiles."""


def _read(path: Path) -> dict[str, dict[str, list[str]]]:
    """Return the values of each directive, by section."""
    found: dict[str, dict[str, list[str]]] = {}
    section = ""
    for line in path.read_text("utf-8").splitlines():
        if match := re.fullmatch(r"\[(\w+)]", line):
            section = match[1]
        elif line and not line.startswith("#"):
            key, equals, value = line.partition("=")
            assert equals, line
            found.setdefault(section, {}).setdefault(key, []).append(value)
    return found


units = pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
services = pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.name)


@units
def test_a_unit_has_sections_and_directives_that_exist(path: Path) -> None:
    for section, directives in _read(path).items():
        assert directives.keys() <= KNOWN[section] | (WALLS if section == "Service" else set())


def test_systemd_itself_has_nothing_to_say(tmp_path: Path) -> None:
    """Where there is systemd; the other tests hold everywhere."""
    if (program := shutil.which("systemd-analyze")) is None:
        return
    for path in UNITS:
        # the program and the user are made by the installation
        text = re.sub(r"(?m)^(User|Group)=.*\n", "", path.read_text("utf-8"))
        (tmp_path / path.name).write_text(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", text), "utf-8")
    names = [path.name.replace("@", "@correlate") for path in UNITS]
    found = subprocess.run(
        [program, "verify", "--man=no", *names], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (found.returncode, [line for line in found.stderr.splitlines() if "ackstream" in line]) == (0, [])


@services
def test_a_service_runs_a_command_of_the_product(path: Path) -> None:
    (line,) = _read(path)["Service"]["ExecStart"]
    program, *arguments = line.split()
    assert program == "/opt/ackstream/bin/ackstream"
    for job in jobs() if "@" in path.name else [""]:
        # that of the mirror is named in a drop-in, as the unit says
        name = check_command([argument.replace("%i", job) for argument in arguments])
    assert name in path.name or (name, path.name) == ("submit", "ackstream@.service")


@services
def test_a_service_has_settings_that_exist_and_a_cache_that_it_may_write(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = _read(path)["Service"]
    own = dict(text.split("=", 1) for text in service["Environment"])
    assert own.keys() == {"ACKSTREAM_CONF", "XDG_CACHE_HOME"}
    monkeypatch.setenv("XDG_CACHE_HOME", own["XDG_CACHE_HOME"])
    assert str(cache()) == f"/var/cache/{service['CacheDirectory'][0]}"
    assert service["WorkingDirectory"] == [f"/var/lib/{service['StateDirectory'][0]}"]
    for name in re.findall(r"# .*?(ACKSTREAM_\w+=\d+)", path.read_text("utf-8")):
        assert settings(dict([name.split("=")])).metrics.port > 0


@services
def test_what_is_started_again_is_not_what_has_to_be_corrected_first(path: Path) -> None:
    service = _read(path)["Service"]
    if service.get("Type") == ["oneshot"]:
        assert "Restart" not in service
        return
    assert service["Restart"] == ["on-failure"]
    stays = {int(code) for text in service["RestartPreventExitStatus"] for code in text.split()}
    assert stays == {WRONG_INPUT}
    assert not stays & {FAILED, NO_ANSWER}


def test_a_job_is_given_time_for_the_batch_at_hand_and_asked_as_a_driver() -> None:
    service = _read(DEPLOY / "systemd/ackstream@.service")["Service"]
    assert int(service["TimeoutStopSec"][0].removesuffix("s")) > STOP_SECONDS
    # a signal to all processes would end Python's workers in the middle of it
    assert service["KillMode"] == ["mixed"]


def test_all_services_have_the_same_walls() -> None:
    read = [_read(path)["Service"] for path in SERVICES]
    first, *others = ({key: service[key] for key in service.keys() & WALLS} for service in read)
    assert first.keys() == WALLS
    assert all(other == first for other in others)


def test_the_timer_starts_the_service_of_its_name() -> None:
    for path in UNITS:
        if path.suffix == ".timer":
            assert path.with_suffix(".service") in SERVICES
