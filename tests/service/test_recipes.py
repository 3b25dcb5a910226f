"""Every recipe of `docs/how-to` that needs an MQTT broker works as written.

Its files, commands, messages and output are those of the page.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.brokers.kafka import Kafka
from tests.support.brokers.mosquitto import Certificates, Mosquitto
from tests.support.markdown import blocks
from tests.support.paths import ROOT
from tests.support.recipe import HOW_TO, Follower, programs
from tests.support.service_process import ServiceProcess

pytestmark = pytest.mark.broker("mosquitto")


@pytest.fixture(scope="module")
def mosquitto() -> Iterator[Mosquitto]:
    """No other service with the example connections answers there."""
    with Mosquitto.start() as broker:
        yield broker


OVER_MQTT = [
    "past-state",
    "resume-after-reconnect",
    "alarm-on-limit",
    "no-answer",
    "limit-devices",
    "share-until",
    "find-hot-things",
    "send-once",
    "one-worker",
    "wait-for-another-service",
    "try-mapping",
    "erase-data",
    "prometheus-grafana",
    "migrate-from-ditto",
    "size-a-server",
]
USED = ("devices.yaml", "gateways.json", "sensors.yaml")
"""The connections of `make serve` that recipes use."""


def at(mosquitto: Mosquitto) -> dict[str, str]:
    """The broker's address in pages and examples, and here."""
    here = f"{mosquitto.host}:{mosquitto.port}"
    return {"localhost:1883": here, "127.0.0.1:1883": here}


def copy_examples(folder: Path, places: dict[str, str]) -> None:
    """The folders of the repository that recipes name."""
    shutil.copytree(ROOT / "examples" / "connections", folder / "examples" / "connections")
    for file in (folder / "examples" / "connections").iterdir():
        text = file.read_text(encoding="utf-8")
        for shown, real in places.items():
            text = text.replace(shown, real)
        file.write_text(text, encoding="utf-8")
    shutil.copy(ROOT / "examples" / "settings.yaml", folder / "examples")
    (folder / "deploy").symlink_to(ROOT / "deploy")


class Clone:
    """A clone of the repository beside `make serve`."""

    def __init__(self, folder: Path, mosquitto: Mosquitto) -> None:
        self.folder = folder / "clone"
        self.places = at(mosquitto)
        copy_examples(self.folder, self.places)
        path = programs(folder / "bin", mosquitto.host, mosquitto.port)
        self.variables = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}"}

    def documents(self) -> list[dict[str, Any]]:
        files = (self.folder / "examples" / "connections" / name for name in USED)
        return [yaml.safe_load(file.read_text(encoding="utf-8")) for file in files]

    @contextmanager
    def with_service(self, documents: Sequence[dict[str, Any]], **settings: Any) -> Iterator[ServiceProcess]:
        with ServiceProcess.start(self.folder.parent / "service", documents, **settings) as service:
            self.variables["CONNECTIVITY_URL"] = f"http://127.0.0.1:{service.port}"
            self.places["localhost:8080"] = f"127.0.0.1:{service.port}"
            (self.folder / ".run").mkdir()
            (self.folder / ".run" / "data").symlink_to(service.data)
            yield service


@pytest.fixture(scope="module")
def clone(mosquitto: Mosquitto, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clone]:
    folder = tmp_path_factory.mktemp("recipes")
    clone = Clone(folder, mosquitto)
    with clone.with_service(clone.documents()):
        yield clone


@pytest.mark.parametrize("page", OVER_MQTT)
def test_a_recipe_beside_the_example_connections_works_as_written(page: str, clone: Clone) -> None:
    follow(page, clone)


def test_every_guide_with_commands_is_followed_by_a_test() -> None:
    here = {
        *OVER_MQTT,
        "kafka-events",
        "tls-client-certificates",
        "rotate-broker-password",
        "backup",
        "restore",
        "upgrade",
        "deploying",
    }
    elsewhere = {
        "query-lake-duckdb",
        "follow-lake",
        "run-pipeline",
        "limit-history",
        "export-history",
        "manage-connections",
    }
    read = {"docker", "kubernetes"}  # compared with the images and the chart: tests/repo
    pages = {file.stem for file in HOW_TO.glob("*.md") if "```console" in file.read_text(encoding="utf-8")}
    assert pages - {"operating"} == here | elsewhere | read


def follow(page: str, clone: Clone, acts: Mapping[str, Callable[[], object]] | None = None) -> None:
    """Follow a page. Each has things of its own, since several use one service."""
    for file in clone.folder.glob("*.*"):
        if file.is_file():
            file.unlink()
    ours = {name: f"{name}-{page}" for name in ("boiler-07", "boiler-08", "pump-3", "pump-4")}
    boiler = (ROOT / "examples" / "boiler.json").read_text(encoding="utf-8")
    (clone.folder / "examples" / "boiler.json").write_text(
        boiler.replace("boiler-07", ours["boiler-07"]), encoding="utf-8"
    )
    with Follower(clone.folder, clone.variables, {**clone.places, **ours}, acts or {}) as reader:
        assert reader.follow(page) > 0


def settings_of(page: str, places: Mapping[str, str]) -> dict[str, Any]:
    """The settings that a page has the reader write."""
    (text,) = (block.text for block in blocks(HOW_TO / f"{page}.md") if block.title == "settings.yaml")
    for shown, real in places.items():
        text = text.replace(shown, real)
    found: dict[str, Any] = yaml.safe_load(text)
    return found


@pytest.mark.broker("kafka")
def test_events_reach_a_kafka_topic_as_written(kafka: Kafka, own_mosquitto: Mosquitto, tmp_path: Path) -> None:
    # The service of the module's other tests has the same connections, and would answer, too.
    clone = Clone(tmp_path, own_mosquitto)
    clone.places.update({"localhost:9092": kafka.bootstrap, "plant-events": "plant-events-of-the-page"})
    for name, lines in KAFKA_TOOLS.items():
        tool = tmp_path / "bin" / name
        tool.write_text(f"#!{sys.executable}\n{lines}", encoding="utf-8")
        tool.chmod(0o755)
    with clone.with_service(clone.documents()):
        follow("kafka-events", clone)


KAFKA_TOOLS = {
    "kafka-topics.sh": """
import sys
from confluent_kafka.admin import AdminClient, NewTopic
server, topic, count = (sys.argv[sys.argv.index(f"--{name}") + 1] for name in ("bootstrap-server", "topic", "partitions"))
admin = AdminClient({"bootstrap.servers": server})
admin.create_topics([NewTopic(topic, int(count), 1)])[topic].result(60)
print(f"Created topic {topic}.")
""",
    "kafka-console-consumer.sh": """
import sys
from confluent_kafka import Consumer, TopicPartition
server, topic, count = (sys.argv[sys.argv.index(f"--{name}") + 1] for name in ("bootstrap-server", "topic", "max-messages"))
consumer = Consumer({"bootstrap.servers": server, "group.id": "page", "auto.offset.reset": "earliest"})
places = [TopicPartition(topic, number, 0) for number in consumer.list_topics(topic, 60).topics[topic].partitions]
consumer.assign(places)
found = [message for message in consumer.consume(int(count), 60) if message.error() is None]
for message in found:
    print(message.value().decode())
if not found:
    print('"nothing', [consumer.get_watermark_offsets(place, 60) for place in places], file=sys.stderr)
consumer.close()
""",
}
"""Replacements of Kafka's own programs, which are not among the jars of the tests."""


def test_a_client_certificate_is_used_as_written(tmp_path: Path) -> None:
    made = Certificates.make(tmp_path)
    files = tmp_path / "tls"
    files.mkdir()
    for file, name in ((made.ca, "ca.crt"), (made.client_certificate, "client.crt"), (made.client_key, "client.key")):
        shutil.copy(file, files / name)
    with Mosquitto.start(tls=made, config_lines=["require_certificate true"]) as broker:
        clone = Clone(tmp_path, broker)
        clone.places.update({"localhost:8883": f"{broker.host}:{broker.tls_port}", "/etc/connectivity/tls": str(files)})
        with clone.with_service([], **settings_of("tls-client-certificates", clone.places)):
            follow("tls-client-certificates", clone)


def test_a_password_is_rotated_as_written(tmp_path: Path) -> None:
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "mqtt-password").write_text("old-password", encoding="utf-8")
    with Mosquitto.start(users={"fleet": "old-password"}) as broker:
        clone = Clone(tmp_path, broker)
        clone.places["/run/secrets"] = str(secrets)
        acts: dict[str, Callable[[], object]] = {
            "mosquitto_passwd -b /etc/mosquitto/passwords fleet new-password": partial(
                broker.set_password, "fleet", "new-password"
            ),
            "systemctl reload mosquitto": broker.restart,
        }
        with clone.with_service([], **settings_of("rotate-broker-password", clone.places)):
            follow("rotate-broker-password", clone, acts)


def test_a_backup_is_made_and_restored_as_written(own_mosquitto: Mosquitto, tmp_path: Path) -> None:
    """Without a lake, for which there are longer tests."""
    clone = Clone(tmp_path, own_mosquitto)
    backups = tmp_path / "backups"
    with clone.with_service(clone.documents()) as service:
        clone.places.update(
            {
                "/var/lib/private/connectivity": str(service.data),
                "/var/backups/connectivity": str(backups),
                "/etc/connectivity/settings.yaml": str(service.folder / "settings.json"),
            }
        )
        verify = f"connectivity pipeline verify --settings {service.folder / 'settings.json'}"
        acts: dict[str, Callable[[], object]] = {
            "systemctl stop connectivity": service.stop,
            "systemctl start connectivity": service.start_again,
            verify: lambda: None,
            "/opt/connectivity/bin/pip install --upgrade dist/broker_connectivity-*.whl": lambda: None,
            "/opt/connectivity/bin/connectivity validate /etc/connectivity/connections": lambda: None,
        }
        for page in ("backup", "upgrade", "restore"):
            follow(page, clone, acts)
        assert sorted(folder.name for folder in backups.iterdir()) == ["before-upgrade", "monday", "tuesday"]
        assert service.get("/health/ready")[0] == 200


def test_the_service_is_deployed_as_written(own_mosquitto: Mosquitto, tmp_path: Path) -> None:
    """Without package installers and systemd: the service runs already."""
    clone = Clone(tmp_path, own_mosquitto)
    units = tmp_path / "units"
    variables = tmp_path / "environment"
    variables.write_text("BROKER_PASSWORD=secret\n", encoding="utf-8")
    with clone.with_service(clone.documents()) as service:
        clone.places.update(
            {
                "/opt/connectivity/bin/connectivity": "connectivity",
                "/etc/connectivity/connections": str(service.folder / "connections"),
                "/etc/connectivity/environment": str(variables),
                "/etc/connectivity/settings.yaml": str(service.folder / "settings.json"),
                "/etc/systemd/system": str(units),
                "/var/lib/private/connectivity": str(service.data),
            }
        )
        elsewhere = (
            "python3 -m venv /opt/connectivity",
            "/opt/connectivity/bin/pip install dist/broker_connectivity-*.whl",
            f"connectivity pipeline install --settings {service.folder / 'settings.json'}",
            "uv venv /opt/connectivity",
            "VIRTUAL_ENV=/opt/connectivity uv pip install --require-hashes --requirements pyproject.toml "
            "--constraints constraints.txt",
            "VIRTUAL_ENV=/opt/connectivity uv pip install --no-deps .",
            "systemctl daemon-reload",
            "systemctl enable --now connectivity",
            "systemctl status connectivity",
            "journalctl --unit connectivity --output cat",
        )
        follow("deploying", clone, dict.fromkeys(elsewhere, lambda: None))
    installed = units / "connectivity.service"
    assert installed.read_bytes() == (ROOT / "deploy" / "systemd" / "connectivity.service").read_bytes()
