"""Connection files and folders of them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from connectivity.management.files import LoadedFolder, load
from tests.support.vectors.connections import base_document


def document(**more: Any) -> dict[str, Any]:
    return base_document("shared") | more


def without_id() -> dict[str, Any]:
    return {name: value for name, value in document().items() if name != "id"}


def write(folder: Path, name: str, content: Any) -> Path:
    file = folder / name
    dump = json.dumps if name.endswith(".json") else yaml.safe_dump
    file.write_text(content if isinstance(content, str) else dump(content), encoding="utf-8")
    return file


def places(loaded: LoadedFolder) -> list[tuple[str, str]]:
    return [(problem.file.name, problem.problem.path) for problem in loaded.problems]


def test_design_8_17_a_folder_holds_json_and_yaml(tmp_path: Path) -> None:
    for name in ("a.json", "b.yaml", "c.yml"):
        write(tmp_path, name, document(id=name))
    write(tmp_path, "notes.txt", "none of ours")
    write(tmp_path, ".d.yaml", "an editor's file")
    loaded = load([tmp_path])
    assert places(loaded) == [("a.json", "id"), ("b.yaml", "id"), ("c.yml", "id")]
    for name in ("a.json", "b.yaml", "c.yml"):
        write(tmp_path, name, without_id())
    loaded = load([tmp_path])
    assert (sorted(loaded.connections), loaded.problems, loaded.read) == (["a", "b", "c"], [], 3)
    assert loaded.files == {"a": tmp_path / "a.json", "b": tmp_path / "b.yaml", "c": tmp_path / "c.yml"}


def test_design_8_17_a_file_may_hold_a_list(tmp_path: Path) -> None:
    write(tmp_path, "all.yaml", [document(id="a"), without_id()])
    assert sorted(load([tmp_path]).connections) == ["a", "all"]


def test_an_empty_list_is_no_connection_and_no_problem(tmp_path: Path) -> None:
    write(tmp_path, "none.json", [])
    loaded = load([tmp_path])
    assert (loaded.connections, loaded.problems) == ({}, [])


def test_a_problem_within_a_list_has_its_path(tmp_path: Path) -> None:
    write(tmp_path, "all.json", [document(id="a"), 5, document(id="b", clientCount=0, targets=[{}])])
    loaded = load([tmp_path])
    assert places(loaded) == [
        ("all.json", "[1]"),
        ("all.json", "[2].targets[0].address"),
        ("all.json", "[2].targets[0].topics"),
        ("all.json", "[2].targets[0].authorizationContext"),
        ("all.json", "[2].clientCount"),
    ]
    assert list(loaded.connections) == ["a"]


def test_design_8_17_the_same_id_twice_is_a_problem_in_both_places(tmp_path: Path) -> None:
    write(tmp_path, "a.json", document(id="x"))
    write(tmp_path, "b.json", [document(id="y"), document(id="x")])
    loaded = load([tmp_path])
    assert places(loaded) == [("a.json", "id"), ("b.json", "[1].id")]
    assert f"{tmp_path / 'b.json'} at [1]" in loaded.problems[0].problem.found
    assert str(tmp_path / "a.json") in loaded.problems[1].problem.found
    assert list(loaded.connections) == ["y"]


def test_the_same_id_is_seen_across_arguments_and_a_file_given_twice_is_one(tmp_path: Path) -> None:
    first = write(tmp_path, "a.json", document(id="x"))
    (tmp_path / "more").mkdir()
    write(tmp_path / "more", "b.json", document(id="x"))
    assert places(load([first, tmp_path / "more"])) == [("a.json", "id"), ("b.json", "id")]
    assert load([first, tmp_path, first]).problems == []


def test_a_missing_id_can_clash_too(tmp_path: Path) -> None:
    write(tmp_path, "x.json", without_id())
    write(tmp_path, "y.json", document(id="x"))
    assert places(load([tmp_path])) == [("x.json", "id"), ("y.json", "id")]


def test_a_files_name_that_is_no_id_is_a_problem(tmp_path: Path) -> None:
    write(tmp_path, "my depot.json", without_id())
    assert places(load([tmp_path])) == [("my depot.json", "id")]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("b.json", "{"),
        ("b.yaml", "a: ]"),
        ("b.yaml", "just text"),
        ("b.json", ""),
        ("b.json", "null"),
        ("b.yaml", "# nothing"),
        ("b.json", '{"id": 5, "uri": {}}'),
        ("b.yaml", "5: 6"),
    ],
)
def test_a_broken_file_stops_no_other(tmp_path: Path, name: str, content: str) -> None:
    write(tmp_path, "a.json", document(id="a"))
    write(tmp_path, "c.json", document(id="c"))
    broken = write(tmp_path, name, content)
    loaded = load([tmp_path])
    assert sorted(loaded.connections) == ["a", "c"]
    assert loaded.broken_files == {broken}


def test_a_file_that_is_not_utf_8_and_a_folder_with_the_name_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b'{"id": "\xff"}')
    (tmp_path / "b.yaml").mkdir()
    write(tmp_path, "c.json", document(id="c"))
    loaded = load([tmp_path])
    assert (places(loaded), list(loaded.connections)) == ([("a.json", "$"), ("b.yaml", "$")], ["c"])


def test_a_duplicate_name_is_a_problem_and_the_rest_is_checked_too(tmp_path: Path) -> None:
    text = json.dumps(document(id="a", clientCount=0))
    write(tmp_path, "a.json", text[:-1] + ', "clientCount": 0, "uri": "amqp://h:1"}')
    assert places(load([tmp_path])) == [("a.json", "uri"), ("a.json", "clientCount"), ("a.json", "clientCount")]


def test_a_missing_folder_is_a_problem(tmp_path: Path) -> None:
    loaded = load([tmp_path / "nope"])
    assert [problem.file for problem in loaded.problems] == [tmp_path / "nope"]


def test_a_folder_that_may_not_be_read_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> Any:
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert "Permission denied" in str(load([tmp_path]).problems[0])


def test_design_8_18_a_relative_secret_starts_at_the_connection_file(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("geheim\n")
    write(tmp_path, "a.json", document(id="a", uri="amqp://u:${file:password}@h:1"))
    password = load([tmp_path]).connections["a"].broker_uri.password
    assert password is not None
    assert password.get_secret_value() == "geheim"


def test_secret_references_need_no_value_when_files_are_checked_for_a_remote_service(tmp_path: Path) -> None:
    plain = document(targets=[], uri="amqps://u:${env:NO_SUCH_VARIABLE}@h:1")
    kept = write(tmp_path, "a.json", plain | {"id": "a", "ca": "${file:nowhere.pem}"})
    write(tmp_path, "b.json", plain | {"id": "b", "clientCount": 0})
    masked = write(tmp_path, "c.json", plain | {"id": "c", "credentials": {"type": "client-cert", "key": "*****"}})
    found = [("a.json", "ca"), ("a.json", "uri"), ("b.json", "clientCount"), ("b.json", "uri"), ("c.json", "uri")]
    assert sorted(places(load([tmp_path]))) == found
    loaded = load([tmp_path], for_remote_service=True)
    assert places(loaded) == [("b.json", "clientCount")]
    assert list(loaded.documents) == ["a", "c"]
    write(tmp_path, "c.json", plain | {"id": "c", "uri": "amqps://u:*****@h:1"})
    loaded = load([tmp_path], for_remote_service=True)
    assert (list(loaded.documents), loaded.files) == (["a", "c"], {"a": kept, "c": masked})
    assert list(loaded.connections) == ["c"]


def test_problems_are_in_the_order_of_the_files(tmp_path: Path) -> None:
    write(tmp_path, "a.json", document(id="a", clientCount=0))
    write(tmp_path, "b.json", "{")
    write(tmp_path, "c.json", document(id="c", clientCount=0))
    assert [name for name, _ in places(load([tmp_path]))] == ["a.json", "b.json", "c.json"]


def test_a_file_and_a_link_to_it_in_its_folder_are_the_connection_of_the_file(tmp_path: Path) -> None:
    write(tmp_path, "b.json", without_id())
    (tmp_path / "a.json").symlink_to("b.json")
    loaded = load([tmp_path])
    assert (list(loaded.connections), loaded.files, loaded.read) == (["b"], {"b": tmp_path / "b.json"}, 1)


def test_a_link_to_itself_is_a_problem_and_stops_no_other(tmp_path: Path) -> None:
    write(tmp_path, "a.json", document(id="a"))
    (tmp_path / "loop.json").symlink_to("loop.json")
    loaded = load([tmp_path])
    assert (list(loaded.connections), loaded.broken_files) == (["a"], frozenset({tmp_path / "loop.json"}))
    assert "symbolic links" in loaded.problems[0].problem.found


def test_a_name_too_long_for_the_system_is_a_problem(tmp_path: Path) -> None:
    assert [problem.problem.path for problem in load([tmp_path / ("x" * 300)]).problems] == ["$"]


def test_a_number_too_long_to_be_shown_is_a_problem(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", f"id: 0x{'f' * 5_000}")
    assert places(load([tmp_path])) == [("a.yaml", "$")]


@pytest.mark.parametrize("name", [[], {}, 5])
def test_an_id_that_is_no_text_is_a_problem(tmp_path: Path, name: object) -> None:
    write(tmp_path, "a.json", document(id=name))
    assert places(load([tmp_path])) == [("a.json", "id")]
