from __future__ import annotations

from pathlib import Path

import pytest

from ackstream.errors import LocalError
from ackstream.local import places


def test_a_checkout_keeps_conf_and_jobs_beside_the_package():
    assert places.root() == Path(__file__).parents[2]
    assert places.conf("ivy.xml").is_file()
    assert places.job("correlate").is_file()


def test_a_wheel_keeps_them_in_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "_data").mkdir()
    monkeypatch.setattr(places, "PACKAGE", tmp_path)
    assert places.root() == tmp_path / "_data"


def test_an_installation_without_its_files_is_told():
    with pytest.raises(LocalError, match=r"nothing\.xml is missing from the installation of ackstream: install"):
        places.conf("nothing.xml")


def test_an_unknown_job_is_answered_with_the_known_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(places, "root", lambda: tmp_path)
    with pytest.raises(LocalError, match=r"There is no job 'twin'; the jobs in .* are: none\.$"):
        places.job("twin")
    (tmp_path / "jobs").mkdir()
    for name in ("correlate.py", "archive.py"):
        (tmp_path / "jobs" / name).touch()
    with pytest.raises(LocalError, match=r"are: archive, correlate\.$"):
        places.job("twin")


@pytest.mark.parametrize(
    ("xdg", "expected"),
    [("/var/cache/me", "/var/cache/me/ackstream"), ("", "{home}/.cache/ackstream"), ("x", "{home}/.cache/ackstream")],
)
def test_the_cache_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, xdg: str, expected: str):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", xdg)
    assert str(places.cache()) == expected.format(home=tmp_path)
