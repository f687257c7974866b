"""The Helm chart as `make chart` renders it: the system of the manifests, and for other values what they promise."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from ackstream import __version__
from ackstream.settings.base import parse_toml
from tests.deploy import test_kubernetes as manifests
from tests.deploy.product import DEPLOY, check_command, settings
from tests.harness.scripts import module_of

RENDER = module_of(DEPLOY / "helm/render.py")
CHART = DEPLOY / "helm/ackstream"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
SCHEMA = jsonschema.Draft7Validator(json.loads((CHART / "values.schema.json").read_text("utf-8")))
RENDERED: dict[str, list[dict[str, Any]]] = {
    name: [found for found in yaml.safe_load_all((RENDER.RENDERED / f"{name}.yaml").read_text("utf-8")) if found]
    for name in RENDER.variants()
}
OPERATOR = "monitoring.coreos.com/v1"
OBJECTS = [
    pytest.param(name, found, id=f"{name} {found['kind']} {found['metadata']['name']}")
    for name, objects in RENDERED.items()
    for found in objects
]
WORKLOADS = [one for one in OBJECTS if one.values[1]["kind"] in ("StatefulSet", "Deployment", "CronJob")]


def _named(variant: str, kind: str, name: str) -> dict[str, Any]:
    (found,) = [
        one for one in RENDERED[variant] if (one["kind"], one["metadata"]["name"]) == (kind, f"ackstream-{name}")
    ]
    return found


def _kinds(variant: str, kind: str) -> set[str]:
    return {one["metadata"]["name"].removeprefix("ackstream-") for one in RENDERED[variant] if one["kind"] == kind}


def _pod(workload: dict[str, Any]) -> dict[str, Any]:
    spec = workload["spec"]
    return dict((spec["jobTemplate"]["spec"] if workload["kind"] == "CronJob" else spec)["template"])


def _container(workload: dict[str, Any]) -> dict[str, Any]:
    (container,) = _pod(workload)["spec"]["containers"]
    return dict(container)


def _environment(workload: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["value"] for one in _container(workload)["env"]}


def _file(variant: str) -> str:
    return str(_named(variant, "ConfigMap", "settings")["data"]["ackstream.toml"])


# -- what is rendered --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RENDER.variants())
def test_the_rendered_files_are_of_this_chart(name: str) -> None:
    first = (RENDER.RENDERED / f"{name}.yaml").read_text("utf-8").partition("\n")[0]
    assert first == f"# Rendered by `make chart` from the chart {RENDER.digest()}"


def test_every_rendered_file_is_of_a_set_of_values() -> None:
    assert {path.stem for path in RENDER.RENDERED.iterdir()} == RENDER.variants().keys()


@pytest.mark.parametrize("version", manifests.VERSIONS)
@pytest.mark.parametrize(("_variant", "found"), OBJECTS)
def test_a_rendered_manifest_is_an_object_of_kubernetes(_variant: str, found: dict[str, Any], version: str) -> None:
    if found["apiVersion"] != OPERATOR:
        kubernetes_validate.validate(found, version, strict=True)


def test_the_chart_is_of_the_version_of_the_product() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
    images = {_container(one.values[1])["image"] for one in WORKLOADS}
    assert images == {f"{repository}:{__version__}" for repository in ("ackstream", "registry.example/ackstream")}


# -- the same system as deploy/kubernetes ------------------------------------------------------------------------------


def _plain(found: dict[str, Any]) -> dict[str, Any]:
    """Return a specification without the names, labels and defaults that Helm and kustomize add in different ways."""
    text = json.dumps(found["spec"]).replace('"ackstream-', '"')
    for name in ("settings", "kafka-correlate", "kafka-tables", "kafka-gateway", "access", "gateway-tls"):
        text = text.replace(f'Name": "{name}"', f'Name": "ackstream-{name}"')
    spec: dict[str, Any] = json.loads(text.replace('"name": "ackstream-settings"', '"name": "settings"'))
    if found["kind"] == "Service":
        spec = {"type": "ClusterIP", **spec}
    _strip(spec)
    return spec


def _strip(part: Any) -> None:
    if isinstance(part, dict):
        part.pop("app.kubernetes.io/instance", None)
        for key in ("env", "imagePullPolicy", "image"):
            part.pop(key, None)
        if "labels" in part:
            part.pop("annotations", None)
        for key in ("volumes", "volumeMounts"):
            part[key] = sorted(part.get(key, ()), key=lambda one: str(one["name"]))
    for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        _strip(inner)


SHARED = [found for found in manifests.OBJECTS if found["kind"] not in ("Namespace", "NetworkPolicy")]


@pytest.mark.parametrize("found", SHARED, ids=lambda found: f"{found['kind']} {found['metadata']['name']}")
def test_the_chart_makes_what_the_manifests_make(found: dict[str, Any]) -> None:
    ours = _named("default", found["kind"], found["metadata"]["name"])
    assert ours["apiVersion"] == found["apiVersion"]
    assert _plain(copy.deepcopy(ours)) == _plain(copy.deepcopy(found))


@pytest.mark.parametrize("workload", manifests.WORKLOADS, ids=lambda found: found["metadata"]["name"])
def test_a_pod_has_the_same_settings_as_that_of_the_manifests(workload: dict[str, Any], tmp_path: Path) -> None:
    ours = _named("default", workload["kind"], workload["metadata"]["name"])
    files = [(DEPLOY / "kubernetes/ackstream.toml").read_text("utf-8"), _file("default")]
    read = []
    for found, text in zip((workload, ours), files, strict=True):
        variables = {one["name"]: one["value"] for one in _container(found)["env"]}
        # what differs: the name of the Service; and files that are not here
        left = {name: value for name, value in variables.items() if "GATEWAY_ALLOWED" not in name}
        left = {name: value for name, value in left.items() if "/run/secrets" not in value}
        (tmp_path / "ackstream.toml").write_text(_without_files(text), "utf-8")
        # those of the image
        image = {"ACKSTREAM_METRICS_PORT": "9464", "ACKSTREAM_LOG_FORMAT": "json"}
        read.append(settings(image | left, tmp_path / "ackstream.toml"))
    assert read[0] == read[1]
    assert read[0].kafka.replication == 3


def _without_files(text: str) -> str:
    return text.replace('{ file = "/run/secrets/kafka/password" }', '"hunter2"').replace(
        'tls = { ca = "/run/secrets/kafka/ca.crt" }\n', ""
    )


def test_the_files_of_the_settings_are_those_of_the_manifests() -> None:
    theirs = parse_toml((DEPLOY / "kubernetes/ackstream.toml").read_text("utf-8"))
    assert parse_toml(_file("default"))["kafka"] == theirs["kafka"]


def test_a_request_is_taken_under_the_names_of_the_service_and_those_of_the_values() -> None:
    for variant, further in (("default", []), ("standby", ["things.example"])):
        found = settings(
            {"ACKSTREAM_GATEWAY_ALLOWED_HOSTS": _gateway_hosts(variant)},
        )
        assert [*found.gateway.allowed_hosts] == ["ackstream-gateway", "ackstream-gateway.ackstream.svc", *further]


def _gateway_hosts(variant: str) -> str:
    return _environment(_named(variant, "Deployment", "gateway"))["ACKSTREAM_GATEWAY_ALLOWED_HOSTS"]


# -- other values ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("variant", "workload"), WORKLOADS)
def test_a_pod_runs_a_command_with_volumes_and_objects_that_exist(variant: str, workload: dict[str, Any]) -> None:
    spec, container = _pod(workload)["spec"], _container(workload)
    check_command(container["args"])
    claimed = {one["metadata"]["name"] for one in workload["spec"].get("volumeClaimTemplates", ())}
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert volumes.keys() | claimed == mounts.keys()
    assert {"/tmp", "/var/lib/ackstream"} <= set(mounts.values())
    for volume in volumes.values():
        if "persistentVolumeClaim" in volume:
            name = volume["persistentVolumeClaim"]["claimName"].removeprefix("ackstream-")
            assert name in _kinds(variant, "PersistentVolumeClaim")
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert spec["securityContext"]["runAsNonRoot"] is True
    environment = _environment(workload)
    written = ["ACKSTREAM_LAKE_CHECKPOINTS", *(["ACKSTREAM_LAKE_PATH"] if "correlate" not in container["args"] else [])]
    for place in map(environment.__getitem__, written):
        assert "://" in place or any(Path(place).is_relative_to(path) for path in mounts.values())


@pytest.mark.parametrize("variant", ["standby", "store"])
def test_a_standby_is_a_second_pod_with_the_checkpoint_of_the_first(variant: str) -> None:
    found = _named(variant, "StatefulSet", "correlate")
    container = _container(found)
    assert (found["spec"]["replicas"], container["args"]) == (2, ["submit", "correlate", "--standby"])
    assert "volumeClaimTemplates" not in found["spec"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    if variant == "store":
        assert _environment(found)["ACKSTREAM_LAKE_CHECKPOINTS"] == "s3a://bucket/checkpoints"
        assert "checkpoints" not in mounts
        return
    assert mounts["checkpoints"] == _environment(found)["ACKSTREAM_LAKE_CHECKPOINTS"]
    claim = _named(variant, "PersistentVolumeClaim", "correlate-checkpoints")
    assert (claim["spec"]["accessModes"], claim["spec"]["storageClassName"]) == (["ReadWriteMany"], "nfs")


def test_a_job_of_other_values_is_a_driver_with_the_usual_ones(tmp_path: Path) -> None:
    found = _named("standby", "StatefulSet", "messages")
    assert found["spec"]["replicas"] == 1
    assert _container(found)["args"] == ["run", "persist", "settle"]
    assert _container(found)["resources"] == VALUES["jobs"]["tables"]["resources"]
    (claim,) = found["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "fast"
    secrets = [one["secret"]["secretName"] for one in _pod(found)["spec"]["volumes"] if "secret" in one]
    assert secrets == ["ackstream-kafka-messages"]
    (tmp_path / "ackstream.toml").write_text(_without_files(_file("standby")), "utf-8")
    read = settings(_environment(found), tmp_path / "ackstream.toml")
    assert read.kafka.topic_prefix == "test-"
    assert read.kafka.bootstrap == "kafka-0.example:9093,kafka-1.example:9093"
    assert read.kafka.security.username == "messages"


def test_an_object_store_and_a_kafka_without_logins_need_no_volumes_and_no_secrets(tmp_path: Path) -> None:
    assert _kinds("store", "PersistentVolumeClaim") == _kinds("store", "NetworkPolicy") == set()
    assert _kinds("store", "Deployment") == set()
    (tmp_path / "ackstream.toml").write_text(_file("store"), "utf-8")
    for name, kind in (("correlate", "StatefulSet"), ("tables", "StatefulSet"), ("maintain", "CronJob")):
        found = _named("store", kind, name)
        kinds = {key for volume in _pod(found)["spec"]["volumes"] for key in volume} - {"name"}
        assert kinds == {"configMap", "emptyDir"}
        read = settings(_environment(found), tmp_path / "ackstream.toml")
        assert (read.lake.path, read.kafka.security.username) == ("s3a://bucket/lake", "")
        assert _container(found)["envFrom"] == [{"secretRef": {"name": "s3"}}]


def test_prometheus_reads_every_service() -> None:
    (monitor,) = [found for found in RENDERED["standby"] if found["apiVersion"] == OPERATOR]
    wanted = monitor["spec"]["selector"]["matchLabels"]
    (endpoint,) = monitor["spec"]["endpoints"]
    services = [found for found in RENDERED["standby"] if found["kind"] == "Service"]
    assert len(services) == 4
    for found in services:
        assert wanted.items() <= found["metadata"]["labels"].items()
        assert endpoint["port"] in {port["name"] for port in found["spec"]["ports"]}
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert OPERATOR not in {found["apiVersion"] for found in RENDERED["default"]}


def test_each_pod_has_one_network_policy() -> None:
    for variant in ("default", "standby"):
        policies = [one["spec"] for one in RENDERED[variant] if one["kind"] == "NetworkPolicy"]
        for one in WORKLOADS:
            if one.values[0] == variant:
                labels = _pod(one.values[1])["metadata"]["labels"]
                (policy,) = [own for own in policies if own["podSelector"]["matchLabels"].items() <= labels.items()]
                ports = {port["port"] for rule in policy.get("ingress", ()) for port in rule["ports"]}
                assert ports == {port["name"] for port in _container(one.values[1]).get("ports", ())}


# -- wrong values ------------------------------------------------------------------------------------------------------


def _with(path: str, value: Any) -> dict[str, Any]:
    values = copy.deepcopy(VALUES)
    part = values
    *parents, last = path.split("/")
    for key in parents:
        part = part.setdefault(key, {})
    part[last] = value
    return values


def test_the_values_satisfy_their_schema() -> None:
    SCHEMA.validate(VALUES)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("kafka/boostrap", "kafka:9092"),
        ("jobs/correlate/standbye", True),
        ("jobs/correlate/args", ["correlate"]),
        ("jobs/messages", {"storage": {"size": "1Gi"}}),
        # it would be a second component of that name
        ("jobs/gateway", {"args": ["submit", "twin"]}),
        ("jobs/Messages", {"args": ["submit", "persist"]}),
        ("jobs/correlate/driverMemory", "2Gi"),
        # no volume is there
        ("lake/checkpoints", "/checkpoints"),
        ("lake/path", "lake"),
        ("serviceMonitor/interval", 15),
        ("settings", ""),
    ],
)
def test_a_wrong_value_is_refused(path: str, value: Any) -> None:
    assert not SCHEMA.is_valid(_with(path, value))


def test_every_value_has_its_schema() -> None:
    properties = SCHEMA.schema["properties"]
    assert properties.keys() - {"global"} == VALUES.keys()
    for name in ("image", "kafka", "lake", "gateway", "maintain", "networkPolicy", "serviceMonitor"):
        assert properties[name]["properties"].keys() == VALUES[name].keys()
    assert SCHEMA.schema["definitions"]["job"]["properties"].keys() == VALUES["jobs"]["tables"].keys()
