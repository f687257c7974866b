from __future__ import annotations

import subprocess
import sys

import pytest

from ackstream import client, settings

SLOW = (
    # what jobs run on, and what reads tables
    *("pyspark", "py4j", "delta", "deltalake", "pyarrow", "pandas", "numpy", "duckdb"),
    # servers, other systems, and logins that few clients use
    *("httpx", "starlette", "uvicorn", "websockets", "anyio", "jwt", "cryptography", "paho", "pika", "proton", "re2"),
    *("rich", "typer"),
)
SETTINGS_OF_SERVICES = ("ackstream.settings.model", "ackstream.settings.gateway", "ackstream.settings.connections")


def _loaded(code: str, names: tuple[str, ...]) -> list[str]:
    code += f"\nimport sys; print(*[name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize("names", [SLOW, SETTINGS_OF_SERVICES], ids=["slow", "settings"])
def test_importing_the_client_loads_neither_slow_libraries_nor_the_settings_of_services(names: tuple[str, ...]) -> None:
    assert _loaded("import ackstream.client", names) == []


def test_the_settings_of_kafka_and_the_lake_load_no_other_section() -> None:
    code = "from ackstream.settings import Kafka, Lake; Kafka(bootstrap='localhost:9092'); Lake()"
    assert _loaded(code, SETTINGS_OF_SERVICES + SLOW) == []


@pytest.mark.parametrize("package", [client, settings], ids=lambda package: package.__name__)
def test_everything_that_a_package_offers_is_there(package: object) -> None:
    names = package.__all__  # type: ignore[attr-defined]
    assert names == sorted(set(names))
    assert all(getattr(package, name) is not None for name in names)


def test_a_section_that_does_not_exist_is_no_attribute_of_the_settings() -> None:
    with pytest.raises(AttributeError, match="Gatway"):
        settings.Gatway  # type: ignore[attr-defined]  # noqa: B018
