"""Compare what an installation gets with the known vulnerabilities; exit 1 if one is known.

The Python packages of ``requirements/*.txt`` are compared with the advisories of PyPI by pip-audit. Where these cannot
be reached, and for the JVM jars always, ``requirements/advisories.toml`` counts, and the output tells so.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).resolve().parent
SECONDS = 300
_JAR = re.compile(r"([\w.-]+?)-(\d+(?:\.\d+)*(?:-\d+)?)[\w.-]*\.jar")


class Pinned(NamedTuple):
    """A package or a jar in one version."""

    name: str
    version: str
    kind: str = "package"


class Advisory(NamedTuple):
    """A vulnerability of all versions from one on and below another; ``accepted``: why it does no harm here."""

    name: str
    fixed: str
    ids: tuple[str, ...]
    kind: str = "package"
    since: str = "0"
    accepted: str = ""


def packages(text: str) -> list[Requirement]:
    """Return the requirements of a pinned list, without their hashes."""
    lines = (line.removesuffix("\\").strip() for line in text.splitlines())
    return [Requirement(line) for line in lines if line and not line.startswith(("#", "--hash="))]


def pinned() -> set[Pinned]:
    """Return everything that the lists of the repository pin."""
    found = set()
    for path in HERE.glob("*.txt"):
        for requirement in packages(path.read_text("utf-8")):
            (specifier,) = requirement.specifier
            found.add(Pinned(canonicalize_name(requirement.name), specifier.version))
    for line in (HERE.parent / "conf/jars.sha256").read_text("utf-8").splitlines():
        if match := _JAR.fullmatch(line.rpartition("/")[2]):
            found.add(Pinned(match[1], match[2], "jar"))
    return found


def advisories() -> list[Advisory]:
    """Read the list of the repository."""
    entries = tomllib.loads((HERE / "advisories.toml").read_text("utf-8"))["advisory"]
    return [
        Advisory(
            entry[kind], entry["fixed"], tuple(entry["ids"]), kind, entry.get("since", "0"), entry.get("accepted", "")
        )
        for entry in entries
        for kind in ("package", "jar")
        if kind in entry
    ]


def known(found: Iterable[Pinned], against: Iterable[Advisory]) -> list[str]:
    """Return a line for each version that an advisory is about."""
    lines = []
    listed = list(against)
    for one in sorted(found):
        for advisory in listed:
            same = (one.kind, one.name) == (advisory.kind, advisory.name)
            if same and Version(advisory.since) <= Version(one.version) < Version(advisory.fixed):
                why = f" ({advisory.accepted})" if advisory.accepted else ""
                lines.append(f"{one.name} {one.version}: {', '.join(advisory.ids)}; fixed in {advisory.fixed}{why}")
    return lines


def audited() -> tuple[list[str], int]:
    """Ask pip-audit; return the vulnerabilities, and how many packages its database knew."""
    lines, reached = set(), 0
    for path in sorted(HERE.glob("*.txt")):
        command = [sys.executable, "-m", "pip_audit", "--requirement", str(path), "--disable-pip", "--format", "json"]
        finished = subprocess.run(  # noqa: S603 - fixed arguments, no shell
            [*command, "--progress-spinner", "off"], capture_output=True, text=True, check=False, timeout=SECONDS
        )
        try:
            entries = json.loads(finished.stdout)["dependencies"]
        except ValueError:
            # it could not reach the database at all
            continue
        reached += sum("vulns" in entry for entry in entries)
        for entry in entries:
            for found in entry.get("vulns", ()):
                fixed = ", ".join(found["fix_versions"]) or "no version yet"
                lines.add(f"{entry['name']} {entry['version']}: {found['id']}; fixed in {fixed}")
    return sorted(lines), reached


def main() -> int:
    """Print what is known; return the exit code."""
    found, listed = pinned(), advisories()
    lines = known(found, [advisory for advisory in listed if not advisory.accepted])
    try:
        by_database, reached = audited()
    except subprocess.TimeoutExpired:
        by_database, reached = [], 0
    if reached:
        print(f"pip-audit has compared {reached} entries of requirements/*.txt with the advisories of PyPI.")
    else:
        print("The advisories of PyPI cannot be reached: new vulnerabilities would not be noticed.")
    print(f"{len(found)} packages and jars were compared with the {len(listed)} entries of advisories.toml.")
    for line in known(found, [advisory for advisory in listed if advisory.accepted]):
        print(f"ACCEPTED {line}")
    for line in [*lines, *by_database]:
        print(f"VULNERABLE {line}")
    return int(bool(lines or by_database))


if __name__ == "__main__":
    sys.exit(main())
