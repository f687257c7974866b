"""No command prints or logs a secret of the settings, whatever it does and however it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import typer.main

from ackstream.cli.main import app
from tests.cli.commands import run
from tests.harness.ports import free_ports

PLANTED = "hunter2-4711"

SETTINGS = """
[kafka]
bootstrap = "127.0.0.1:{port}"
[kafka.security]
protocol = "SASL_SSL"
mechanism = "PLAIN"
username = "me"
password = {{ file = "password" }}
[kafka.options.java]
"x.y" = "hunter2-4711"
[local]
port = {other}
controller_port = {third}
[spark.conf]
"spark.hadoop.fs.s3a.secret.key" = "hunter2-4711"
"spark.hadoop.my.own" = "hunter2-4711"
[lake.storage_options]
AWS_SECRET_ACCESS_KEY = "hunter2-4711"
[gateway]
port = 0
users = {{ ada = "hunter2-4711" }}
[[connections]]
id = "m"
type = "mqtt"
port = {port}
username = "me"
password = "hunter2-4711"
[[connections.sources]]
addresses = ["in"]
[[connections]]
id = "h"
type = "http-push"
url = "http://127.0.0.1:{port}"
username = "me"
password = "hunter2-4711"
[[connections.targets]]
address = "POST:/e"
topics = ["_/_/things/twin/events"]
header_mapping = {{ authorization = "Bearer hunter2-4711" }}
[[routes]]
name = "to-plant"
bootstrap = "127.0.0.1:{port}"
topic_prefix = "other-"
[routes.security]
protocol = "SASL_PLAINTEXT"
mechanism = "SCRAM-SHA-256"
username = "me"
password = "hunter2-4711"
"""

ARGUMENTS: dict[str, list[list[str]]] = {
    "conformance": [["cases"]],
    "jars": [["spark"], ["nonsense"]],
    "migrate": [["nonsense"]],
    "outcomes": [[], ["slowest-labels"], ["nonsense"]],
    "readers": [["list", "--timeout", "1"]],
    "send": [["org.acme:lamp", "/attributes/on", "true"]],
    "submit": [["correlate", "--dry-run"]],
    "watch": [["--once"]],
}
"""The arguments of commands that need some, or do other things with them."""

WITH_SPARK = {"demo", "inflight", "maintain", "register"}
"""They start Spark, or run for minutes; what they print until then is that of the others."""

COMMANDS = sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("secrets")
    port, other, third = free_ports(3)
    (made / "conf").mkdir()
    (made / "conf" / "ackstream.toml").write_text(SETTINGS.format(port=port, other=other, third=third), "utf-8")
    (made / "password").write_text(f"{PLANTED}\n", "utf-8")
    (made / "cases").mkdir()
    return made


@pytest.fixture(scope="module")
def printed(directory: Path) -> dict[str, list[str]]:
    """Run all commands but those with Spark, several at a time: most of them wait for a broker that is not there."""
    calls = [
        (name, *arguments) for name in COMMANDS for arguments in ARGUMENTS.get(name, [[]]) if name not in WITH_SPARK
    ]
    found: dict[str, list[str]] = {}
    with ThreadPoolExecutor(8) as pool:
        for call, output in zip(calls, pool.map(lambda call: _printed(directory, *call), calls), strict=True):
            found.setdefault(call[0], []).append(output)
    return found


def _printed(directory: Path, *arguments: str) -> str:
    """Run a command in a process of its own; return all that it writes, until it ends or 12 seconds have passed."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith("ACKSTREAM_")}
    environment |= {"PYTHONPATH": str(Path(__file__).parents[2]), "ACKSTREAM_SPARK_DRIVER_MEMORY": "600m"}
    code = "from ackstream.cli.main import app; app()"
    command = [sys.executable, "-X", "dev", "-c", code, *arguments]
    try:
        finished = subprocess.run(
            command,
            cwd=directory,
            env=environment,
            input=b"",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=12,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return (error.output or b"").decode()
    return finished.stdout.decode()


@pytest.mark.parametrize("command", [command for command in COMMANDS if command not in WITH_SPARK])
def test_a_command_does_not_print_a_secret(printed: dict[str, list[str]], command: str) -> None:
    for output in printed[command]:
        assert PLANTED not in output
        assert "Traceback" not in output


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ('password = "hunter2-4711"', 'password = ["hunter2-4711"]'),
        ('"spark.hadoop.my.own" = "hunter2-4711"', '"spark.hadoop.my.own" = ["hunter2-4711"]'),
        ('users = { ada = "hunter2-4711" }', 'users = "hunter2-4711"'),
        ('"hunter2-4711"', '"hunter2-4711'),
        ("password = { file", "passwort = { file"),
        ('AWS_SECRET_ACCESS_KEY = "hunter2-4711"', 'AWS_SECRET_ACCESS_KEY = { a = "hunter2-4711" }'),
    ],
)
def test_a_command_that_fails_at_the_settings_does_not_print_them(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, right: str, wrong: str
) -> None:
    text = (directory / "conf" / "ackstream.toml").read_text("utf-8")
    assert right in text
    (tmp_path / "wrong.toml").write_text(text.replace(right, wrong), "utf-8")
    monkeypatch.chdir(directory)
    monkeypatch.setenv("ACKSTREAM_CONF", str(tmp_path / "wrong.toml"))
    result = run("status")
    assert result.exit_code == 2
    assert PLANTED not in result.output


def test_a_variable_that_is_not_json_is_not_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = json.dumps([{"id": "m", "type": "mqtt", "password": PLANTED}])[:-1]
    monkeypatch.setenv("ACKSTREAM_CONNECTIONS", text)
    result = run("status")
    assert "ACKSTREAM_CONNECTIONS is not JSON" in result.stderr
    assert PLANTED not in result.output


@pytest.mark.integration
@pytest.mark.parametrize("command", sorted(WITH_SPARK - {"demo"}))
def test_a_command_with_spark_does_not_print_a_secret_or_log_it(directory: Path, command: str, jvm: object) -> None:
    assert jvm
    printed = _printed(directory, command)
    assert PLANTED not in printed
    for path in directory.rglob("*.log"):
        assert PLANTED not in path.read_text("utf-8", "replace")
