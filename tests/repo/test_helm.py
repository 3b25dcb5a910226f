"""Static checks of the Helm chart: linted, rendered, and validated with Kubernetes' schemas.

The rendered documents are compared with the image and the service's settings. `tools/helm` fetches Helm and schemas.
"""

from __future__ import annotations

import functools
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

import connectivity
from connectivity.config.settings_loader import load_settings
from connectivity.management.files import load
from tests.support.brokers.mosquitto import Certificates
from tests.support.paths import ROOT
from tests.support.typed import beginning
from tests.support.validation import validate

CHART = ROOT / "deploy" / "helm" / "connectivity"
EXAMPLE = ROOT / "deploy" / "helm" / "example.yaml"
HELM = ROOT / ".run" / "helm"
RELEASE = "prod"
NAME = "prod-connectivity"
PAGE_RELEASE = "connectivity"

CASES = {
    "default": [],
    "example": ["--values", str(EXAMPLE)],
    "claim": ["--set", "persistence.existingClaim=journal,networkPolicy.enabled=true,image.variant=lake"],
}
every_case = pytest.mark.parametrize("case", CASES)


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = HELM / "helm"
    if not program.exists():
        pytest.fail("Helm is missing, fetch it: tools/helm", pytrace=False)
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)


@functools.cache
def manifest(*options: str) -> str:
    ended = helm("template", RELEASE, str(CHART), "--namespace", "twins", *options)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def objects(*options: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(manifest(*options)) if each is not None]


def of_kind(kind: str, *options: str) -> dict[str, Any]:
    """The only object of a kind."""
    [found] = [each for each in objects(*options) if each["kind"] == kind]
    return found


def named(kind: str, name: str, *options: str) -> dict[str, Any]:
    [found] = [each for each in objects(*options) if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def pod_of(*options: str) -> dict[str, Any]:
    found: dict[str, Any] = of_kind("StatefulSet", *options)["spec"]["template"]["spec"]
    return found


def container_of(*options: str) -> dict[str, Any]:
    [found] = pod_of(*options)["containers"]
    assert isinstance(found, dict)
    return found


def variables(*options: str) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in container_of(*options)["env"]}


def chart_file(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CHART / name).read_text(encoding="utf-8"))
    return found


# ── The chart as Helm and Kubernetes see it ───────────────────────────────────────────────────────────────────────────────


@every_case
def test_helm_finds_nothing_wrong_with_the_chart(case: str) -> None:
    ended = helm("lint", "--strict", str(CHART), *CASES[case])
    assert ended.returncode == 0, ended.stdout + ended.stderr


@functools.cache
def schema_of(version: str, kind: str, api_version: str) -> jsonschema_rs.Draft202012Validator:
    folder = HELM / "schemas" / version
    name = "-".join([kind.lower(), *api_version.replace(".k8s.io", "").split("/")])
    schema, definitions = (
        json.loads((folder / f"{file}.json").read_text(encoding="utf-8")) for file in (name, "_definitions")
    )
    registry = jsonschema_rs.Registry([("json-schema:///api/_definitions.json", definitions)])
    return jsonschema_rs.Draft202012Validator(schema, registry=registry, base_uri="json-schema:///api/object.json")


def schema_problems(version: str, each: dict[str, Any]) -> list[str]:
    schema = schema_of(version, each["kind"], each["apiVersion"])
    return [f"{each['kind']}: {problem.message}" for problem in schema.iter_errors(each)]


@every_case
@pytest.mark.parametrize("version", ["1.29", "1.37"])
def test_kubernetes_knows_every_field(version: str, case: str) -> None:
    own = [each for each in objects(*CASES[case]) if each["kind"] != "ServiceMonitor"]
    assert [problem for each in own for problem in schema_problems(version, each)] == []


def test_the_schema_finds_a_misspelled_field() -> None:
    wrong = of_kind("StatefulSet")
    wrong["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    [problem] = schema_problems("1.37", wrong)
    assert "livenesProbe" in problem


def test_the_chart_needs_the_oldest_kubernetes_that_it_is_checked_for() -> None:
    oldest = min((each.name for each in (HELM / "schemas").iterdir()), key=lambda name: int(name.split(".")[1]))
    assert chart_file("Chart.yaml")["kubeVersion"] == f">={oldest}.0-0"


def test_chart_and_service_have_one_version() -> None:
    found = chart_file("Chart.yaml")
    assert found["version"] == found["appVersion"] == connectivity.__version__


def _listener(index: int, name: str, port: int) -> str:
    """The option of Helm for the port of a listener."""
    place = f"listeners.ports[{index}]"
    return f"{place}.name={name},{place}.port={port}"


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("image.version=slim", "version"),
        ("image.variant=big", "/image/variant"),
        ("api.port=99999", "/api/port"),
        ("api.token.secret=", "/api/token/secret"),
        ("settings.data_dir=/elsewhere", "/settings/data_dir"),
        ("settings.api.token=a-token-in-the-open", "/settings/api/token"),
        ("settings.secrets.key=a-key-in-the-open", "/settings/secrets/key"),
        ("connections.devices=text", "/connections/devices"),
        ("listeners.ports[0].name=http,listeners.ports[0].port=8765", "/listeners/ports/0/name"),
        (_listener(0, "ws", 8080), "found 8080, the port of the API"),
        (f"{_listener(0, 'ws', 8765)},{_listener(1, 'ws', 8766)}", "found ws twice"),
        (f"{_listener(0, 'ws', 8765)},{_listener(1, 'tcp', 8765)}", "found 8765 twice"),
        ("persistence.accessMode=ReadWriteMany", "/persistence/accessMode"),
        ("terminationGracePeriodSeconds=5", "/terminationGracePeriodSeconds"),
        ("replicas=2", "replicas"),
    ],
)
def test_a_value_that_is_unknown_or_not_possible_is_refused(value: str, complaint: str) -> None:
    ended = helm("template", RELEASE, str(CHART), "--set", value)
    assert ended.returncode != 0
    assert complaint in ended.stderr


@pytest.mark.parametrize("release", ["prod.eu", "7prod", "7.prod-connectivity", "a" * 49 + ".b"])
def test_every_object_has_a_name_that_a_service_may_have_whatever_the_release_is_called(release: str) -> None:
    """Names of Services are labels of RFC 1035; names of releases may have dots and begin with a digit."""
    ended = helm("template", release, str(CHART), "--values", str(EXAMPLE))
    names = [each["metadata"]["name"] for each in yaml.safe_load_all(ended.stdout) if each is not None]
    assert names
    assert [name for name in names if not re.fullmatch("[a-z]([-a-z0-9]{0,61}[a-z0-9])?", name)] == []


def test_the_notes_name_the_secrets_and_commands_that_exist() -> None:
    ended = helm("install", RELEASE, str(CHART), "--dry-run=client", "--values", str(EXAMPLE))
    notes = ended.stdout.partition("NOTES:")[2]
    values = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    for each in (values["api"]["token"], values["api"]["tokens"], values["keys"]):
        assert f"  {each['secret']}: {each['key']}, " in notes
    assert f"statefulset/{NAME}" in notes
    assert f"exec {NAME}-0 -- connectivity connections list" in notes


# ── The rendered documents ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("case", "kinds"),
    [
        ("default", ["ConfigMap", "ConfigMap", "Service", "StatefulSet"]),
        ("claim", ["ConfigMap", "ConfigMap", "NetworkPolicy", "Service", "StatefulSet"]),
        (
            "example",
            ["ConfigMap", "ConfigMap", "NetworkPolicy", "Service", "Service", "ServiceMonitor", "StatefulSet"],
        ),
    ],
)
def test_disabled_parts_are_not_rendered(case: str, kinds: list[str]) -> None:
    assert sorted(each["kind"] for each in objects(*CASES[case])) == kinds


@every_case
def test_objects_have_names_of_the_release_and_the_same_labels(case: str) -> None:
    labels = of_kind("StatefulSet", *CASES[case])["metadata"]["labels"]
    for each in objects(*CASES[case]):
        assert re.fullmatch(rf"{NAME}(-[a-z]+)?", each["metadata"]["name"])
        assert labels.items() <= each["metadata"]["labels"].items()


def test_a_release_of_the_chart_s_name_has_short_names() -> None:
    ended = helm("template", "connectivity", str(CHART))
    names = {each["metadata"]["name"] for each in yaml.safe_load_all(ended.stdout)}
    assert names == {"connectivity", "connectivity-settings", "connectivity-connections"}


@every_case
def test_one_instance_is_found_by_its_labels(case: str) -> None:
    spec = of_kind("StatefulSet", *CASES[case])["spec"]
    selector = spec["selector"]["matchLabels"]
    assert selector.items() <= spec["template"]["metadata"]["labels"].items()
    assert (spec["replicas"], spec["serviceName"]) == (1, NAME)
    ports = {each["name"] for each in container_of(*CASES[case])["ports"]}
    for each in objects(*CASES[case]):
        if each["kind"] == "Service":
            assert each["spec"]["selector"] == selector
            assert {port["targetPort"] for port in each["spec"]["ports"]} <= ports


def test_the_image_is_that_of_compose() -> None:
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
    image = compose["services"]["connectivity"]["image"]
    assert container_of()["image"] == image.replace("${VARIANT:-slim}", "slim")
    assert container_of("--set", "image.variant=lake")["image"] == image.replace("${VARIANT:-slim}", "lake")
    assert container_of("--set", "image.tag=mine")["image"] == "broker-connectivity:mine"


def test_the_image_with_the_lake_gets_more_memory() -> None:
    assert container_of()["resources"]["limits"] == {"memory": "1Gi"}
    assert container_of("--set", "image.variant=lake")["resources"]["limits"] == {"memory": "4Gi"}
    assert container_of(*CASES["example"])["resources"]["limits"] == {"memory": "6Gi"}


@every_case
def test_the_pod_runs_without_root_and_without_privileges(case: str) -> None:
    recipe = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    user = int(re.findall(r"^USER (\d+)", recipe, re.MULTILINE)[-1])
    pod = pod_of(*CASES[case])
    of_pod = pod["securityContext"]
    assert of_pod["runAsNonRoot"] is True
    assert of_pod["runAsUser"] == of_pod["runAsGroup"] == of_pod["fsGroup"] == user
    assert of_pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container_of(*CASES[case])["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()


@every_case
def test_every_mount_has_its_volume_and_only_data_and_temporary_files_are_written(case: str) -> None:
    claims = of_kind("StatefulSet", *CASES[case])["spec"].get("volumeClaimTemplates", [])
    volumes = [each["name"] for each in pod_of(*CASES[case])["volumes"]] + [it["metadata"]["name"] for it in claims]
    mounts = {each["mountPath"]: each for each in container_of(*CASES[case])["volumeMounts"]}
    assert sorted(each["name"] for each in mounts.values()) == sorted(volumes)
    assert [path for path, each in mounts.items() if not each.get("readOnly")] == ["/data", "/tmp"]
    assert {"/data", "/connections"} <= mounts.keys(), "the image's folders"
    *_, settings = container_of(*CASES[case])["args"]
    assert str(Path(settings).parent) in mounts


def test_the_disk_is_a_claim_of_its_own_or_one_that_exists() -> None:
    [claim] = of_kind("StatefulSet", *CASES["example"])["spec"]["volumeClaimTemplates"]
    assert claim["metadata"]["name"] == "data"
    assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]
    assert claim["spec"]["storageClassName"] == "fast"
    assert claim["spec"]["resources"]["requests"]["storage"] == "200Gi"
    [usual] = of_kind("StatefulSet")["spec"]["volumeClaimTemplates"]
    assert "storageClassName" not in usual["spec"], "the cluster's default"
    [used] = [each for each in pod_of(*CASES["claim"])["volumes"] if each["name"] == "data"]
    assert used["persistentVolumeClaim"] == {"claimName": "journal"}


@every_case
def test_the_probes_request_the_health_endpoints_of_the_service(case: str) -> None:
    container = container_of(*CASES[case])
    probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {name: each["path"] for name, each in probes.items()} == {
        "startup": "/health/live",
        "liveness": "/health/live",
        "readiness": "/health/ready",
    }
    assert {each["port"] for each in probes.values()} == {"http"}
    assert pod_of(*CASES[case])["terminationGracePeriodSeconds"] >= 20


def test_another_port_is_that_of_container_service_and_scraping() -> None:
    other = ("--set", "api.port=9090,metrics.annotations=true")
    assert container_of(*other)["ports"] == [{"name": "http", "containerPort": 9090}]
    assert variables(*other)["CONNECTIVITY_API__PORT"]["value"] == "9090"
    assert [each["port"] for each in of_kind("Service", *other)["spec"]["ports"]] == [9090]
    annotations = of_kind("StatefulSet", *other)["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == "9090"


def references(tree: object) -> Iterator[tuple[str, str]]:
    """Yield every referenced ConfigMap and Secret: its kind and name."""
    if isinstance(tree, list):
        for each in tree:
            yield from references(each)
    elif isinstance(tree, dict):
        for name, value in tree.items():
            if name in ("configMap", "configMapKeyRef", "configMapRef"):
                yield "ConfigMap", value["name"]
            elif name in ("secret", "secretKeyRef", "secretRef", "credentials"):
                yield "Secret", value.get("secretName") or value["name"]
            else:
                yield from references(value)


@pytest.mark.parametrize(
    ("case", "outside"),
    [
        ("default", {("Secret", "connectivity")}),
        ("claim", {("Secret", "connectivity")}),
        (
            "example",
            {
                ("ConfigMap", "more-connections"),
                *(
                    ("Secret", name)
                    for name in (
                        "broker-ca",
                        "connectivity",
                        "connectivity-environment",
                        "dashboards-tls",
                        "secret-connections",
                    )
                ),
            },
        ),
    ],
)
def test_referenced_objects_are_rendered_or_named_by_a_value(case: str, outside: set[tuple[str, str]]) -> None:
    rendered = {(each["kind"], each["metadata"]["name"]) for each in objects(*CASES[case])}
    found = set(references(objects(*CASES[case])))
    assert found - rendered == outside
    assert {each for each in rendered if each[0] == "ConfigMap"} <= found


@every_case
def test_secrets_are_nowhere(case: str) -> None:
    assert [each for each in objects(*CASES[case]) if each["kind"] == "Secret"] == []
    assert "value" not in variables(*CASES[case])["CONNECTIVITY_API__TOKEN"]


def test_files_of_secrets_can_be_read_by_the_group_alone() -> None:
    """As the service requires of a key file."""
    volumes = [each["secret"] for each in pod_of(*CASES["example"])["volumes"] if "secret" in each]
    assert len(volumes) == 3
    assert {each["defaultMode"] for each in volumes} == {0o440}
    [keys] = [each for each in volumes if each["secretName"] == "connectivity"]
    [item] = keys["items"]
    assert variables(*CASES["example"])["CONNECTIVITY_SECRETS__KEY_FILE"]["value"] == f"/keys/{item['path']}"


# ── Metrics and networks ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_pod_is_announced_for_scraping_only_on_request() -> None:
    """Without the token, Prometheus would get 401 at each scrape."""
    usual = of_kind("StatefulSet")["spec"]["template"]["metadata"]["annotations"]
    assert [name for name in usual if name.startswith("prometheus.io/")] == []
    announced = of_kind("StatefulSet", *CASES["example"])["spec"]["template"]["metadata"]["annotations"]
    assert announced["prometheus.io/scrape"] == "true"
    assert announced["prometheus.io/path"] == "/metrics"


def test_a_service_monitor_finds_the_api_alone_and_sends_a_token() -> None:
    monitor = of_kind("ServiceMonitor", *CASES["example"])["spec"]
    selector = monitor["selector"]["matchLabels"].items()
    services = [each for each in objects(*CASES["example"]) if each["kind"] == "Service"]
    [service] = [each for each in services if selector <= each["metadata"]["labels"].items()]
    [endpoint] = monitor["endpoints"]
    assert service["metadata"]["name"] == NAME
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert endpoint["path"] == "/metrics"
    assert endpoint["authorization"]["credentials"] == {"name": "connectivity", "key": "metrics-token"}


def test_listeners_have_a_service_of_their_own() -> None:
    found = named("Service", f"{NAME}-listeners", *CASES["example"])
    assert found["spec"]["type"] == "LoadBalancer"
    assert [port["port"] for port in found["spec"]["ports"]] == [8765]
    api = named("Service", NAME, *CASES["example"])
    assert (api["spec"]["type"], [port["name"] for port in api["spec"]["ports"]]) == ("ClusterIP", ["http"])


def test_a_network_policy_allows_the_ports_and_outgoing_dns_and_configured_traffic() -> None:
    policy = of_kind("NetworkPolicy", *CASES["example"])["spec"]
    labels = of_kind("StatefulSet", *CASES["example"])["spec"]["template"]["metadata"]["labels"]
    values = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    api, listeners = policy["ingress"]
    assert api["from"] == values["networkPolicy"]["apiFrom"]
    assert [port["port"] for port in api["ports"]] == ["http"]
    assert listeners["from"] == [], "everyone"
    assert [port["port"] for port in listeners["ports"]] == ["dashboards"]
    dns, *others = policy["egress"]
    assert {(port["protocol"], port["port"]) for port in dns["ports"]} == {("UDP", 53), ("TCP", 53)}
    assert others == values["networkPolicy"]["egress"]


# ── The files that the service reads ──────────────────────────────────────────────────────────────────────────────────────

GIVEN = {
    "CONNECTIVITY_API__TOKEN": "a-token-that-is-long-enough",
    "CONNECTIVITY_API__TOKENS": '[{"name": "prometheus", "token": "one-for-metrics-alone"}]',
}
"""The content of the Secrets."""


def mount(folder: Path, files: dict[str, str]) -> None:
    """Lay files out as the kubelet does: links to links, so that all change at once."""
    version = folder / "..2026_01_01"
    version.mkdir(parents=True)
    (folder / "..data").symlink_to(version.name)
    for name, text in files.items():
        (version / name).write_text(text, encoding="utf-8")
        (folder / name).symlink_to(f"..data/{name}")


@every_case
def test_its_settings_are_settings(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, variable in variables(*CASES[case]).items():
        if name.startswith("CONNECTIVITY_"):
            monkeypatch.setenv(name, variable["value"] if "value" in variable else GIVEN[name])
    mount(tmp_path / "settings", named("ConfigMap", f"{NAME}-settings", *CASES[case])["data"])
    program, option, file = container_of(*CASES[case])["args"]
    assert (program, option) == ("serve", "--settings")
    settings = load_settings(tmp_path / file.removeprefix("/"))
    assert (settings.api.host, settings.log.format) == ("0.0.0.0", "json")
    assert {NAME, f"{NAME}.twins", "*.svc"} <= set(settings.api.hosts)


def test_settings_of_the_values_reach_the_service_unchanged(tmp_path: Path) -> None:
    data = named("ConfigMap", f"{NAME}-settings", *CASES["example"])["data"]
    values = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    assert yaml.safe_load(data["settings.yaml"]) == values["settings"]
    text = ("--set", "settings.log.format=text")
    assert yaml.safe_load(named("ConfigMap", f"{NAME}-settings", *text)["data"]["settings.yaml"]) == {
        "log": {"format": "text"}
    }
    assert variables(*text)["CONNECTIVITY_LOG__FORMAT"]["value"] == "", "the file decides, not the image"


def test_changed_settings_restart_the_pod_and_changed_connections_do_not() -> None:
    usual = of_kind("StatefulSet")["spec"]["template"]
    assert of_kind("StatefulSet", "--set", "settings.log.level=debug")["spec"]["template"] != usual
    other = ("--set", "connections.devices.connectionType=mqtt-5")
    assert of_kind("StatefulSet", *other)["spec"]["template"] == usual


def test_connections_of_the_values_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Certificates.make(tmp_path)
    mount(tmp_path / "secrets/broker-ca", {"ca.crt": made.ca.read_text()})
    tls = {"tls.crt": made.client_certificate.read_text(), "tls.key": made.client_key_pkcs8()}
    mount(tmp_path / "secrets/dashboards-tls", tls)
    monkeypatch.setenv("BROKER_PASSWORD", "secret")
    monkeypatch.setenv("DASHBOARD_TOKENS", f"wall={'a' * 64}")
    data = named("ConfigMap", f"{NAME}-connections", *CASES["example"])["data"]
    moved = {name: text.replace("file:/secrets", f"file:{tmp_path}/secrets") for name, text in data.items()}
    mount(tmp_path / "connections", moved)
    loaded = load([tmp_path / "connections"])
    assert [str(problem) for problem in loaded.problems] == []
    assert set(loaded.connections) == {"devices", "dashboards"}
    assert loaded.documents["devices"]["sources"][0]["replyTarget"]["address"] == "{{ header:reply-to }}"
    mounts = {each["mountPath"] for each in container_of(*CASES["example"])["volumeMounts"]}
    assert {str(Path(found).parent) for found in re.findall(r"file:([^}]+)}", str(data))} <= mounts


def test_values_in_the_documentation_are_values(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "kubernetes.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 2
    for index, block in enumerate(blocks):
        file = tmp_path / f"{index}.yaml"
        file.write_text(block, encoding="utf-8")
        manifest("--values", str(file))
    [first, _] = map(yaml.safe_load, blocks)
    environ = {each["name"]: "secret" for each in first["env"]}
    for name, document in first["connections"].items():
        assert [str(problem) for problem in validate({"id": name, **document}, environ=environ)] == []


def test_a_listener_s_port_is_that_of_its_connection() -> None:
    values = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    for each in values["listeners"]["ports"]:
        assert values["connections"][each["name"]]["uri"].endswith(f":{each['port']}")


def test_clients_can_connect_to_the_path_of_the_listener() -> None:
    """A path has no wildcards: clients would have to request the asterisk itself."""
    values = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    assert values["connections"]["dashboards"]["sources"][0]["addresses"] == ["/dashboards"]


def values_of_the_page(folder: Path) -> list[str]:
    """Return Helm's options for the values that the page on Kubernetes shows."""
    page = (ROOT / "docs" / "how-to" / "kubernetes.md").read_text(encoding="utf-8")
    found: list[str] = []
    for number, text in enumerate(re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)):
        file = folder / f"{number}.yaml"
        file.write_text(text, encoding="utf-8")
        found += ["--values", str(file)]
    return found


def secret_keys(value: Any) -> Iterator[tuple[str, str]]:
    """Yield name and key of each Secret that an object refers to."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name in {"secretKeyRef", "credentials"}:
                yield inner["name"], inner["key"]
            elif name == "secret" and "items" in inner:
                yield from ((inner["secretName"], item["key"]) for item in inner["items"])
            else:
                yield from secret_keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from secret_keys(inner)


def test_the_page_on_kubernetes_creates_exactly_the_secrets_that_the_chart_refers_to(tmp_path: Path) -> None:
    created = {
        (name, re.sub(r"^--from-literal=", "", literal).partition("=")[0])
        for name, *literals in beginning("kubernetes", "kubectl", "create", "secret", "generic")
        for literal in literals
    }
    assert created
    assert created == set(secret_keys(objects(*values_of_the_page(tmp_path))))


def test_the_tokens_on_the_page_on_kubernetes_are_json() -> None:
    [text] = [
        literal.partition("=")[2].partition("=")[2]
        for words in beginning("kubernetes", "kubectl", "create", "secret", "generic", "connectivity-tokens")
        for literal in words
    ]
    assert [token["role"] for token in json.loads(text)] == ["read"]


def test_helm_installs_the_chart_as_written_on_the_page(tmp_path: Path) -> None:
    [[release, chart, *more]] = beginning("kubernetes", "helm", "install")
    assert (release, ROOT / chart, more) == (PAGE_RELEASE, CHART, ["--values", "values.yaml"])
    ended = helm("install", release, str(ROOT / chart), "--dry-run=client", *values_of_the_page(tmp_path))
    assert ended.returncode == 0, ended.stderr


def test_the_page_on_kubernetes_waits_for_the_stateful_set_of_the_chart() -> None:
    [[place]] = beginning("kubernetes", "kubectl", "rollout", "status")
    ended = helm("template", PAGE_RELEASE, str(CHART))
    found = [each for each in yaml.safe_load_all(ended.stdout) if each]
    assert place in [f"{each['kind']}/{each['metadata']['name']}".lower() for each in found]
