"""Static checks of the Dockerfile of both images: by hadolint, and by the rules of the project."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

import connectivity
from connectivity.config.settings_loader import load_settings
from spark_store.pipeline.java import OLDEST_JAVA
from tests.support.paths import ROOT
from tests.support.typed import beginning, options

FILE = ROOT / "Dockerfile"
PINNED = re.compile(r"python:\d+\.\d+\.\d+-slim-[a-z]+")
IMAGES = ("slim", "lake")
"""The stages that are images; each begins with the stage `base`."""


class Instruction(NamedTuple):
    word: str
    rest: str


def instructions() -> list[Instruction]:
    """The recipe, one instruction for each line; comments and line ends are gone."""
    text = re.sub(r"^\s*#.*\n", "", FILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = re.sub(r"\s*\\\n\s*", " ", text).splitlines()
    return [Instruction(*line.split(None, 1)) for line in lines if line.strip()]


def stages() -> dict[str, list[Instruction]]:
    """The instructions of each stage by its name; the first is its FROM, without the name."""
    found: dict[str, list[Instruction]] = {}
    for each in instructions():
        if each.word == "FROM":
            origin, _, name = each.rest.partition(" AS ")
            found[name] = stage = []
            each = Instruction("FROM", origin)
        stage.append(each)
    return found


def with_origins(name: str) -> list[Instruction]:
    """The instructions of a stage, after those of the stages that it begins with."""
    [start, *others] = stages()[name]
    return [*(with_origins(start.rest) if start.rest in stages() else []), *others]


def of(word: str, stage: str) -> list[str]:
    return [each.rest for each in with_origins(stage) if each.word == word]


def variables(image: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for rest in of("ENV", image) for pair in rest.split())


def labels(image: str) -> dict[str, str]:
    return {name: value for rest in of("LABEL", image) for name, value in re.findall(r'([\w.]+)="([^"]*)"', rest)}


def extras(stage: str) -> set[str]:
    """The extras of the package that a stage installs."""
    return set(re.findall(r"--extra (\w+)", " ".join(of("RUN", stage))))


def complaints(file: Path) -> str:
    """Return hadolint's errors for a Dockerfile."""
    program = Path(sys.executable).with_name("hadolint")
    return subprocess.run([program, "--no-color", file], capture_output=True, text=True, check=False).stdout


def test_the_linter_has_no_complaints() -> None:
    assert complaints(FILE) == ""


@pytest.mark.parametrize(
    ("found", "instead", "complaint"),
    [("STOPSIGNAL", "STOPSIGNL", "unexpected"), (":3.13.7-slim-bookworm AS base\n", ":latest AS base\n", "DL3007")],
    ids=["an unknown instruction", "an image that changes"],
)
def test_the_linter_finds_errors_in_the_dockerfile(found: str, instead: str, complaint: str, tmp_path: Path) -> None:
    wrong = tmp_path / "Dockerfile"
    wrong.write_text(FILE.read_text(encoding="utf-8").replace(found, instead), encoding="utf-8")
    assert complaint in complaints(wrong)


def test_every_stage_starts_with_another_or_with_the_same_pinned_image() -> None:
    origins = {start.rest for start, *_ in stages().values()} - stages().keys()
    assert len(origins) == 1
    assert all(PINNED.fullmatch(origin) for origin in origins)


def test_the_last_stage_is_the_image_that_is_built_without_a_target() -> None:
    assert list(stages())[-1] == "slim"


@pytest.mark.parametrize("image", IMAGES)
def test_everything_that_is_fetched_is_checked_against_its_hash(image: str) -> None:
    commands = " && ".join(of("RUN", "wheel") + of("RUN", f"{image}-packages")).split(" && ")
    installs = [command for command in commands if re.search(r"\bpip (install|wheel)", command)]
    for command in installs:
        is_local = command.endswith(("wheels/*.whl", " ."))
        assert ("--no-deps" if is_local else "--require-hashes") in command, command
    assert "--constraints constraints.txt" in " ".join(installs)


def test_slim_has_no_lake_and_the_other_image_everything() -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    everything = set(re.findall(r"\w+", re.findall(r"\[(.*)\]", known["all"][0])[0]))
    assert extras("slim-packages") == everything - {"spark"}
    assert extras("lake-packages") == {"all"}
    for image in IMAGES:
        assert [rest for rest in of("COPY", image) if rest.startswith("--from=")] == [
            f"--from={image}-packages /app /app"
        ]


def test_the_image_with_the_lake_has_java_and_fetches_the_jars_into_the_folder_that_it_uses() -> None:
    java, jars = of("RUN", "lake")[-2:]
    [version] = re.findall(r'"openjdk-(\d+)-jre-headless=\1\.\*"', java)
    assert int(version) >= OLDEST_JAVA
    assert java.startswith("install --directory /usr/share/man/man1 &&"), "its installation fails without the folder"
    assert jars == "connectivity pipeline install"
    assert [each.word for each in stages()["lake"]][-4:] == ["COPY", "ENV", "RUN", "USER"]
    assert variables("lake").keys() - variables("slim").keys() == {"CONNECTIVITY_SPARK__JARS"}


@pytest.mark.parametrize("image", IMAGES)
def test_the_image_has_the_labels_of_the_open_container_initiative(image: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = {name.removeprefix("org.opencontainers.image."): value for name, value in labels(image).items()}
    assert found.pop("description")
    assert found == {
        "title": project["name"],
        "version": connectivity.__version__,
        "licenses": project["license"],
        "base.name": f"docker.io/library/{stages()['base'][0].rest}",
    }
    assert labels("slim") != labels("lake"), "they say which is which"


@pytest.mark.parametrize("image", IMAGES)
def test_the_image_runs_as_a_fixed_user_id_that_owns_only_the_data_folder(image: str) -> None:
    assert of("USER", image) == ["10001:10001"]
    made = " ".join(of("RUN", image))
    assert "--uid 10001" in made
    assert "--gid 10001" in made
    assert "--mode=0750 /data" in made
    assert [rest for rest in of("COPY", image) if "--chown" in rest] == [], "what is run belongs to root"


@pytest.mark.parametrize("image", IMAGES)
def test_nothing_is_after_the_user_that_needs_more_rights(image: str) -> None:
    assert stages()[image][-1].word == "USER"


def test_the_image_stores_data_in_volumes_and_stops_on_sigterm() -> None:
    assert json.loads(of("VOLUME", "base")[0]) == ["/data", "/connections"]
    assert of("STOPSIGNAL", "base") == ["SIGTERM"]
    assert json.loads(of("ENTRYPOINT", "base")[0]) == ["connectivity"]
    assert json.loads(of("CMD", "base")[0]) == ["serve"]


@pytest.mark.parametrize("image", IMAGES)
def test_its_variables_are_settings(image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mode of Spark is not among them: its default depends on the extra that the image has."""
    found = {name: value for name, value in variables(image).items() if name.startswith("CONNECTIVITY_")}
    assert "CONNECTIVITY_SPARK__MODE" not in found
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    settings = load_settings(None)
    assert (str(settings.connections_dir), str(settings.data_dir)) == ("/connections", "/data")
    assert settings.log.format == "json"


def test_the_dockerfile_contains_no_secrets() -> None:
    text = FILE.read_text(encoding="utf-8").lower()
    assert re.findall(r"(?:password|secret|token|api_key)\s*[=:]", text) == []
    assert [each for each in instructions() if each.word in ("ARG", "ADD")] == []


def copied_from_the_context() -> list[str]:
    return [it.rest for it in instructions() if it.word == "COPY" and not it.rest.startswith("--from=")]


def test_the_build_context_contains_exactly_the_copied_files() -> None:
    """Everything is excluded, and the needed files are included again."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    first, *rules = [line for line in lines if line and not line.startswith("#")]
    assert first == "*"
    let_in = {rule[1:] for rule in rules if rule.startswith("!")}
    copied = {name for rest in copied_from_the_context() for name in rest.split()[:-1]}
    assert copied == let_in
    assert [name for name in copied if not (ROOT / name).exists()] == []
    kept_out = [rule for rule in rules if not rule.startswith("!")]
    assert any(fnmatch("mappings/__pycache__", rule.replace("**/", "*/")) for rule in kept_out)


def test_every_package_of_the_project_is_copied() -> None:
    assert {"connectivity", "mappings", "spark_store"} <= {rest.split()[0] for rest in of("COPY", "wheel")}


@contextmanager
def answering(status: int) -> Iterator[tuple[int, list[str]]]:
    """A port that answers with this status, and the requested paths."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing is logged."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port, asked
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(("status", "is_healthy"), [(200, True), (503, False)])
def test_it_is_healthy_when_the_service_is_ready(status: int, is_healthy: bool) -> None:
    """The check itself is run here, with this Python."""
    _, _, words = of("HEALTHCHECK", "base")[0].partition("CMD ")
    program, *arguments = json.loads(words)
    assert program == "python", "there is no curl in the image"
    with answering(status) as (port, asked):
        environment = {"CONNECTIVITY_API__PORT": str(port)}
        ended = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, check=False)
    assert (ended.returncode == 0, asked) == (is_healthy, ["/health/ready"])


def test_the_page_on_docker_builds_every_image_with_the_name_that_compose_has() -> None:
    built = {
        options(words, "tag")[0]: next(iter(options(words, "target")), "")
        for words in beginning("docker", "docker", "build")
    }
    image = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]["connectivity"]["image"]
    assert built.keys() == {re.sub(r"\$\{VARIANT:-\w+}", variant, image) for variant in IMAGES}
    assert all(tag.endswith(f"-{target or 'slim'}") for tag, target in built.items())


def test_the_container_on_the_page_has_the_folders_of_the_image() -> None:
    [words] = beginning("docker", "docker", "run")
    mounted = {volume.split(":")[1] for volume in options(words, "volume")}
    found = variables("slim")
    assert mounted == {found["CONNECTIVITY_DATA_DIR"], found["CONNECTIVITY_CONNECTIONS_DIR"]}
    assert found["CONNECTIVITY_DATA_DIR"] in " ".join(of("VOLUME", "slim"))
    assert words[-1] in [options(each, "tag")[0] for each in beginning("docker", "docker", "build")]
