"""Files of cases (JSON Lines) and of scenarios (one JSON array): finding, reading, running, reporting."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from ackstream.conformance import scenarios
from ackstream.conformance.cases import KINDS, Case
from ackstream.conformance.cases import check as check_case
from ackstream.conformance.results import CaseFileError, Failure, FileResult
from ackstream.conformance.scenarios import Scenario, Uncovered

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def run(paths: Sequence[Path]) -> list[FileResult]:
    """Run files, and of directories all ``*.jsonl`` files and those ``*.json`` files that hold scenarios.

    :raises CaseFileError: a path is not there or holds neither cases nor scenarios
    """
    loaded = [(file.name, content) for path in paths for file, content in _open(path)]
    return [_run_file(name, content) for name, content in loaded]


def main(paths: Sequence[Path]) -> int:
    """Run and print; return the exit code: 1 where anything failed or could not be run."""
    try:
        results = run(paths)
    except CaseFileError as error:
        typer.echo(str(error), err=True)
        return 1
    for result in results:
        counts = f"{result.passed} passed, {len(result.failed)} failed, {len(result.not_run)} {result.not_run_word}"
        typer.echo(f"{result.name}: {counts}")
        for failure in result.failed:
            typer.echo(f"  {failure.id}\n    expected {_text(failure.expected)}\n    actual   {_text(failure.actual)}")
        for identity, reason in result.not_run:
            typer.echo(f"  {identity}\n    {reason}")
    return 0 if all(result.ok for result in results) else 1


def _open(path: Path) -> list[tuple[Path, list[Case] | list[Scenario]]]:
    if not path.exists():
        raise CaseFileError(f"{path} does not exist; name a file of cases or a directory of such files.")
    if not path.is_dir():
        return [(path, _load(path))]
    files = sorted(path.rglob("*.jsonl")) + [file for file in sorted(path.rglob("*.json")) if _holds_scenarios(file)]
    if not files:
        raise CaseFileError(
            f"{path} holds no *.jsonl file of cases and no *.json file of scenarios; name a file of cases or a"
            " directory of such files."
        )
    return [(file, _load(file)) for file in files]


def _holds_scenarios(file: Path) -> bool:
    """Tell them from the other JSON files of a directory: only scenarios have steps."""
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, list) and any(isinstance(entry, dict) and "when" in entry for entry in content)


def _load(file: Path) -> list[Case] | list[Scenario]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CaseFileError(f"{file} cannot be read as UTF-8 text: {error}.") from error
    return _load_scenarios(file, text) if file.suffix == ".json" else _load_cases(file, text)


def _load_cases(file: Path, text: str) -> list[Case]:
    cases = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            cases.append(msgspec.convert(json.loads(line), Case))
        except (ValueError, RecursionError) as error:
            raise CaseFileError(
                f"{file} is no file of cases: line {number} must be one JSON object with id, kind, given and expect"
                f" ({error})."
            ) from error
    return cases


def _load_scenarios(file: Path, text: str) -> list[Scenario]:
    try:
        return msgspec.convert(json.loads(text), list[Scenario])
    except (ValueError, RecursionError) as error:
        raise CaseFileError(
            f"{file} is no file of scenarios: it must be one JSON array of objects with id, given, when and expect"
            f" ({error})."
        ) from error


def _run_file(name: str, content: list[Case] | list[Scenario]) -> FileResult:
    result = FileResult(name)
    for entry in content:
        if isinstance(entry, Scenario):
            result.not_run_word = "uncovered"
        outcome = scenarios.check(entry) if isinstance(entry, Scenario) else _check_case(entry)
        if outcome is None:
            result.passed += 1
        elif isinstance(outcome, Failure):
            result.failed.append(outcome)
        else:
            result.not_run.append((entry.id, str(outcome)))
    return result


def _check_case(case: Case) -> Failure | Uncovered | None:
    return check_case(case) if case.kind in KINDS else Uncovered(f"the kind {case.kind} is not known")


def _text(value: dict[str, Any]) -> str:
    return json.dumps(value, sort_keys=True)
