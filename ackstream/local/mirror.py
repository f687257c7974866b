"""How this machine reaches Maven Central: straight, through a mirror of ``~/.m2/settings.xml``, or through a proxy."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from xml.etree import ElementTree as ET

from ackstream.errors import LocalError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def java_options(environment: Mapping[str, str] | None = None, maven_settings: Path | None = None) -> list[str]:
    """Return the ``-D`` options that tell Java and ``conf/ivysettings.xml`` about the mirror and the proxy.

    :param environment: the environment variables; ``None`` takes the process's
    :param maven_settings: Maven's user settings; ``None`` takes ``~/.m2/settings.xml``
    :raises LocalError: the settings are not XML
    """
    environment = os.environ if environment is None else environment
    options = list(_proxy(environment))
    if root := _mirror_of_central(maven_settings or Path.home() / ".m2" / "settings.xml"):
        options += ["-Dackstream.resolver=mirror", f"-Dackstream.mirror={root}"]
    return options


def _proxy(environment: Mapping[str, str]) -> Iterator[str]:
    """Java does not read the proxy variables that every other program reads."""
    for scheme in ("http", "https"):
        text = environment.get(f"{scheme}_proxy") or environment.get(f"{scheme.upper()}_PROXY")
        if text:
            url = urlsplit(text if "//" in text else f"//{text}")
            yield f"-D{scheme}.proxyHost={url.hostname}"
            yield f"-D{scheme}.proxyPort={url.port or 80}"
    if direct := environment.get("no_proxy") or environment.get("NO_PROXY"):
        hosts = [host.strip() for host in direct.split(",") if host.strip()]
        yield "-Dhttp.nonProxyHosts=" + "|".join(f"*{host}" if host.startswith(".") else host for host in hosts)


def _mirror_of_central(path: Path) -> str | None:
    if not path.is_file():
        return None
    try:
        document = ET.parse(path).getroot()  # noqa: S314 - the user's own Maven settings
    except ET.ParseError as error:
        raise LocalError(f"Maven's settings {path} are not XML ({error}): correct the file.") from None
    for element in document.iter():
        if _local_name(element) == "mirror":
            fields = {_local_name(child): (child.text or "").strip() for child in element}
            if fields.get("blocked") != "true" and _covers_central(fields.get("mirrorOf", "")):
                return fields.get("url") or None
    return None


def _covers_central(mirror_of: str) -> bool:
    """Maven's pattern list: names, ``*``, ``external:*``, and exclusions with ``!``."""
    patterns = {pattern.strip() for pattern in mirror_of.split(",")}
    return "!central" not in patterns and bool(patterns & {"central", "*", "external:*"})


def _local_name(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]
