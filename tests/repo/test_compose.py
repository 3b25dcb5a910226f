"""Static checks of `compose.yaml`, for machines without Docker.

The schema is that of the Compose specification, which the `check-jsonschema` package contains; the other rules are the
project's.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import connectivity
from connectivity.management.files import load
from connectivity.security.uri import parse_uri
from connectivity.transports import load_connection_type
from examples import brokers
from examples.programs import PROGRAMS
from tests.support.brokers import kafka, mosquitto, rabbitmq
from tests.support.paths import ROOT
from tests.support.typed import beginning

FILE = ROOT / "compose.yaml"
COMPOSE: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
BROKERS = {"mosquitto": mosquitto.IMAGE, "rabbitmq": rabbitmq.IMAGE, "kafka": kafka.IMAGE}
OURS = ("connectivity", "prepare")

PINNED = re.compile(r"[a-z0-9./-]+:\d+\.\d+\.\d+")
PUBLISHED = re.compile(r"127\.0\.0\.1:\$\{[A-Z_]+:-\d+\}:\d+")


def schema_complaints(file: Path) -> str:
    """Return the errors of the Compose specification's schema for a file."""
    checked = subprocess.run(
        [Path(sys.executable).with_name("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", file],
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if checked.returncode == 0 else checked.stdout + checked.stderr


def mounts(service: str) -> dict[str, str]:
    """Return the mounts: path in the container → source, with its mode."""
    parts = [volume.split(":") for volume in SERVICES[service].get("volumes", [])]
    return {place: f"{source}:{':'.join(mode)}".rstrip(":") for source, place, *mode in parts}


def test_it_has_the_form_of_the_specification() -> None:
    assert schema_complaints(FILE) == ""


def test_the_schema_rejects_an_unknown_key(tmp_path: Path) -> None:
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(FILE.read_text(encoding="utf-8").replace("healthcheck:", "healthchek:"), encoding="utf-8")
    assert "healthchek" in schema_complaints(wrong)


def test_there_is_a_service_for_each_broker_that_the_examples_start() -> None:
    assert {each.service for each in PROGRAMS} == set(BROKERS) == set(SERVICES) - set(OURS)
    for each in PROGRAMS:
        assert f"${{{each.port_variable}:-{each.usual_port}}}" in str(SERVICES[each.service]["ports"])


@pytest.mark.parametrize("service", BROKERS)
def test_the_image_of_a_broker_is_pinned(service: str) -> None:
    assert PINNED.fullmatch(SERVICES[service]["image"])


@pytest.mark.parametrize("service", OURS)
def test_our_image_is_the_slim_one_of_this_version_unless_a_variable_selects_the_other(service: str) -> None:
    variant = "${VARIANT:-slim}"
    assert SERVICES[service]["image"] == f"broker-connectivity:{connectivity.__version__}-{variant}"
    assert SERVICES[service]["build"] == {"context": ".", "target": variant}


@pytest.mark.parametrize(("service", "image"), BROKERS.items())
def test_tests_run_against_the_same_images(service: str, image: str) -> None:
    assert SERVICES[service]["image"] == image


@pytest.mark.parametrize("service", sorted(set(SERVICES) - {"connectivity", "prepare"}))
def test_each_broker_has_a_healthcheck(service: str) -> None:
    check = SERVICES[service]["healthcheck"]
    assert check["test"][0] == "CMD"
    assert {"interval", "timeout", "retries"} <= set(check)


@pytest.mark.parametrize("service", SERVICES)
def test_ports_are_published_to_this_machine_alone(service: str) -> None:
    assert [port for port in SERVICES[service].get("ports", []) if not PUBLISHED.fullmatch(port)] == []


@pytest.mark.parametrize("service", OURS)
def test_our_containers_can_change_nothing_but_their_data(service: str) -> None:
    ours = SERVICES[service]
    assert ours["read_only"] is True
    assert ours["cap_drop"] == ["ALL"]
    assert ours["security_opt"] == ["no-new-privileges:true"]
    assert "/tmp" in ours["tmpfs"]
    assert "privileged" not in ours
    assert "user" not in ours, "the image says who runs"
    writable = [place for place, source in mounts(service).items() if not source.endswith(":ro")]
    assert writable == (["/data"] if service == "connectivity" else [])


def test_the_service_starts_when_its_brokers_serve_and_its_queues_are_made() -> None:
    conditions = {name: it["condition"] for name, it in SERVICES["connectivity"]["depends_on"].items()}
    assert conditions == {
        **dict.fromkeys(BROKERS, "service_healthy"),
        "prepare": "service_completed_successfully",
    }
    assert {it["condition"] for it in SERVICES["prepare"]["depends_on"].values()} == {"service_healthy"}


def test_every_mounted_path_or_volume_exists() -> None:
    sources = [source.partition(":")[0] for service in SERVICES for source in mounts(service).values()]
    for source in sources:
        assert (ROOT / source).exists() if source.startswith(".") else source in COMPOSE["volumes"], source


def test_the_container_that_prepares_the_data_runs_a_module_of_this_project() -> None:
    *_, module, folder = SERVICES["prepare"]["entrypoint"]
    assert (ROOT / module.replace(".", "/")).with_suffix(".py").is_file()
    assert folder in mounts("prepare")


def test_an_api_on_all_interfaces_needs_a_chosen_token() -> None:
    environment = SERVICES["connectivity"]["environment"]
    assert environment["CONNECTIVITY_API__HOST"] == "0.0.0.0"
    assert re.fullmatch(r"\$\{API_TOKEN:\?[^${}]+\}", environment["CONNECTIVITY_API__TOKEN"]), (
        "compose stops without one"
    )


def test_the_demo_has_a_token_for_the_file_although_it_starts_the_brokers_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tokens: list[str] = []
    monkeypatch.setattr(
        brokers, "_call", lambda _command, environment: tokens.append(environment["API_TOKEN"]), raising=True
    )
    monkeypatch.delenv("API_TOKEN", raising=False)
    with brokers._composed(tmp_path, {each: each.usual_port for each in PROGRAMS}, lambda _text: None):
        pass
    assert len(tokens) == 2
    assert len(set(tokens)) == 1
    assert len(tokens[0]) >= 16


def test_its_connections_lead_to_the_services_by_name_and_are_otherwise_the_examples() -> None:
    there, here = load([ROOT / "examples" / "compose"]), load([ROOT / "examples" / "connections"])
    assert (there.problems, here.problems) == ([], [])
    assert set(there.connections) == set(here.connections)
    for name, connection in there.connections.items():
        is_listener = load_connection_type(connection.connection_type).is_listener
        assert connection.broker_uri.host in ({"0.0.0.0"} if is_listener else BROKERS)
        example = here.connections[name].model_dump(by_alias=True, exclude={"uri", "specific_config"})
        assert connection.model_dump(by_alias=True, exclude={"uri", "specific_config"}) == example
        inside, outside = dict(connection.own_options), dict(here.connections[name].own_options)
        assert inside.pop("bootstrapServers", None) == ("kafka:19092" if name == "analytics" else None)
        outside.pop("bootstrapServers", None)
        assert inside == outside


@pytest.mark.parametrize("listener", ["websocket-listener", "tcp-listener"])
def test_a_listener_is_published_where_it_listens(listener: str) -> None:
    uri = load([ROOT / "examples" / "compose"]).connections[listener].broker_uri
    assert any(port.endswith(f":{uri.port}") for port in SERVICES["connectivity"]["ports"])


def test_kafka_sends_clients_to_where_they_come_from() -> None:
    environment = SERVICES["kafka"]["environment"]
    advertised = dict(it.split("://") for it in environment["KAFKA_ADVERTISED_LISTENERS"].split(","))
    uri = load([ROOT / "examples" / "compose"]).connections["analytics"].broker_uri
    assert advertised["INSIDE"] == f"{uri.host}:{uri.port}"
    outside = advertised["OUTSIDE"].replace("${KAFKA_PORT:-9092}", "9092")
    assert parse_uri(f"tcp://{outside}").port == 9092
    listeners = dict(it.split("://") for it in environment["KAFKA_LISTENERS"].split(","))
    protocols = dict(it.split(":") for it in environment["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].split(","))
    assert set(listeners) == set(protocols) == {*advertised, environment["KAFKA_CONTROLLER_LISTENER_NAMES"]}


def test_the_page_on_docker_writes_the_variable_that_compose_requires() -> None:
    [[text, *_]] = beginning("docker", "echo")
    assert f"${{{text.partition('=')[0]}:?" in FILE.read_text(encoding="utf-8")
