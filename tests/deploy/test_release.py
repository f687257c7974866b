"""The workflow of a release runs targets that exist, publishes what they make, and lets each job do one thing."""

from __future__ import annotations

import os
import re
import subprocess
from typing import Any

import pytest
import yaml

from ackstream import __version__
from tests.deploy.product import ROOT
from tests.test_requirements import PROJECT

WORKFLOW: dict[Any, Any] = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text("utf-8"))
JOBS: dict[str, dict[str, Any]] = WORKFLOW["jobs"]
STEPS = [step for job in JOBS.values() for step in job["steps"]]
COMMANDS = "\n".join(step["run"] for step in STEPS if "run" in step)
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")


def _uses(job: str, action: str) -> list[dict[str, Any]]:
    return [step["with"] for step in JOBS[job]["steps"] if step.get("uses", "").startswith(f"{action}@")]


def test_only_a_tag_of_a_version_publishes() -> None:
    # YAML 1.1 reads the key `on` as true
    assert WORKFLOW[True] == {"push": {"tags": ["v*"]}}


@pytest.mark.parametrize(("tag", "code"), [(f"v{__version__}", 0), ("v9.9.9", 1), (f"v{__version__}.1", 1)])
def test_a_tag_that_is_not_the_version_ends_the_release(tag: str, code: int) -> None:
    (step,) = [step for step in STEPS if step.get("name") == "The tag is the version"]
    done = subprocess.run(
        ["bash", "-c", step["run"]],
        cwd=ROOT,
        env={**os.environ, "GITHUB_REF_NAME": tag},
        capture_output=True,
        check=False,
    )
    assert done.returncode == code


def test_the_build_runs_targets_that_exist_and_uploads_what_they_make() -> None:
    targets = [target for line in re.findall(r"(?m)^make (.+)$", COMMANDS) for target in line.split()]
    assert set(targets) == {"dist-full", "chart", "sbom"}
    assert all(re.search(rf"(?m)^{target}:", MAKEFILE) for target in targets)
    assert (ROOT / ".ci/run").is_file()
    assert ".ci/run long" in COMMANDS
    for upload in _uses("build", "actions/upload-artifact"):
        assert upload["path"].removesuffix("/") in MAKEFILE
        assert upload["if-no-files-found"] == "error"


def test_nothing_is_published_before_the_build_has_passed() -> None:
    for name, job in JOBS.items():
        assert name == "build" or job["needs"] in ("build", "pypi")


def test_a_job_may_do_one_thing() -> None:
    assert WORKFLOW["permissions"] == {"contents": "read"}
    granted = {name: job["permissions"] for name, job in JOBS.items() if "permissions" in job}
    assert granted == {"pypi": {"id-token": "write"}, "release": {"contents": "write"}}
    # what is uploaded to PyPI is what the build has made, and nothing else runs there
    assert [step["uses"].partition("@")[0] for step in JOBS["pypi"]["steps"]] == [
        "actions/download-artifact", "pypa/gh-action-pypi-publish",
    ]  # fmt: skip
    for checkout in (found for name in JOBS for found in _uses(name, "actions/checkout")):
        assert checkout == {"persist-credentials": False}


def test_every_action_has_a_version() -> None:
    used = [step["uses"] for step in STEPS if "uses" in step]
    assert all(re.fullmatch(r"[\w/-]+@(v\d+|release/v\d+)", action) for action in used)


def test_the_image_is_built_from_the_dockerfile_with_its_bill() -> None:
    (file,) = re.findall(r"--file (\S+)", COMMANDS)
    assert (ROOT / file).is_file()
    assert "--sbom=true --provenance=true" in COMMANDS


def test_the_oldest_and_the_newest_python_are_those_of_the_classifiers() -> None:
    pythons = [text.rpartition(" ")[2] for text in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", text)]
    (set_up,) = _uses("build", "actions/setup-python")
    assert sorted(set_up["python-version"].split()) == [pythons[0], pythons[-1]]
    assert f"python{pythons[0]} python{pythons[-1]}" in MAKEFILE
