"""Lint the chart, render it with its default values and those of ``ackstream/ci``, and package it: ``make chart``.

The rendered files are kept in ``tests/deploy/rendered``, where tests without helm read them. Their first line names the
chart that they were rendered from, by :func:`digest`. Review the difference after a change.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHART = HERE / "ackstream"
ROOT = HERE.parent.parent
RENDERED = ROOT / "tests/deploy/rendered"
HELM = "v3.22.0"
"""The release of helm that is built where none is installed."""
KUBERNETES = "v1.29.0"
"""The oldest that the chart is for: a helm that Go has built would take one of its own."""


def variants() -> dict[str, list[str]]:
    """Return the options of helm for each set of values, by its name."""
    files = sorted((CHART / "ci").glob("*-values.yaml"))
    return {"default": []} | {path.name.removesuffix("-values.yaml"): ["--values", str(path)] for path in files}


def digest() -> str:
    """Return the SHA-256 of the files of the chart and of their names."""
    found = hashlib.sha256()
    for path in sorted(path for path in CHART.rglob("*") if path.is_file()):
        found.update(f"{path.relative_to(CHART).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return found.hexdigest()


def helm() -> str:
    """Return helm: that of the machine, else one that Go builds once, in some minutes.

    :raises SystemExit: neither helm nor Go is installed
    """
    directory = ROOT / "build/tools"
    if found := shutil.which("helm") or shutil.which("helm", path=directory):
        return found
    go = shutil.which("go")
    if go is None:
        raise SystemExit("The chart needs helm: install it, or Go, which builds it.")
    print(f"Building helm {HELM}", flush=True)
    environment = {**os.environ, "GOBIN": str(directory)}
    subprocess.run([go, "install", f"helm.sh/helm/v3/cmd/helm@{HELM}"], env=environment, check=True)  # noqa: S603
    return str(directory / "helm")


def main(target: Path) -> None:
    """Write ``tests/deploy/rendered/NAME.yaml`` for each set of values, and the packaged chart to a directory."""
    program, release = helm(), ["--kube-version", KUBERNETES, "--namespace", "ackstream"]
    for directory in (RENDERED, target):
        directory.mkdir(parents=True, exist_ok=True)
    for name, options in variants().items():
        subprocess.run([program, "lint", "--strict", "--quiet", *release, CHART, *options], check=True)  # noqa: S603 - helm
        command = [program, "template", "ackstream", *release, CHART, *options]
        text = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout  # noqa: S603 - helm
        header = f"# Rendered by `make chart` from the chart {digest()}\n"
        (RENDERED / f"{name}.yaml").write_text(header + text, "utf-8")
        print(f"tests/deploy/rendered/{name}.yaml")
    subprocess.run([program, "package", CHART, "--destination", target], check=True)  # noqa: S603 - helm


if __name__ == "__main__":
    main(Path(sys.argv[1]))
