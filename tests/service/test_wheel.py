"""The package as users install it: from the wheel, in an empty environment, without the repository."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectivity import __version__
from tests.support.brokers import free_port
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.connection_documents import Reader, added, client, connection, policy_for, source, topic
from tests.support.debian import installed_debian
from tests.support.paths import ROOT
from tests.support.service_process import ServiceProcess
from tests.support.wait import wait_until_sync

OWNER = "acme:owner"
MOST_MEGABYTES, MOST_RESIDENT = 100, 90
FILLED_WITHIN = 300.0


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has the core alone."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([ROOT / "tools" / "try-wheel", folder], check=True)
    return folder / "venv" / "bin"


def run(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(installed / "connectivity"), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_the_program_prints_its_version(installed: Path, tmp_path: Path) -> None:
    printed = run(installed, tmp_path, "--version")
    assert (printed.returncode, printed.stdout) == (0, f"connectivity {__version__}\n")


def test_the_core_takes_at_most_100_megabytes(installed: Path) -> None:
    packages = next(installed.parent.glob("lib/python3*/site-packages"))
    taken = sum(file.stat().st_size for file in packages.rglob("*") if file.is_file())
    assert taken <= MOST_MEGABYTES * 1_000_000, f"{taken / 1e6:.0f} MB"


def test_examples_without_scripts_are_valid_and_the_others_name_the_extra(installed: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples" / "connections", tmp_path / "connections")
    checked = run(installed, tmp_path, "validate", "--json", "connections")
    assert checked.returncode == 1
    assert {problem["expected"] for problem in json.loads(checked.stdout)} == {
        "the extra 'javascript'; install it with: pip install 'broker-connectivity[javascript]'"
    }


def test_a_command_on_the_lake_names_the_extra(installed: Path, tmp_path: Path) -> None:
    for extra, action in (("spark", "run"), ("lake", "status")):
        ended = run(installed, tmp_path, "pipeline", action)
        assert ended.returncode == 4, ended
        assert f"pip install 'broker-connectivity[{extra}]'" in ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def service(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    class Installed(ServiceProcess):
        program = (str(installed / "connectivity"),)

    with Installed.start(tmp_path_factory.mktemp("service"), [], spark={}) as started:
        yield started


# Before the other test of this service, which gives it something to do.
def test_the_service_takes_at_most_90_megabytes_at_rest(service: ServiceProcess) -> None:
    assert service.process is not None
    status = Path(f"/proc/{service.process.pid}/status").read_text(encoding="utf-8")
    resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    assert resident <= MOST_RESIDENT * 1000, f"{resident / 1000:.0f} MB"


@pytest.mark.broker("mosquitto")
def test_the_service_replays_a_past_over_mqtt(service: ServiceProcess, mosquitto: Mosquitto) -> None:
    with added(service, connection(mosquitto, source("wheel", OWNER))), client(mosquitto, "wheel") as mqtt_client:
        value = {"_policy": policy_for(OWNER), "attributes": {"n": 0}}
        assert mqtt_client.ask_for(topic("lamp", "commands/create"), value=value)["status"] == 201
        changed = mqtt_client.ask_for(topic("lamp", "commands/modify"), path="/attributes/n", value=1)
        assert changed["status"] == 204
        assert [event["revision"] for event in Reader(mqtt_client, "lamp").all()] == [1, 2]


def test_settings_that_need_an_extra_name_it_at_the_start(installed: Path, tmp_path: Path) -> None:
    usual = {"data_dir": "data", "api": {"port": free_port()}}
    settings = {**usual, "spark": {"mode": "embedded"}, "tracing": {"endpoint": "http://127.0.0.1:4318"}}
    (tmp_path / "settings.yaml").write_text(json.dumps(settings), encoding="utf-8")
    ended = run(installed, tmp_path, "serve", "--settings", "settings.yaml")
    assert ended.returncode == 2
    assert "spark.mode: found embedded, expected off, or the extra 'spark'" in ended.stderr
    assert "tracing.endpoint: found http://127.0.0.1:4318, expected none, or the extra 'tracing'" in ended.stderr
    (tmp_path / "data" / "lake").mkdir(parents=True)
    (tmp_path / "settings.yaml").write_text(json.dumps(usual), encoding="utf-8")
    ended = run(installed, tmp_path, "serve", "--settings", "settings.yaml")
    assert ended.returncode == 2
    assert "data_dir: found a lake in data/lake, expected the extra 'spark'" in ended.stderr


@pytest.mark.spark
@pytest.mark.soak(shard="lake")
@pytest.mark.broker("mosquitto")
def test_with_the_extra_spark_and_fetched_jars_events_reach_the_lake(tmp_path: Path, mosquitto: Mosquitto) -> None:
    """Delta's jars come from Maven's central repository, into a cache that is empty before."""
    subprocess.run([ROOT / "tools" / "try-wheel", tmp_path, "spark"], check=True)
    program = tmp_path / "venv" / "bin"

    class Installed(ServiceProcess):
        program = (str(tmp_path / "venv" / "bin" / "connectivity"),)

    spark = {"jars": str(tmp_path / "cache" / "delta")}
    settings = tmp_path / "settings.json"
    with Installed.start(tmp_path, [connection(mosquitto, source("lake", OWNER))], spark=spark) as service:
        wait_until_sync(lambda: "`connectivity pipeline install` fetches them" in service.log())
        fetched = run(program, tmp_path, "pipeline", "install", "--settings", str(settings))
        assert fetched.returncode == 0, fetched
        service.stop()
        service.start_again()
        with client(mosquitto, "lake") as mqtt_client:
            value = {"_policy": policy_for(OWNER), "attributes": {"n": 0}}
            assert mqtt_client.ask_for(topic("pump", "commands/create"), value=value)["status"] == 201

        wait_until_sync((service.data / "lake" / "events" / "_delta_log" / f"{1:020}.json").exists, FILLED_WITHIN)


@pytest.mark.spark
@pytest.mark.slow("it installs a Debian, Java and Spark")
@pytest.mark.soak(shard="debian")
@pytest.mark.broker("mosquitto")
def test_the_documented_commands_install_a_service_with_a_lake_in_an_empty_debian(
    tmp_path: Path, mosquitto: Mosquitto
) -> None:
    page = (ROOT / "docs" / "how-to" / "deploying.md").read_text(encoding="utf-8")
    packages = ["python3-venv", "default-jre-headless"]
    make_environment = ["python3", "-m", "venv", "/opt/connectivity"]
    assert all(f"`{name}`" in page for name in packages)
    assert " ".join(make_environment) in page
    shared = tmp_path / "shared"
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([uv, "build", "-q", "--wheel", "--no-build-isolation", "--out-dir", shared], cwd=ROOT, check=True)
    with installed_debian(tmp_path / "debian", shared) as debian:
        debian.run("apt-get", "update", "-q")
        debian.run("apt-get", "install", "-y", "-q", "--no-install-recommends", *packages)
        debian.run(*make_environment)
        debian.run("/opt/connectivity/bin/pip", "install", "-q", f"{next(shared.glob('*.whl'))}[spark]")
        connectivity = "/opt/connectivity/bin/connectivity"
        debian.run(connectivity, "pipeline", "install")

        class Installed(ServiceProcess):
            program = debian.command(connectivity)

        with Installed.start(shared, [connection(mosquitto, source("debian", OWNER))], spark={}) as service:
            with client(mosquitto, "debian") as mqtt_client:
                value = {"_policy": policy_for(OWNER), "attributes": {"n": 0}}
                assert mqtt_client.ask_for(topic("pump", "commands/create"), value=value)["status"] == 201
            first = service.data / "lake" / "events" / "_delta_log" / f"{1:020}.json"
            wait_until_sync(first.exists, FILLED_WITHIN)
            assert service.stop()[0] == 0
        settings = ["--settings", str(shared / "settings.json")]
        assert "lake and journal: the same" in debian.run(connectivity, "pipeline", "verify", *settings)
        debian.run(connectivity, "history", "export", "--out", str(shared / "past.jsonl"), *settings)
    events = [json.loads(line) for line in (shared / "past.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {(it["entity_type"], it["action"]) for it in events} == {("thing", "created"), ("policy", "created")}
