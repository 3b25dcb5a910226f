"""The image's recipe, looked at where no Docker engine runs: by hadolint, the usual linter, and by our own rules."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest

from connectivity.config.settings_loader import load_settings
from tests.support.paths import ROOT

FILE = ROOT / "Dockerfile"
PINNED = re.compile(r"python:\d+\.\d+\.\d+-slim-[a-z]+( AS [a-z]+)?")


class Instruction(NamedTuple):
    word: str
    rest: str


def instructions() -> list[Instruction]:
    """The recipe, one instruction for each line; comments and line ends are gone."""
    text = re.sub(r"^\s*#.*\n", "", FILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = re.sub(r"\s*\\\n\s*", " ", text).splitlines()
    return [Instruction(*line.split(None, 1)) for line in lines if line.strip()]


def stages() -> list[list[Instruction]]:
    found: list[list[Instruction]] = []
    for each in instructions():
        if each.word == "FROM":
            found.append([])
        found[-1].append(each)
    return found


def of(word: str, stage: int = -1) -> list[str]:
    return [each.rest for each in stages()[stage] if each.word == word]


def variables() -> dict[str, str]:
    return dict(pair.split("=", 1) for rest in of("ENV") for pair in rest.split())


def complaints(file: Path) -> str:
    """What hadolint says against a recipe; empty where it is fine."""
    program = Path(sys.executable).with_name("hadolint")
    return subprocess.run([program, "--no-color", file], capture_output=True, text=True, check=False).stdout


def test_the_linter_has_no_complaints() -> None:
    assert complaints(FILE) == ""


@pytest.mark.parametrize(
    ("found", "instead", "complaint"),
    [("STOPSIGNAL", "STOPSIGNL", "unexpected"), (":3.13.7-slim-bookworm\n", ":latest\n", "DL3007")],
    ids=["an unknown instruction", "an image that changes"],
)
def test_the_linter_finds_errors_in_the_dockerfile(found: str, instead: str, complaint: str, tmp_path: Path) -> None:
    wrong = tmp_path / "Dockerfile"
    wrong.write_text(FILE.read_text(encoding="utf-8").replace(found, instead), encoding="utf-8")
    assert complaint in complaints(wrong)


def test_both_stages_start_with_the_same_pinned_image() -> None:
    images = [of("FROM", stage)[0] for stage in range(len(stages()))]
    assert [image for image in images if not PINNED.fullmatch(image)] == []
    assert len({image.partition(" ")[0] for image in images}) == 1


def test_everything_that_is_fetched_is_checked_against_its_hash() -> None:
    installs = [line for line in of("RUN", 0) if re.search(r"pip install|pip wheel", line)]
    for command in " && ".join(installs).split(" && "):
        if " pip install" in f" {command}" or " pip wheel" in f" {command}":
            is_local = command.endswith(("wheels/*.whl", " ."))
            assert ("--no-deps" if is_local else "--require-hashes") in command, command
    assert "--constraints constraints.txt" in " ".join(installs)


def test_the_image_runs_as_a_fixed_user_id_that_owns_only_the_data_folder() -> None:
    (user,) = of("USER")
    assert user == "10001:10001"
    made = " ".join(of("RUN"))
    assert "--uid 10001" in made
    assert "--gid 10001" in made
    assert "--mode=0750 /data" in made
    assert [rest for rest in of("COPY") if "--chown" in rest] == [], "what is run belongs to root"


def test_nothing_is_after_the_user_that_needs_more_rights() -> None:
    words = [each.word for each in stages()[-1]]
    assert set(words[words.index("USER") :]) <= {
        "USER", "WORKDIR", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD",
    }  # fmt: skip


def test_the_image_stores_data_in_volumes_and_stops_on_sigterm() -> None:
    assert json.loads(of("VOLUME")[0]) == ["/data", "/connections"]
    assert of("STOPSIGNAL") == ["SIGTERM"]
    assert json.loads(of("ENTRYPOINT")[0]) == ["connectivity"]
    assert json.loads(of("CMD")[0]) == ["serve"]


def test_its_variables_are_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables().items():
        if name.startswith("CONNECTIVITY_"):
            monkeypatch.setenv(name, value)
    settings = load_settings(None)
    assert (str(settings.connections_dir), str(settings.data_dir)) == ("/connections", "/data")
    assert (settings.spark.mode, settings.log.format) == ("off", "json")


def test_there_are_no_secrets_in_it() -> None:
    text = FILE.read_text(encoding="utf-8").lower()
    assert re.findall(r"(?:password|secret|token|api_key)\s*[=:]", text) == []
    assert [each for each in instructions() if each.word in ("ARG", "ADD")] == []


def test_the_build_context_contains_exactly_the_copied_files() -> None:
    """Everything is left out, and what is needed is let in again."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    first, *rules = [line for line in lines if line and not line.startswith("#")]
    assert first == "*"
    let_in = {rule[1:] for rule in rules if rule.startswith("!")}
    copied = {name for rest in of("COPY", 0) for name in rest.split()[:-1]}
    assert copied == let_in
    assert [name for name in copied if not (ROOT / name).exists()] == []
    kept_out = [rule for rule in rules if not rule.startswith("!")]
    assert any(fnmatch("mappings/__pycache__", rule.replace("**/", "*/")) for rule in kept_out)


def test_every_package_of_the_project_is_copied() -> None:
    assert {"connectivity", "mappings", "spark_store"} <= {rest.split()[0] for rest in of("COPY", 0)}


@contextmanager
def answering(status: int) -> Iterator[tuple[int, list[str]]]:
    """A port that answers with this status, and the paths that were asked for."""
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
    _, _, words = of("HEALTHCHECK")[0].partition("CMD ")
    program, *arguments = json.loads(words)
    assert program == "python", "there is no curl in the image"
    with answering(status) as (port, asked):
        environment = {"CONNECTIVITY_API__PORT": str(port)}
        ended = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, check=False)
    assert (ended.returncode == 0, asked) == (is_healthy, ["/health/ready"])
