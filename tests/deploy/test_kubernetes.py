"""The manifests: objects of Kubernetes, and about what the product and the image have."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import kubernetes_validate
import pytest
import yaml

from ackstream import __version__
from ackstream.kafka.parties import PARTIES
from tests.deploy.product import DEPLOY, PATHS, ROOT, USER, check_command, settings
from tests.harness.certificates import Authority

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ackstream.settings import Settings

DIRECTORY = DEPLOY / "kubernetes"
KUSTOMIZATION: dict[str, Any] = yaml.safe_load((DIRECTORY / "kustomization.yaml").read_text("utf-8"))
OBJECTS: list[dict[str, Any]] = [
    found for name in KUSTOMIZATION["resources"] for found in yaml.safe_load_all((DIRECTORY / name).read_text("utf-8"))
]
VERSIONS = ("1.29", "1.34")
"""The oldest that the manifests are for, and a recent one."""
PAGE = (ROOT / "docs/operate/deployment.md").read_text("utf-8")
GIBIBYTE = 2**30
UNITS = {"Gi": GIBIBYTE, "Mi": 2**20}


def _name(found: dict[str, Any]) -> str:
    return f"{found['kind']} {found['metadata']['name']}"


def _pod(found: dict[str, Any]) -> dict[str, Any]:
    spec = found["spec"]
    template = spec["jobTemplate"]["spec"]["template"] if found["kind"] == "CronJob" else spec["template"]
    return dict(template)


WORKLOADS = [found for found in OBJECTS if found["kind"] in ("StatefulSet", "Deployment", "CronJob")]
SERVING = [found for found in WORKLOADS if found["kind"] != "CronJob"]
workloads = pytest.mark.parametrize("workload", WORKLOADS, ids=_name)


def _container(workload: dict[str, Any]) -> dict[str, Any]:
    (container,) = _pod(workload)["spec"]["containers"]
    return dict(container)


def _bytes(text: str) -> int:
    return int(text[:-2]) * UNITS[text[-2:]]


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory that stands for ``/run/secrets``."""
    directory = tmp_path_factory.mktemp("secrets")
    for name in ("kafka", "tls", "access"):
        (directory / name).mkdir()
    authority = Authority(directory)
    (directory / "kafka/ca.crt").write_bytes(authority.ca.read_bytes())
    (directory / "kafka/password").write_text("hunter2", "utf-8")
    issued = authority.issue("gateway").read_bytes()
    for name in ("tls.crt", "tls.key"):
        (directory / "tls" / name).write_bytes(issued)
    return directory


def _settings(workload: dict[str, Any], secrets: Path) -> Settings:
    """Read the settings that a pod gets: the file, the variables of the image and its own."""
    file = secrets / "ackstream.toml"
    text = (DIRECTORY / "ackstream.toml").read_text("utf-8")
    file.write_text(text.replace("/run/secrets", str(secrets)), "utf-8")
    own = {one["name"]: one["value"].replace("/run/secrets", str(secrets)) for one in _container(workload)["env"]}
    assert own["ACKSTREAM_CONF"] == "/etc/ackstream/ackstream.toml"
    return settings(own, file)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("found", OBJECTS, ids=_name)
def test_a_manifest_is_an_object_of_kubernetes(found: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(found, version, strict=True)


def test_a_wrong_manifest_would_be_found() -> None:
    wrong = {**WORKLOADS[0], "spec": {**WORKLOADS[0]["spec"], "shedule": "x"}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[0], strict=True)


def test_every_file_is_named_and_every_name_is_a_file() -> None:
    named = {
        *KUSTOMIZATION["resources"],
        *(file for one in KUSTOMIZATION["configMapGenerator"] for file in one["files"]),
    }
    assert named == {path.name for path in DIRECTORY.iterdir()} - {"kustomization.yaml"}


@workloads
def test_a_pod_runs_a_command_of_the_image_with_settings_that_exist(workload: dict[str, Any], secrets: Path) -> None:
    container = _container(workload)
    (image,) = KUSTOMIZATION["images"]
    assert (image["name"], image["newTag"]) == (container["image"], __version__)
    assert check_command(container["args"]) in ("submit", "run", "gateway", "maintain")
    found = _settings(workload, secrets)
    assert (found.kafka.security.protocol == "SASL_SSL") is (container["args"] != ["maintain"])
    # with fewer replicas a job would refuse nothing, and lose what it has acknowledged with a broker
    assert found.kafka.replication == 3


@workloads
def test_a_pod_has_a_login_of_its_own_with_the_rights_of_its_parties_or_none(
    workload: dict[str, Any], secrets: Path
) -> None:
    name, arguments = workload["metadata"]["name"], _container(workload)["args"]
    wanted = {party for party in PARTIES if party in arguments}
    mounted = [volume["secret"]["secretName"] for volume in _pod(workload)["spec"]["volumes"] if "secret" in volume]
    found = _settings(workload, secrets)
    assert [one for one in mounted if "kafka" in one] == ([f"ackstream-kafka-{name}"] if wanted else [])
    assert found.kafka.security.username == (name if wanted else "")
    # the page has the command that gives them, also with a prefix, which the principals of parties have by default
    as_named = dict.fromkeys(wanted, f"User:{name}")
    (command,) = re.findall(r"^ackstream acls .*--apply$", PAGE, re.MULTILINE)
    assert {f"{party}={principal}" for party, principal in as_named.items()} <= set(command.split())
    assert {f"--party {party}" for party in wanted} <= set(re.findall(r"--party \w+", command))


def test_no_two_pods_have_one_login() -> None:
    names = [
        one["value"] for found in WORKLOADS for one in _container(found)["env"] if one["name"].endswith("_USERNAME")
    ]
    assert sorted(names) == ["correlate", "gateway", "tables"]


@workloads
def test_a_policy_says_who_may_connect_to_a_pod(workload: dict[str, Any]) -> None:
    labels = _pod(workload)["metadata"]["labels"]

    def selects(policy: dict[str, Any]) -> bool:
        chosen = policy["spec"]["podSelector"]
        return chosen["matchLabels"].items() <= labels.items() and all(
            labels[one["key"]] in one["values"] for one in chosen.get("matchExpressions", ())
        )

    (policy,) = [found for found in OBJECTS if found["kind"] == "NetworkPolicy" and selects(found)]
    ports = {port["port"] for rule in policy["spec"].get("ingress", ()) for port in rule["ports"]}
    assert ports == {port["name"] for port in _container(workload).get("ports", ())}


@workloads
def test_a_pod_may_do_nothing_but_its_work(workload: dict[str, Any]) -> None:
    spec, container = _pod(workload)["spec"], _container(workload)
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert {spec["securityContext"][key] for key in ("runAsUser", "runAsGroup", "fsGroup")} == {USER}
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert spec["automountServiceAccountToken"] is False
    # the product ignores them, and none is needed
    assert spec["enableServiceLinks"] is False


@workloads
def test_every_volume_exists_and_is_used(workload: dict[str, Any], secrets: Path) -> None:
    spec, container = _pod(workload)["spec"], _container(workload)
    claimed = {one["metadata"]["name"] for one in workload["spec"].get("volumeClaimTemplates", ())}
    volumes = {volume["name"] for volume in spec["volumes"]} | claimed
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert volumes == mounts.keys()
    claims = {found["metadata"]["name"] for found in OBJECTS if found["kind"] == "PersistentVolumeClaim"}
    generated = {one["name"] for one in KUSTOMIZATION["configMapGenerator"]}
    for volume in spec["volumes"]:
        if "configMap" in volume:
            assert volume["configMap"]["name"] in generated
        if "persistentVolumeClaim" in volume:
            assert volume["persistentVolumeClaim"]["claimName"] in claims
        if "secret" in volume:
            # the page has the command that makes it
            assert volume["secret"]["secretName"] in re.findall(r"create secret (?:generic|tls) (\S+)", PAGE)
    # the root is read-only: what is written has a volume
    found = _settings(workload, secrets)
    assert {"/tmp", "/var/lib/ackstream"} <= set(mounts.values())
    assert found.lake.checkpoints.startswith("/var/lib/ackstream/")
    if "correlate" not in container["args"]:
        assert found.lake.path in mounts.values()
    assert all(path in mounts.values() for path in _directories(workload))


def _directories(workload: dict[str, Any]) -> Iterator[str]:
    file = "" if _container(workload)["args"] == ["maintain"] else (DIRECTORY / "ackstream.toml").read_text("utf-8")
    text = file + str(_container(workload)["env"])
    yield from {path.rpartition("/")[0] for path in re.findall(r"/run/secrets/[\w./]+", text)}


@pytest.mark.parametrize("workload", SERVING, ids=_name)
def test_probes_and_services_reach_the_ports_of_the_settings(workload: dict[str, Any], secrets: Path) -> None:
    container, found = _container(workload), _settings(workload, secrets)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports["metrics"] == found.metrics.port
    assert found.metrics.host == "0.0.0.0"
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = container[probe]["httpGet"]
        assert asked["path"] in PATHS
        assert asked["port"] == "metrics"
    assert container["livenessProbe"]["httpGet"]["path"] == "/health/live"
    assert container["readinessProbe"]["httpGet"]["path"] == "/health/ready"
    if container["args"] == ["gateway"]:
        assert ports["https"] == found.gateway.port
        assert found.gateway.tls.certificate is not None
    labels = _pod(workload)["metadata"]["labels"]
    (service,) = [one for one in OBJECTS if one["kind"] == "Service" and one["spec"]["selector"] == labels]
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports.keys()
    assert workload["spec"]["selector"]["matchLabels"] == labels
    assert workload["spec"].get("serviceName", service["metadata"]["name"]) == service["metadata"]["name"]


@workloads
def test_a_pod_has_memory_for_the_heap_and_for_what_lies_beside_it(workload: dict[str, Any], secrets: Path) -> None:
    container = _container(workload)
    heap = _heap(_settings(workload, secrets)) if container["args"] != ["gateway"] else 0
    asked, limit = (_bytes(container["resources"][part]["memory"]) for part in ("requests", "limits"))
    # docs/operate/sizing.md: a task of correlate has 1 GB in Python, the twin 0.5 GB for a batch
    beside = 2 * GIBIBYTE if {"correlate", "twin"} & set(container["args"]) else GIBIBYTE // 2
    assert heap + beside <= limit
    assert heap <= asked <= limit


def _heap(found: Settings) -> int:
    """Return the heap of a driver in bytes."""
    assert found.spark.driver_memory.endswith("g")
    return int(found.spark.driver_memory[:-1]) * GIBIBYTE


def test_a_job_has_one_driver_that_is_given_time_to_stop() -> None:
    jobs = [found for found in WORKLOADS if found["kind"] == "StatefulSet"]
    named = [name for found in jobs for name in _container(found)["args"][1:]]
    assert sorted(named) == ["archive", "correlate", "twin"]
    for found in jobs:
        assert found["spec"]["replicas"] == 1
        assert _pod(found)["spec"]["terminationGracePeriodSeconds"] > 30
        (claim,) = found["spec"]["volumeClaimTemplates"]
        assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
