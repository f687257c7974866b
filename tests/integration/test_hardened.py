"""The demo as a hardened site runs it, in namespaces of Linux: no engine of containers is needed.

The root is read-only, ``/tmp`` noexec, the name of the machine unresolvable, there is no IPv6 (in one test no IPv4) and
no other network, no HOME, LC_ALL=C, umask 077, and 1,024 open files. What cannot work there is refused with a sentence
that names the fix.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ackstream.local.machine import cache

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
SITE = """
set -e
hostname no-such-host.invalid
ip link set lo up
eval "$2"
mount -t tmpfs tmpfs /mnt
mkdir /mnt/tree /mnt/data /mnt/own
mount --bind "$1" /mnt/tree
mount -o remount,bind,ro /
mount -t tmpfs -o noexec,nosuid tmpfs /tmp
ulimit -n 1024
umask 077
cd /mnt/data
shift 2
exec "$@"
"""
OWN = {"JAVA_TOOL_OPTIONS": "-Djava.io.tmpdir=/mnt/own", "TMPDIR": "/mnt/own"}
NAMELESS = ("unshare", "--user", "--map-user=12345", "--map-group=12345")


NO_IPV6 = "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6"
NO_IPV4 = "ip -4 address flush dev lo"


def on_the_site(*before: str, lacks: str = NO_IPV6, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the demo on a site of its own, behind the words of a further command."""
    namespaces = ("unshare", "--user", "--map-root-user", "--mount", "--net", "--uts")
    program = "import sys; sys.argv = ['ackstream', 'demo']; from ackstream.cli.main import app; app()"
    environment = {
        "PATH": os.environ["PATH"], "LC_ALL": "C", "PYTHONPATH": "/mnt/tree", "XDG_CACHE_HOME": str(cache().parent),
    }  # fmt: skip
    return subprocess.run(
        [*namespaces, "bash", "-c", SITE, "site", str(ROOT), lacks, *before, sys.executable, "-c", program],
        env=environment | variables, capture_output=True, encoding="utf-8", timeout=600, check=False,
    )  # fmt: skip


def test_the_demo_adds_up_on_a_hardened_site() -> None:
    done = on_the_site(**OWN)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\nyes ") == 3
    assert "\nno " not in done.stdout


@pytest.mark.parametrize(
    ("before", "variables", "sentence"),
    [
        ((), {}, "Java's temporary directory is /tmp, which is mounted noexec"),
        (NAMELESS, OWN, "The user 12345 has no entry in /etc/passwd"),
        (
            (),
            OWN | {"lacks": NO_IPV4},
            "No program can listen at 127.0.0.1, as Spark does: run `ip address add",
        ),
    ],
    ids=["a temporary directory that is noexec", "a user without a name", "no IPv4"],
)
def test_what_cannot_work_there_is_refused_with_the_fix(
    before: tuple[str, ...], variables: dict[str, str], sentence: str
) -> None:
    done = on_the_site(*before, **variables)
    assert done.returncode == 1
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
