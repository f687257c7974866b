from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ackstream.cli.main import app
from tests.conformance.runner import KINDS, Case, CaseFileError, check, main, run

CASES = Path(__file__).parent.parent / "vectors" / "cases"


def _cases(kind: str) -> list[Any]:
    lines = (CASES / f"{kind}.jsonl").read_text(encoding="utf-8").splitlines()
    return [pytest.param(Case(**case), id=f"{kind}-{case['id']}") for case in map(json.loads, lines)]


@pytest.mark.parametrize("case", [case for kind in KINDS for case in _cases(kind)])
def test_case(case: Case) -> None:
    assert check(case) is None


def test_every_kind_has_a_file_of_cases() -> None:
    assert {path.stem for path in CASES.glob("*.jsonl")} == set(KINDS)


LABEL = {"id": "good", "kind": "label", "given": {"label": "abc"}, "expect": {"valid": True}}
WRONG = {"id": "wrong", "kind": "label", "given": {"label": "ab"}, "expect": {"valid": True}}
UNKNOWN = {"id": "odd", "kind": "horoscope", "given": {}, "expect": {}}


def _write(path: Path, *cases: dict[str, Any]) -> Path:
    path.write_text("\n".join(map(json.dumps, cases)) + "\n\n", encoding="utf-8")
    return path


def test_a_file_of_good_cases_prints_one_line_and_succeeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([_write(tmp_path / "label.jsonl", LABEL, LABEL)]) == 0
    assert capsys.readouterr().out == "label.jsonl: 2 passed, 0 failed, 0 unknown\n"


def test_a_failed_case_is_printed_with_expected_and_actual(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([_write(tmp_path / "label.jsonl", LABEL, WRONG)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["label.jsonl: 1 passed, 1 failed, 0 unknown", "  wrong", '    expected {"valid": true}']
    assert lines[3].startswith('    actual   {"error": ')
    assert '"Acknowledgement label <ab> is invalid."' in lines[3]


def test_an_unknown_kind_is_counted_and_fails_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([_write(tmp_path / "mixed.jsonl", LABEL, UNKNOWN)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "mixed.jsonl: 1 passed, 0 failed, 1 unknown",
        "  odd",
        "    the kind horoscope is not known",
    ]


def test_a_directory_stands_for_its_files_in_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "deeper").mkdir()
    _write(tmp_path / "b.jsonl", LABEL)
    _write(tmp_path / "a.jsonl", LABEL)
    _write(tmp_path / "deeper" / "c.jsonl", LABEL)
    (tmp_path / "README.md").write_text("no cases", encoding="utf-8")
    assert [result.name for result in run([tmp_path])] == ["a.jsonl", "b.jsonl", "c.jsonl"]


@pytest.mark.parametrize(
    "text",
    ["no JSON", "[1, 2]", '{"id": "x"}', '{"id": 1, "kind": "label", "given": {}, "expect": {}}', '"x"', "[" * 100_000],
)
def test_a_file_that_is_no_json_lines_of_cases_gives_one_sentence(tmp_path: Path, text: str) -> None:
    file = tmp_path / "odd.jsonl"
    file.write_text(f"{json.dumps(LABEL)}\n{text}\n", encoding="utf-8")
    with pytest.raises(CaseFileError) as refused:
        main([file])
    sentence = str(refused.value)
    assert sentence.startswith(f"{file} is no file of cases: line 2 must be one JSON object with id, kind, given")
    assert "\n" not in sentence


def test_a_file_that_is_no_utf_8_gives_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "odd.jsonl"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CaseFileError, match=r"odd\.jsonl cannot be read as UTF-8 text"):
        main([file])


def test_a_path_that_does_not_exist_is_wrong_input(tmp_path: Path) -> None:
    missing = tmp_path / "missing.jsonl"
    result = CliRunner().invoke(app, ["conformance", str(missing)])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"{missing} does not exist; name a file of cases or a directory of such files.\n"


def test_a_directory_without_files_of_cases_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CaseFileError, match="holds no"):
        run([tmp_path])


def test_an_unexpected_exception_is_the_result_of_its_case_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(_given: dict[str, Any]) -> dict[str, Any]:
        raise RuntimeError("boom")

    monkeypatch.setitem(KINDS, "duration", explode)
    (result,) = run([_write(tmp_path / "mixed.jsonl", LABEL | {"kind": "duration"}, LABEL)])
    assert result.passed == 1
    assert [failure.actual for failure in result.failed] == [{"exception": "RuntimeError: boom"}]


@pytest.mark.parametrize(
    ("kind", "given_"),
    [("label", {}), ("read-ack", {"protocol": 5}), ("aggregate", {"requested": None}), ("header-defaults", {})],
)
def test_a_case_with_a_malformed_given_fails_and_does_not_stop_the_run(kind: str, given_: dict[str, Any]) -> None:
    assert check(Case("odd", kind, given_, {"valid": True})) is not None


def _expecting(kind: str, given_: dict[str, Any], expect: dict[str, Any]) -> bool:
    return check(Case("x", kind, given_, expect)) is None


def test_an_error_is_compared_in_the_fields_the_case_names() -> None:
    given_ = {"label": "ab"}
    assert _expecting("label", given_, {"error": {"status": 400}})
    assert _expecting("label", given_, {"error": {}})
    assert not _expecting("label", given_, {"error": {"status": 422}})
    assert not _expecting("label", given_, {"error": {"status": 400, "invalidHeaderKey": "x"}})


def test_any_error_is_still_an_error() -> None:
    assert not _expecting("label", {"label": "abc"}, {"error": {}})
    assert not _expecting("label", {"label": "ab"}, {"valid": True})


def test_a_boolean_is_no_number() -> None:
    assert not _expecting("label", {"label": "abc"}, {"valid": 1})


def test_a_result_that_a_case_does_not_expect_fails_it() -> None:
    given_ = {"acks": [{"label": "abc", "status": 200, "payload": 1}]}
    assert not _expecting("aggregate-body", given_, {"status": 200})
    assert _expecting("aggregate-body", given_, {"status": 200, "body": 1})
