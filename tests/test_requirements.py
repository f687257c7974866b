"""What an installation gets is pinned by hashes, fits ``pyproject.toml`` on every Python, and has no known hole."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from ackstream.local import jars
from tests.harness.scripts import module_of

ROOT = Path(__file__).parent.parent
PYTHONS = ("3.10", "3.11", "3.12", "3.13")


pins, audit = (module_of(ROOT / "requirements" / f"{name}.py") for name in ("pins", "audit"))
PROJECT: dict[str, Any] = pins.project()
SETS: dict[str, list[str]] = {name: list(lines) for name, lines in (pins.sets() | pins.apart()).items()}
ADVISORIES = {advisory.name: Version(advisory.fixed) for advisory in audit.advisories() if advisory.kind == "package"}


def _environment(python: str) -> dict[str, str]:
    return {"python_version": python, "python_full_version": f"{python}.9", "sys_platform": "linux", "extra": ""}


def _versions(name: str, python: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for requirement in audit.packages((ROOT / f"requirements/{name}.txt").read_text("utf-8")):
        if requirement.marker is None or requirement.marker.evaluate(_environment(python)):
            package = canonicalize_name(requirement.name)
            assert package not in found, f"{package} has two versions on Python {python}"
            (specifier,) = requirement.specifier
            assert specifier.operator == "=="
            found[package] = specifier.version
    return found


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("name", sorted(SETS))
def test_a_list_satisfies_the_project_on_each_python(name: str, python: str) -> None:
    versions = _versions(name, python)
    for text in SETS[name]:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate(_environment(python)):
            pinned = versions.get(canonicalize_name(requirement.name))
            assert pinned is not None, f"`make pins`: {requirement.name} is in no line of requirements/{name}.txt"
            assert requirement.specifier.contains(pinned), f"`make pins`: {requirement} is pinned to {pinned}"


@pytest.mark.parametrize("python", PYTHONS)
def test_the_lists_agree_with_each_other(python: str) -> None:
    lists = [_versions(name, python) for name in SETS if name in pins.sets()]
    for package in set().union(*lists):
        assert len({versions[package] for versions in lists if package in versions}) == 1, package


@pytest.mark.parametrize("name", sorted(SETS))
def test_every_package_of_a_list_has_hashes(name: str) -> None:
    text = (ROOT / f"requirements/{name}.txt").read_text("utf-8")
    entries = re.split(r"(?m)^(?=[a-z0-9])", text.partition("\n")[2])[1:]
    assert len(entries) == len(audit.packages(text))
    for entry in entries:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry.partition(" ")[0]


def test_nothing_that_is_pinned_has_a_known_hole() -> None:
    assert audit.known(audit.pinned(), [one for one in audit.advisories() if not one.accepted]) == []


def test_a_hole_is_accepted_only_with_a_reason_and_while_it_is_there() -> None:
    accepted = [one for one in audit.advisories() if one.accepted]
    for advisory in accepted:
        assert advisory.kind == "jar"
        assert any(advisory.accepted in line for line in audit.known(audit.pinned(), [advisory])), advisory.name


def test_the_bounds_of_the_project_exclude_what_has_a_known_hole() -> None:
    for requirement in map(Requirement, {line for lines in SETS.values() for line in lines}):
        fixed = ADVISORIES.get(canonicalize_name(requirement.name))
        if fixed is not None:
            bounds = [Version(one.version) for one in requirement.specifier if one.operator in (">=", "==")]
            assert bounds, requirement
            assert max(bounds) >= fixed, f"{requirement} allows what is fixed in {fixed}"


@pytest.mark.parametrize(
    ("pinned", "words"),
    [
        (audit.Pinned("pyjwt", "2.10.0"), "CVE-2024-53861"),
        (audit.Pinned("pyjwt", "2.11.0"), "CVE-2026-32597"),
        (audit.Pinned("starlette", "0.46"), "CVE-2025-54121"),
        (audit.Pinned("h11", "0.14.0"), "CVE-2025-43859"),
        (audit.Pinned("starlette", "1.0.0"), "CVE-2026-48710"),
        (audit.Pinned("kafka-clients", "3.9.0", "jar"), "CVE-2025-27817"),
        (audit.Pinned("kafka-clients", "4.1.0", "jar"), "CVE-2026-35554"),
        (audit.Pinned("log4j-core", "2.24.3", "jar"), "CVE-2025-68161"),
    ],
)
def test_a_version_with_a_known_hole_is_found(pinned: Any, words: str) -> None:
    (line,) = audit.known([pinned], audit.advisories())
    assert words in line
    assert "fixed in" in line


def test_without_the_database_the_audit_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(audit, "audited", lambda: ([], 0))
    assert audit.main() == 0
    assert "cannot be reached" in capsys.readouterr().out
    monkeypatch.setattr(audit, "audited", lambda: (["rich 1.0: CVE-1; fixed in 2.0"], 5))
    assert audit.main() == 1
    assert "VULNERABLE rich 1.0" in capsys.readouterr().out


@pytest.mark.parametrize("module", sorted(pins.MODULES), ids=lambda path: path.parent.name)
def test_each_jar_that_is_named_has_its_sha_256(module: Path) -> None:
    lines = [line.split() for line in module.with_name(jars.PINS).read_text("utf-8").splitlines()]
    assert all(len(bytes.fromhex(digest)) == hashlib.sha256().digest_size for digest, _ in lines)
    listed = {name.rpartition("/")[2] for _, name in lines}
    named = {f"{entry.get('name')}-{entry.get('rev')}.jar" for entry in ET.parse(module).iter("dependency")}
    assert named <= listed


def test_the_tests_need_nothing_that_only_the_benchmarks_install() -> None:
    packages = {Requirement(text).name.replace("-", "_") for text in PROJECT["optional-dependencies"]["bench"]}
    texts = [path.read_text("utf-8") for path in (ROOT / "tests").rglob("*.py")]
    imports = {line for text in texts for line in re.findall(r"(?m)^from benchmarks\b.+", text)}
    assert imports
    program = "\n".join([f"import sys; sys.modules |= dict.fromkeys({sorted(packages)!r})", *sorted(imports)])
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_the_makefile_installs_by_hashes_alone() -> None:
    recipes = (ROOT / "Makefile").read_text("utf-8").replace("\\\n", " ")
    installs = [line for line in recipes.splitlines() if "pip install" in line]
    assert installs
    for line in installs:
        assert "--require-hashes" in line or ("--no-deps" in line and "--no-build-isolation" in line), line


def test_a_step_of_the_set_up_is_one_line_or_shows_what_went_wrong(tmp_path: Path) -> None:
    found = re.search(r"(?ms)^define step$.*?^endef$", (ROOT / "Makefile").read_text("utf-8"))
    assert found is not None
    steps = "".join(
        f"{target}:\n\t$(call step, Installing {target} (a minute), {commands})\n"
        for target, commands in {"good": "echo much && echo more >&2", "bad": "echo the reason && false"}.items()
    )
    (tmp_path / "Makefile").write_text(f"VENV := .\n{found[0]}\n{steps}", "utf-8")

    def make(target: str) -> subprocess.CompletedProcess[str]:
        command = ["make", "--no-print-directory", target]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    good, bad = make("good"), make("bad")
    assert (good.returncode, good.stdout, good.stderr) == (0, "Installing good (a minute)\n", "")
    assert (tmp_path / "good").exists()
    assert bad.returncode != 0
    assert bad.stdout == "Installing bad (a minute)\n"
    assert bad.stderr.startswith("the reason\n")
    assert not (tmp_path / "bad").exists()


@pytest.mark.parametrize("python", PYTHONS)
def test_the_client_alone_needs_twelve_packages(python: str) -> None:
    assert _versions("client", python).keys() - {"tomli"} == {
        *("annotated-types", "cramjam", "crc32c", "kafka-python", "lz4", "msgspec", "pydantic", "pydantic-core"),
        *("python-snappy", "typing-extensions", "typing-inspection", "zstandard"),
    }
