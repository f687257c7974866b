"""The class of ``LocalFiles.java`` as Spark's own compiler makes it; `python -m tests.harness.local_files` packs it."""

from __future__ import annotations

import zipfile
from typing import Any

from ackstream.local import jars
from ackstream.local.submit import LOCAL_FILES, LOCAL_FILES_JAR
from ackstream.settings import load
from ackstream.spark.session import session

SOURCE = LOCAL_FILES_JAR.with_name("LocalFiles.java")
ENTRY = LOCAL_FILES.replace(".", "/") + ".class"


def compiled(jvm: Any) -> bytes:
    """Return the class file that Janino makes of the source: the same for the same version of it.

    :param jvm: of a session with the product's jars
    """
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.Thread.currentThread().getContextClassLoader())
    compiler.cook(SOURCE.read_text("utf-8"))
    return bytes(compiler.getBytecodes()[LOCAL_FILES])


def packed() -> bytes:
    """Return the class file within the product."""
    with zipfile.ZipFile(LOCAL_FILES_JAR) as jar:
        return jar.read(ENTRY)


if __name__ == "__main__":
    made = compiled(session(load(), "compile", jars=jars.resolve("spark"))._jvm)
    with zipfile.ZipFile(LOCAL_FILES_JAR, "w") as jar:
        # the same jar for the same class
        jar.writestr(zipfile.ZipInfo(ENTRY), made)
