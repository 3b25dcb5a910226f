"""The unit for systemd and the manifest for Kubernetes, looked at where neither runs.

systemd's own checker reads the unit where it is installed. For the manifest there is no checker that needs no cluster, so
its parts are held to each other, to the image and to the service here.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from connectivity.config.settings_loader import load_settings
from connectivity.validation.limitations import notes
from connectivity.validation.validator import parse
from tests.support.paths import ROOT
from tests.support.validation import validate

UNIT = ROOT / "deploy" / "systemd" / "connectivity.service"
MANIFEST = ROOT / "deploy" / "kubernetes" / "connectivity.yaml"

MOST_EXPOSED = 2.0
"""Of 10, as `systemd-analyze security` counts; what Java needs is allowed."""


# ── systemd ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def unit() -> dict[str, list[str]]:
    """The settings of the unit, each with all its values."""
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text(encoding="utf-8").splitlines():
        if line and line[0] not in "#[":
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def analyze(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What systemd says of the unit, with a program that is there in place of the service."""
    if shutil.which("systemd-analyze") is None:
        pytest.fail("systemd-analyze is missing, install it: sudo apt-get install systemd", pytrace=False)
    copy = folder / UNIT.name
    text = UNIT.read_text(encoding="utf-8").replace("/opt/connectivity/bin/connectivity", sys.executable)
    copy.write_text(text, encoding="utf-8")
    return subprocess.run(["systemd-analyze", *arguments, str(copy)], capture_output=True, text=True, check=False)


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    checked = analyze(tmp_path, "verify")
    assert (checked.returncode, checked.stderr) == (0, "")


def test_the_unit_leaves_little_open(tmp_path: Path) -> None:
    checked = analyze(tmp_path, "security", "--offline=true")
    level = re.search(r"Overall exposure level for \S+: ([\d.]+)", checked.stdout)
    assert level is not None, checked.stdout + checked.stderr
    assert float(level[1]) <= MOST_EXPOSED


def test_the_unit_has_a_dynamic_user_and_writes_only_to_its_state_directory() -> None:
    found = unit()
    for name in ("DynamicUser", "NoNewPrivileges", "PrivateTmp", "ProtectHome", "PrivateDevices"):
        assert found[name] == ["yes"], name
    assert found["ProtectSystem"] == ["strict"]
    assert found["CapabilityBoundingSet"] == [""]
    assert found["StateDirectory"] == ["connectivity"]
    assert "ReadWritePaths" not in found


def test_the_unit_s_variables_are_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for pair in unit()["Environment"]:
        monkeypatch.setenv(*pair.split("=", 1))
    settings = load_settings(None)
    assert str(settings.data_dir) == "/var/lib/" + unit()["StateDirectory"][0]
    assert str(settings.connections_dir) == "/etc/connectivity/connections"


def test_the_unit_gives_the_service_time_to_drain_and_does_not_start_in_vain() -> None:
    found = unit()
    assert int(found["TimeoutStopSec"][0]) >= 20
    assert found["Restart"] == ["on-failure"]
    assert set(found["RestartPreventExitStatus"][0].split()) == {"2", "3", "4"}


# ── Kubernetes ────────────────────────────────────────────────────────────────────────────────────────────────────────────

OBJECTS: list[dict[str, Any]] = list(yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8")))


def of_kind(kind: str) -> dict[str, Any]:
    [found] = [each for each in OBJECTS if each["kind"] == kind]
    return found


SET = of_kind("StatefulSet")
POD: dict[str, Any] = SET["spec"]["template"]["spec"]
[CONTAINER] = POD["containers"]


def variables() -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in CONTAINER["env"]}


def secret_keys() -> Iterator[tuple[str, str]]:
    for each in variables().values():
        if "valueFrom" in each:
            reference = each["valueFrom"]["secretKeyRef"]
            yield reference["name"], reference["key"]


def test_every_object_has_a_kind_a_version_and_a_name() -> None:
    kinds = {"ConfigMap": "v1", "Service": "v1", "StatefulSet": "apps/v1"}
    assert {each["kind"]: each["apiVersion"] for each in OBJECTS} == kinds
    assert all(re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", each["metadata"]["name"]) for each in OBJECTS)


def test_one_instance_is_found_by_its_labels() -> None:
    labels = SET["spec"]["template"]["metadata"]["labels"]
    assert SET["spec"]["selector"]["matchLabels"] == labels == of_kind("Service")["spec"]["selector"]
    assert SET["spec"]["serviceName"] == of_kind("Service")["metadata"]["name"]
    assert SET["spec"]["replicas"] == 1
    [port] = of_kind("Service")["spec"]["ports"]
    assert port["targetPort"] in {each["name"] for each in CONTAINER["ports"]}


def test_the_image_is_that_of_compose() -> None:
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
    assert CONTAINER["image"] == compose["services"]["connectivity"]["image"].replace("${VARIANT:-slim}", "slim")


def test_the_pod_runs_without_root_and_without_privileges() -> None:
    recipe = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    user = int(re.findall(r"^USER (\d+)", recipe, re.MULTILINE)[-1])
    of_pod, of_container = POD["securityContext"], CONTAINER["securityContext"]
    assert (of_pod["runAsNonRoot"], of_pod["runAsUser"], of_pod["fsGroup"]) == (True, user, user)
    assert of_pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert of_container == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert POD["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & POD.keys()


def test_every_mount_has_its_volume_and_the_image_s_folders_are_mounted() -> None:
    claims = {each["metadata"]["name"] for each in SET["spec"]["volumeClaimTemplates"]}
    volumes = {each["name"] for each in POD["volumes"]} | claims
    mounts = {each["mountPath"]: each for each in CONTAINER["volumeMounts"]}
    assert {each["name"] for each in mounts.values()} == volumes
    assert mounts["/data"]["name"] in claims
    assert mounts["/connections"]["readOnly"] is True
    assert set(mounts) == {"/data", "/connections", "/tmp"}
    [claim] = SET["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]
    [config] = [each["configMap"]["name"] for each in POD["volumes"] if "configMap" in each]
    assert config == of_kind("ConfigMap")["metadata"]["name"]


def test_the_probes_request_the_health_endpoints_of_the_service() -> None:
    known = {each["name"]: each["containerPort"] for each in CONTAINER["ports"]}
    assert known == {"http": 8080}
    probes = {name: CONTAINER[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {name: each["path"] for name, each in probes.items()} == {
        "startup": "/health/live",
        "liveness": "/health/live",
        "readiness": "/health/ready",
    }
    assert {each["port"] for each in probes.values()} == {"http"}
    assert POD["terminationGracePeriodSeconds"] >= 20


def test_secrets_stand_nowhere_and_those_that_are_named_are_explained() -> None:
    text = MANIFEST.read_text(encoding="utf-8")
    assert "kind: Secret" not in text
    assert {name for name, _ in secret_keys()} == {"connectivity"}
    for _, key in secret_keys():
        assert f"--from-literal={key}=" in text
    assert "value" not in variables()["CONNECTIVITY_API__TOKEN"]


def test_its_variables_are_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"CONNECTIVITY_API__TOKEN": "a-token-that-is-long-enough", "CONNECTIVITY_SECRETS__KEY": "A" * 43 + "="}
    for name, variable in variables().items():
        if name.startswith("CONNECTIVITY_"):
            monkeypatch.setenv(name, variable.get("value") or given[name])
    assert load_settings(None).api.host == "0.0.0.0"


def test_its_connection_files_have_no_problems() -> None:
    """Their secrets come from the variables of the container."""
    for name, content in of_kind("ConfigMap")["data"].items():
        document = {"id": Path(name).stem, **yaml.safe_load(content)}
        assert [str(each) for each in validate(document, environ=dict.fromkeys(variables(), "secret"))] == []
        assert list(notes(parse(document, environ=dict.fromkeys(variables(), "secret")))) == []
        assert validate(document, environ={})
