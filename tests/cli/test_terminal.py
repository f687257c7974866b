from __future__ import annotations

import ast
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from rich.live import Live
from rich.text import Text

from ackstream.cli import monitoring
from ackstream.cli.messages import readers_table
from ackstream.cli.monitoring import inflight_table, watch_screen
from ackstream.cli.terminal import PlainTable, Terminal, data, echo, echo_json, escaped, result_table, spare_proxies
from ackstream.jobs.correlate.job import InFlight
from ackstream.protocol.readers import KnownReader
from tests.cli.test_display import watched
from tests.conformance import runner
from tests.demo import fleet

if TYPE_CHECKING:
    from rich.console import RenderableType

TITLE, CLEAR, C1, REVERSED = "\x1b]0;pwned\x07", "\x1b[2J", "\x9b2J", "\u202etxt.exe"
ATTACKS = [
    "[/x]",
    "[link=https://evil.example]click[/link]",
    "[red]",
    TITLE,
    CLEAR,
    C1,
    REVERSED,
    "a\rb",
    "a\nb",
    ":boom:",
]
CONTROLS = [*map(chr, (*range(32), *range(0x7F, 0xA0))), "\u200e", "\u202e", "\u2066", "\u2028", "\ud800", "\U000e0041"]


def printed(*renderables: RenderableType) -> str:
    file = io.StringIO()
    console = Terminal(file=file)
    console.width = 200
    console.print(*renderables)
    return file.getvalue()


def assert_harmless(shown: str) -> None:
    assert not [char for char in shown if char in CONTROLS and char != "\n"]


@pytest.mark.parametrize("text", ATTACKS)
def test_what_a_requester_has_chosen_never_controls_the_operator_s_terminal(text: str) -> None:
    tables: list[RenderableType] = [
        inflight_table([InFlight(text, text, 1, 5, (text,))], 10),
        result_table(["correlation_id", "detail"], [[text, text]]),
        readers_table([KnownReader(text, text)], 10),
        watch_screen(watched(text, text)),
    ]
    for table in tables:
        shown = printed(table)
        assert escaped(text) in shown
        assert_harmless(shown)


@pytest.mark.parametrize("char", CONTROLS, ids=lambda char: f"{ord(char):x}")
def test_a_control_character_is_shown_as_its_json_escape(char: str) -> None:
    assert escaped(f"a{char}b").isprintable()
    assert json.loads(f'"{escaped(f"a{char}b")}"') == f"a{char}b"


@pytest.mark.parametrize("text", ["räksmörgås", "日本語", "👩\u200d🚀", "a\u200cb", "a b", "\\", "[1, 2]"])
def test_other_texts_stay(text: str) -> None:
    assert escaped(text) == text
    assert printed(data(text)) == f"{text}\n"


def test_a_table_of_texts_is_plain_also_on_another_console() -> None:
    table = PlainTable("[b]name[/b]", right=[0])
    table.add_row(CLEAR)
    assert "[b]name[/b]" in printed(table)
    assert "\\u001b[2J" in printed(table)


def test_a_live_display_keeps_its_own_controls_and_escapes_the_others() -> None:
    file = io.StringIO()
    console = Terminal(file=file)
    console._force_terminal = True
    with Live(Text("x"), console=console, auto_refresh=False) as live:
        live.update(Text(f"{TITLE}{CLEAR}"), refresh=True)
    assert "\x1b[?25l" in file.getvalue()
    assert "\x1b]0" not in file.getvalue()
    assert CLEAR not in file.getvalue()


def test_lines_that_are_printed_are_escaped_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    echo(f"one{CLEAR}\ntwo")
    echo(TITLE, err=True)
    out, err = capsys.readouterr()
    assert out == "one\\u001b[2J\ntwo\n"
    assert err == "\\u001b]0;pwned\\u0007\n"


def test_json_means_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    echo_json({"id": C1 + REVERSED})
    (line,) = capsys.readouterr().out.splitlines()
    assert_harmless(line)
    assert json.loads(line) == {"id": C1 + REVERSED}


def test_an_error_of_the_program_is_printed_with_its_stack_but_without_control_characters() -> None:
    code = (
        "import typer; from ackstream.cli.main import Commands\n"
        "app = typer.Typer(cls=Commands)\n"
        "@app.command()\n"
        "def first(): raise KeyError('\\x1b[2J\\u202e') from ValueError('\\x9b2J [red]')\n"
        "app.command('second')(first)\n"
        "app(['first'])"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert finished.returncode == 1
    assert "in first" in finished.stderr
    assert "ValueError: \\u009b2J [red]" in finished.stderr
    assert_harmless(finished.stderr)


def test_characters_that_the_encoding_of_the_output_lacks_are_escapes() -> None:
    code = (
        "import typer; from ackstream.cli.main import Commands; from ackstream.cli.terminal import echo\n"
        "app = typer.Typer(cls=Commands)\n"
        "@app.command()\n"
        "def first(): echo('gr\\u00fcn'); echo('\\u20ac')\n"
        "app.command('second')(first)\n"
        "app(['first'])"
    )
    environment = os.environ | {"PYTHONPATH": str(PACKAGE.parents[1]), "PYTHONIOENCODING": "latin-1"}
    finished = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, encoding="latin-1", check=False, timeout=60
    )
    assert finished.stdout == "grün\n\\u20ac\n"


PACKAGE = Path(monitoring.__file__).parent
MODULES = [*PACKAGE.glob("**/*.py"), Path(runner.__file__), Path(fleet.__file__)]
DIRECT = {
    "typer.echo",
    "typer.secho",
    "print",
    "Console",
    "rich.print",
    "logging.basicConfig",
    "Table",
    "sys.stderr.write",
}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_commands_print_through_the_terminal_alone(path: Path) -> None:
    if path.name == "terminal.py":
        return
    calls = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)]
    direct = [f"{ast.unparse(call.func)}, line {call.lineno}" for call in calls if ast.unparse(call.func) in DIRECT]
    assert direct == []


@pytest.mark.parametrize(("columns", "lines"), [(None, 2), ("60", 4)])
def test_a_program_reads_whole_lines_unless_it_asks_for_a_width(
    monkeypatch: pytest.MonkeyPatch, columns: str | None, lines: int
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    shown = io.StringIO()
    Terminal(file=shown).print(result_table(["id", "reply"], [["3f7f2b1e-0c5d-4b43-8a34-1f9a7c1f2b3c", "x" * 70]]))
    assert len(shown.getvalue().splitlines()) == lines


def test_an_id_that_does_not_fit_is_folded_and_not_cut() -> None:
    identity = "3f7f2b1e-0c5d-4b43-8a34-1f9a7c1f2b3c#0123456789abcdef"
    table = PlainTable("correlation-id", "thing", "missing")
    table.add_row(identity, "org.acme:lamp-in-the-hall", "fleet:delivered, billing:recorded")
    shown = io.StringIO()
    Terminal(file=shown).print(table, width=60)
    lines = [line.split() for line in shown.getvalue().splitlines()[1:]]
    assert "".join(words[0] for words in lines if words and words[0] in identity) == identity


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({}, ""),
        ({"NO_PROXY": "a.example, .b"}, "a.example, .b,"),
        ({"no_proxy": "127.0.0.1,c", "NO_PROXY": "d"}, "127.0.0.1,c,"),
    ],
)
def test_connections_to_this_machine_ignore_a_proxy_beside_those_of_the_user(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], kept: str
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    spare_proxies()
    spare_proxies()
    local = [host for host in ("localhost", "127.0.0.1", "::1") if host not in kept]
    assert os.environ["no_proxy"] == os.environ["NO_PROXY"] == kept + ",".join(local)
    with httpx.Client() as client:
        through = {
            host: client._transport_for_url(httpx.URL(f"http://{host}:8000")) for host in ("localhost", "e.example")
        }
    assert through["localhost"] is client._transport is not through["e.example"]
