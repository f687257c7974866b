"""The image and the compose file: right for their linters, and about what the product has."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import pytest
import yaml

from ackstream import __version__
from ackstream.errors import SettingsError
from ackstream.local.machine import NEWEST, OLDEST
from ackstream.settings.base import parse_toml
from tests.deploy.product import DEPLOY, PATHS, ROOT, USER, check_command, settings

DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
LINES = re.sub(r"(?m)^#.*\n", "", DOCKERFILE.read_text("utf-8")).replace("\\\n", " ").splitlines()
IGNORED = (DEPLOY / "docker" / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"].startswith("ackstream")}
GRAFANA = DEPLOY / "monitoring" / "grafana"


def _instructions(name: str) -> list[str]:
    return [line.partition(" ")[2].strip() for line in LINES if line.startswith(f"{name} ")]


def _variables() -> dict[str, str]:
    """Return the environment of the image, of all stages."""
    return dict(pair.split("=", 1) for line in _instructions("ENV") for pair in line.split())


# -- the image ---------------------------------------------------------------------------------------------------------


def test_hadolint_has_nothing_to_say_about_the_dockerfile() -> None:
    program = Path(sysconfig.get_path("scripts"), "hadolint")
    found = subprocess.run([program, "--no-color", DOCKERFILE], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout + found.stderr) == (0, "")


def test_the_image_installs_what_the_lists_name_by_hashes_alone() -> None:
    installs = re.findall(r"pip install ((?:(?!&&).)+)", "\n".join(LINES))
    assert len(installs) == 3
    for options in installs:
        assert "--require-hashes" in options or ("--no-deps" in options and "--no-build-isolation" in options)
    lists = re.findall(r"-r (\S+)", "\n".join(installs))
    assert lists == ["requirements/build.txt", "requirements/run.txt"]
    assert all((ROOT / name).is_file() for name in lists)


def test_what_is_copied_into_the_image_exists_and_reaches_the_build() -> None:
    let_in = {line.removeprefix("!") for line in IGNORED if line.startswith("!")}
    assert IGNORED[1] == "*"
    assert all((ROOT / name).exists() for name in let_in)
    copied = {name for line in _instructions("COPY") if not line.startswith("--from") for name in line.split()[:-1]}
    assert copied - {"."} <= let_in
    # what pyproject.toml builds the package of
    wheel = parse_toml((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]["targets"]["wheel"]
    built_of = {*wheel["packages"], *wheel["force-include"]}
    assert built_of | {"pyproject.toml", "README.md", "LICENSE"} <= let_in


def test_the_image_has_a_java_and_a_python_that_the_product_runs_on() -> None:
    (java,) = re.findall(r"openjdk-(\d+)-jre-headless", "\n".join(LINES))
    assert OLDEST <= int(java) <= NEWEST
    (python,) = re.findall(r"^FROM python:(\d+\.\d+)-", "\n".join(LINES), re.MULTILINE)
    assert f"Programming Language :: Python :: {python}" in (ROOT / "pyproject.toml").read_text("utf-8")


def test_the_image_is_not_run_by_root_and_starts_the_product() -> None:
    assert _instructions("USER") == [str(USER)]
    assert [line.split()[2] for line in _instructions("RUN") if line.startswith("useradd")] == [str(USER)]
    assert json.loads(_instructions("ENTRYPOINT")[0]) == ["tini", "--", "ackstream"]
    for command in re.findall(r"/bin/ackstream ([^&]+)", "\n".join(LINES)):
        assert check_command(command.split()) == "jars"


def test_the_check_of_the_image_asks_where_the_product_answers() -> None:
    (check,) = _instructions("HEALTHCHECK")
    *_, program = json.loads(check.partition("CMD ")[2])
    compile(program, "HEALTHCHECK", "exec")
    assert set(re.findall(r"/health/\w+", program)) <= PATHS
    (variable,) = re.findall(r"environ\['(\w+)']", program)
    assert settings(_variables()).metrics.port == int(_variables()[variable]) > 0


# -- compose -----------------------------------------------------------------------------------------------------------


def test_the_compose_file_is_one_by_the_specification() -> None:
    schema = json.loads(gzip.decompress((ROOT / "tests/vectors/compose-spec.json.gz").read_bytes()))
    jsonschema.Draft7Validator(schema).validate(COMPOSE)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(schema).validate(COMPOSE | {"services": {"jobs": {"imagee": "x"}}})


@pytest.mark.parametrize("name", OURS)
def test_a_service_runs_a_command_with_settings_that_exist(name: str) -> None:
    assert OURS[name]["image"] == f"ackstream:{__version__}"
    assert check_command(OURS[name]["command"]) in ("run", "gateway")
    found = settings(_variables() | OURS[name]["environment"])
    build = OURS[name]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).samefile(DOCKERFILE)
    # everything is open: it must be there for this machine alone
    assert {found.metrics.host, found.gateway.host} == {"127.0.0.1"}
    assert found.kafka.bootstrap == "localhost:9092"
    heap = int(found.spark.driver_memory.removesuffix("g")) if "jobs" in name else 0
    assert int(OURS[name]["mem_limit"].removesuffix("g")) > heap


def test_wrong_commands_and_settings_would_be_found() -> None:
    for wrong in (["gateway", "--port", "1"], ["submit", "correlate", "--mastr", "yarn"]):
        with pytest.raises(Exception, match="No such option"):
            check_command(wrong)
    for unknown in (["rum", "correlate"], ["run", "corelate"]):
        with pytest.raises(AssertionError):
            check_command(unknown)
    with pytest.raises(SettingsError):
        settings({"ACKSTREAM_METRICS_PORTS": "1"})


def test_prometheus_reads_the_ports_of_the_services() -> None:
    file = yaml.safe_load((DEPLOY / "monitoring/prometheus.yaml").read_text("utf-8"))
    targets = {target for part in file["scrape_configs"] for one in part["static_configs"] for target in one["targets"]}
    ports = [service["environment"]["ACKSTREAM_METRICS_PORT"] for service in OURS.values()]
    assert len(set(ports)) == len(ports)
    assert {f"localhost:{port}" for port in ports} == targets


def _mounts() -> Iterator[Any]:
    for name, service in SERVICES.items():
        for volume in service.get("volumes", ()):
            source, _, rest = volume.partition(":")
            if rest:
                yield pytest.param(source, rest.partition(":")[0], id=f"{name} {source}")


@pytest.mark.parametrize(("source", "target"), list(_mounts()))
def test_what_is_mounted_exists(source: str, target: str) -> None:
    assert target.startswith("/")
    assert source in COMPOSE["volumes"] or (source.startswith(".") and (DEPLOY / source).exists())


def test_every_part_listens_on_this_machine_alone() -> None:
    assert {service["network_mode"] for service in SERVICES.values()} == {"host"}
    assert "--web.listen-address=127.0.0.1:9090" in SERVICES["prometheus"]["command"]
    assert SERVICES["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"
    listeners = SERVICES["kafka"]["environment"]["KAFKA_LISTENERS"]
    assert re.findall(r"//([^:,]*):", listeners) == ["localhost", "localhost"]


def test_kafka_is_the_one_that_is_tested_with_the_same_properties() -> None:
    dependencies = ET.parse(ROOT / "conf/ivy.xml").iter("dependency")
    (version,) = [one.get("rev") for one in dependencies if one.get("name") == "kafka_2.13"]
    assert SERVICES["kafka"]["image"] == f"apache/kafka:{version}"
    properties = (ROOT / "conf/broker.properties").read_text("utf-8")
    names = set(re.findall(r"(?m)^([a-z.]+)=", properties))
    added = {
        name.removeprefix("KAFKA_").lower().replace("_", ".")
        for name in SERVICES["kafka"]["environment"]
        if name != "KAFKA_HEAP_OPTS"
    }
    assert added == {"listeners", "advertised.listeners", "controller.quorum.voters", "log.dirs"}
    assert not names & added


def test_no_image_is_of_a_moving_version_or_a_private_registry() -> None:
    for service in SERVICES.values():
        assert re.fullmatch(r"([a-z]+/)?[a-z]+:v?\d+\.\d+\.\d+", service["image"])


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    (source,) = yaml.safe_load((GRAFANA / "datasources/prometheus.yaml").read_text("utf-8"))["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://localhost:9090")
    (provider,) = yaml.safe_load((GRAFANA / "dashboards/ackstream.yaml").read_text("utf-8"))["providers"]
    targets = [volume.split(":")[1] for volume in SERVICES["grafana"]["volumes"]]
    assert f"{provider['options']['path']}/ackstream.json" in targets
    assert "/etc/grafana/provisioning" in targets
    dashboard = json.loads((DEPLOY / "monitoring/dashboard.json").read_text("utf-8"))
    # the dashboard takes the source of that type which there is
    variables = {one["name"]: one for one in dashboard["templating"]["list"]}
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", source["type"])
