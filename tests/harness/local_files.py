"""The classes of ``ackstream/local/*.java`` as Spark's own compiler makes them; run as a module, this packs them."""

from __future__ import annotations

import zipfile
from typing import Any

from ackstream.local import jars
from ackstream.local.submit import LOCAL_FILES_JAR
from ackstream.settings import load
from ackstream.spark.session import session


def compiled(jvm: Any) -> dict[str, bytes]:
    """Return the class files that Janino makes of the sources, by their names: the same for the same version of it.

    :param jvm: of a session with the product's jars
    """
    found = {}
    for source in sorted(LOCAL_FILES_JAR.parent.glob("*.java")):
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(jvm.Thread.currentThread().getContextClassLoader())
        compiler.cook(source.read_text("utf-8"))
        found |= {name.replace(".", "/") + ".class": bytes(code) for name, code in compiler.getBytecodes().items()}
    return dict(sorted(found.items()))


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
