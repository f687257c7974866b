"""The classes of ``ackstream/local/*.java`` as Spark's own compiler makes them; run as a module, this packs them."""

from __future__ import annotations

import base64
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from ackstream.local import jars
from ackstream.local.submit import LOCAL_FILES_JAR
from ackstream.settings import load
from ackstream.spark.session import session
from tests.harness.power import Entry, Moment, held

RECORDED_DISK = Path(__file__).with_name("RecordedDisk.java")
UNLINKED = "ackstream.tests.RecordedDisk$Unlinked"
"""The file system of a disk without hard links."""
NAMES = "fs.AbstractFileSystem.file.impl"
RECORDING = {
    "fs.file.impl": "ackstream.tests.RecordedDisk$Tables",
    "fs.file.impl.disable.cache": "true",
    NAMES: "ackstream.tests.RecordedDisk$Names",
}


def compiled(jvm: Any) -> dict[str, bytes]:
    """Return the class files that Janino makes of the sources, by their names: the same for the same version of it.

    :param jvm: of a session with the product's jars
    """
    found, loader = {}, None
    # in this order each one finds those that it uses
    for source in sorted(LOCAL_FILES_JAR.parent.glob("*.java")):
        compiler = _compile(jvm, source, loader)
        loader = compiler.getClassLoader()
        found |= {name.replace(".", "/") + ".class": bytes(code) for name, code in compiler.getBytecodes().items()}
    return dict(sorted(found.items()))


def _compile(jvm: Any, source: Path, parent: Any = None) -> Any:
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(parent or jvm.Thread.currentThread().getContextClassLoader())
    compiler.cook(source.read_text("utf-8"))
    return compiler


@cache
def _recording(jvm: Any) -> Any:
    """Return the loader of the recording classes; py4j takes two classes of one name for one."""
    return _compile(jvm, RECORDED_DISK).getClassLoader()


@contextmanager
def recorded(jvm: Any, conf: Any, directory: Path, names: str = "") -> Iterator[list[Moment]]:
    """Record what the JVM syncs in a directory by a Hadoop conf; the moments are complete after the block.

    :param names: the class that renames, if not the product's
    """
    loader = _recording(jvm)
    before, was = conf.getClassLoader(), {key: conf.get(key) for key in RECORDING}
    disk = loader.loadClass("ackstream.tests.RecordedDisk").newInstance()
    conf.setClassLoader(loader)
    for key, value in RECORDING.items():
        conf.set(key, value)
    if names:
        conf.set(NAMES, names)
    moments = [Moment(0, held(directory))]
    disk.begin(str(directory))
    try:
        yield moments
    finally:
        conf.setClassLoader(before)
        for key, value in was.items():
            conf.unset(key) if value is None else conf.set(key, value)
    moments += [_moment(text) for text in disk.moments()]
    moments.append(Moment(0, held(directory)))


def _moment(text: str) -> Moment:
    synced, *lines = text.split("\n")
    found = {}
    for path, inode, content in (line.split("\t") for line in lines):
        found[path.lstrip("/")] = Entry(int(inode), None if content == "-" else base64.b64decode(content))
    return Moment(int(synced), found)


def packed() -> dict[str, bytes]:
    """Return the class files within the product."""
    with zipfile.ZipFile(LOCAL_FILES_JAR) as jar:
        return {name: jar.read(name) for name in jar.namelist()}


if __name__ == "__main__":
    # Hadoop's own: the classes may not be there yet
    own = {
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
        "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.LocalFs",
    }
    made = compiled(session(load(), "compile", jars=jars.resolve("spark"), conf=own)._jvm)
    with zipfile.ZipFile(LOCAL_FILES_JAR, "w") as jar:
        for name, code in made.items():
            # the same jar for the same classes
            jar.writestr(zipfile.ZipInfo(name), code)
