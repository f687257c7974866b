"""Run files of Ditto Protocol cases (JSON Lines) against the library and print one line per file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from ackstream.cli.console.terminal import echo
from ackstream.conformance.cases import KINDS, Case, CaseFileError, FileResult, check

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def run(paths: Sequence[Path]) -> list[FileResult]:
    """Run case files; a directory stands for every ``*.jsonl`` file below it.

    :raises CaseFileError: a path does not exist or contains no cases
    """
    loaded = [(file.name, _load(file)) for path in paths for file in _files(path)]
    results = []
    for name, cases in loaded:
        result = FileResult(name)
        for case in cases:
            if case.kind not in KINDS:
                result.not_run.append((case.id, f"the kind {case.kind} is not known"))
            elif failure := check(case):
                result.failed.append(failure)
            else:
                result.passed += 1
        results.append(result)
    return results


def main(paths: Sequence[Path]) -> int:
    """Run the cases and print the results; return the exit code, 1 if any case failed or is of an unknown kind.

    :raises CaseFileError: a path does not exist or contains no cases
    """
    results = run(paths)
    for result in results:
        counts = f"{result.passed} passed, {len(result.failed)} failed, {len(result.not_run)} unknown"
        echo(f"{result.name}: {counts}")
        for failure in result.failed:
            echo(f"  {failure.id}\n    expected {_text(failure.expected)}\n    actual   {_text(failure.actual)}")
        for identity, reason in result.not_run:
            echo(f"  {identity}\n    {reason}")
    return int(any(result.failed or result.not_run for result in results))


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise CaseFileError(f"{path} does not exist; name a file of cases or a directory of such files.")
    if not path.is_dir():
        return [path]
    files = sorted(path.rglob("*.jsonl"))
    if not files:
        raise CaseFileError(f"{path} holds no *.jsonl file of cases; name one, or a directory that holds some.")
    return files


def _load(file: Path) -> list[Case]:
    cases, number = [], 0
    try:
        for number, line in enumerate(file.read_text("utf-8").splitlines(), start=1):  # noqa: B007 - the error names it
            if line.strip():
                cases.append(msgspec.convert(json.loads(line), Case))
    except (OSError, UnicodeDecodeError) as error:
        raise CaseFileError(f"{file} cannot be read as UTF-8 text: {error}.") from error
    except (ValueError, RecursionError) as error:
        raise CaseFileError(
            f"{file} is no file of cases: line {number} must be one JSON object with id, kind, given and expect"
            f" ({error})."
        ) from error
    return cases


def _text(value: dict[str, Any]) -> str:
    return json.dumps(value, sort_keys=True)
