"""Write the bill of materials of the product, CycloneDX in JSON: ``make sbom``.

It has the Python packages of ``requirements/run.txt`` and the JVM jars of ``conf/jars.sha256``, with the SHA-256 that
an installation accepts. The jars within the package pyspark are part of that component.
"""

from __future__ import annotations

import json
import re
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
_VERSION = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_JAR = re.compile(r"(?P<group>[^/]+)/(?P<name>[^/]+)/(?:jars|bundles)/(?P=name)-(?P<version>[^/]+)\.jar")


def packages(text: str) -> Iterator[Component]:
    """Give the packages of a pinned list; the hashes are those of the files of a package, one for each platform."""
    for entry in re.split(r"(?m)^(?=[a-z0-9])", text)[1:]:
        requirement = Requirement(entry.partition("\\")[0])
        (specifier,) = requirement.specifier
        url = PackageURL("pypi", name=requirement.name, version=specifier.version)
        files = ExternalReference(
            type=ExternalReferenceType.DISTRIBUTION,
            url=XsUri(str(url)),
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest) for digest in sorted(_HASH.findall(entry))],
        )
        marker = [Property(name="ackstream:marker", value=str(requirement.marker))] if requirement.marker else []
        yield _library(url, external_references=[files], properties=marker)


def jars(text: str) -> Iterator[Component]:
    """Give the jars of a list of SHA-256."""
    for line in text.splitlines():
        digest, path = line.split()
        match = _JAR.fullmatch(path)
        if match is None:
            raise SystemExit(f"conf/jars.sha256 has a path of another form: {path}.")
        url = PackageURL("maven", match["group"], match["name"], match["version"])
        yield _library(url, hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)])


def _library(url: PackageURL, **parts: list[object]) -> Component:
    return Component(
        type=ComponentType.LIBRARY, bom_ref=str(url), name=url.name, group=url.namespace, version=url.version, purl=url,
        **parts,
    )  # fmt: skip


def document() -> str:
    """Return the bill of this checkout, the same text for the same lists.

    :raises SystemExit: it does not satisfy the schema of CycloneDX
    """
    found = _VERSION.search((ROOT / "ackstream/__init__.py").read_text("utf-8"))
    version = found[1] if found else ""
    url = PackageURL("pypi", name="ackstream", version=version)
    licences = [LicenseExpression("Apache-2.0")]
    own = Component(
        type=ComponentType.APPLICATION, bom_ref=str(url), name="ackstream", version=version, purl=url, licenses=licences
    )
    lists = [(ROOT / name).read_text("utf-8") for name in ("requirements/run.txt", "conf/jars.sha256")]
    components = [*packages(lists[0]), *jars(lists[1])]
    bom = Bom(components=components, serial_number=uuid.uuid5(uuid.NAMESPACE_URL, "".join([str(url), *lists])))
    bom.metadata.component = own
    bom.register_dependency(own, components)
    made = json.loads(JsonV1Dot6(bom).output_as_string())
    # it would differ each time
    del made["metadata"]["timestamp"]
    text = json.dumps(made, indent=2)
    if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        raise SystemExit(f"The bill does not satisfy the schema of CycloneDX: {error}")
    return text + "\n"


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(document(), "utf-8")
    print(target)
