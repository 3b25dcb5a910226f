"""Secrets by reference."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectivity.connections.secret_references import MAX_CHARACTERS, MAX_FILE_BYTES, NOTHING, ReferenceRules, resolve
from connectivity.security.uri import parse_uri

ENVIRON = {"WORD": "geheim", "ODD": "p@s:s/w%rd"}


def test_references_are_replaced_in_every_place_that_takes_them() -> None:
    document = {
        "uri": "tcp://u:${env:WORD}@h:1",
        "credentials": {"key": "${env:WORD}"},
        "ca": "${env:WORD}",
        "sshTunnel": {"credentials": {"password": "<${env:WORD}>"}, "knownHosts": ["${env:WORD}"]},
        "specificConfig": {"a": "${env:WORD}${env:WORD}", "b": 5},
    }
    found = resolve(document, environ=ENVIRON)
    assert found.document == {
        "uri": "tcp://u:geheim@h:1",
        "credentials": {"key": "geheim"},
        "ca": "geheim",
        "sshTunnel": {"credentials": {"password": "<geheim>"}, "knownHosts": ["geheim"]},
        "specificConfig": {"a": "geheimgeheim", "b": 5},
    }
    assert (found.problems, found.options) == ([], frozenset({"a"}))
    assert "geheim" in found.values


def test_references_elsewhere_stay_as_they_are() -> None:
    document = {"name": "${env:WORD}", "sources": [{"addresses": ["${file:x}"]}], "targets": "${env:WORD}"}
    assert resolve(document, environ=ENVIRON).document == document


def test_placeholders_are_no_references() -> None:
    document = {"specificConfig": {"groupId": "${connection:id}-{{ connection:id }}-${x}"}}
    found = resolve(document, environ=ENVIRON)
    assert (found.document, found.problems, found.options) == (document, [], frozenset())


def test_the_given_document_is_not_changed() -> None:
    document = {"ca": "${env:WORD}", "credentials": {"key": "${env:WORD}"}}
    resolve(document, environ=ENVIRON)
    assert document == {"ca": "${env:WORD}", "credentials": {"key": "${env:WORD}"}}


@given(st.text(st.characters(codec="utf-8"), min_size=1))
def test_any_password_can_come_into_a_uri(password: str) -> None:
    found = resolve({"uri": "tcp://u:${env:P}@h:1/v"}, environ={"P": password})
    uri = parse_uri(found.document["uri"])
    assert uri.password is not None
    assert (uri.password.get_secret_value(), uri.host) == (password, "h")


def test_user_and_password_may_share_a_reference_and_host_and_port_another() -> None:
    environ = {"LOGIN": "u:p@s", "PLACE": "h.example:1883"}
    uri = parse_uri(resolve({"uri": "tcp://${env:LOGIN}@${env:PLACE}"}, environ=environ).document["uri"])
    assert uri.password is not None
    assert (uri.username, uri.password.get_secret_value(), uri.host, uri.port) == ("u", "p@s", "h.example", 1883)


def test_a_whole_uri_may_come_by_reference() -> None:
    assert resolve({"uri": "${env:URI}"}, environ={"URI": "tcp://h:1"}).document == {"uri": "tcp://h:1"}


def test_a_files_content_loses_its_line_ends(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text("a\nb\r\n\n")
    document = {"credentials": {"key": "${file:key.pem}", "cert": f"${{file:{tmp_path / 'key.pem'}}}"}}
    found = resolve(document, environ={}, base=tmp_path)
    assert found.document == {"credentials": {"key": "a\nb", "cert": "a\nb"}}


def test_a_resolved_value_is_not_searched_for_references() -> None:
    assert resolve({"ca": "${env:A}"}, environ={"A": "${env:B}", "B": "x"}).document == {"ca": "${env:B}"}


def test_the_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTIVITY_TEST_WORD", "geheim")
    assert resolve({"ca": "${env:CONNECTIVITY_TEST_WORD}"}).document == {"ca": "geheim"}


@pytest.mark.parametrize(
    ("reference", "found"),
    [
        ("${env:NOPE}", "${env:NOPE}, a variable that is not set"),
        ("${env:}", "${env:}, a variable that is not set"),
        ("${env:BYTES}", "${env:BYTES}, a variable that is not UTF-8"),
        ("${file:nope}", "${file:nope}, a path without a regular file"),
        ("${file:}", "${file:}, a path without a regular file"),
        ("${file:.}", "${file:.}, a path without a regular file"),
        ("${file:/dev/null}", "${file:/dev/null}, a file in a system folder"),
        ("${file:binary}", "${file:binary}, a file that is not UTF-8"),
        ("${file:large}", f"${{file:large}}, a file of more than {MAX_FILE_BYTES} bytes"),
        ("${file:a\0b}", "${file:a\0b}, an invalid path"),
    ],
)
def test_a_missing_one_is_a_problem_that_names_the_reference(reference: str, found: str, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    document = {"sshTunnel": {"knownHosts": ["a", reference]}}
    resolved = resolve(document, environ={"BYTES": "\udcff"}, base=tmp_path)
    assert [(problem.path, problem.found) for problem in resolved.problems] == [("sshTunnel.knownHosts[1]", found)]
    assert resolved.document == document


def test_all_references_of_a_document_together_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * MAX_FILE_BYTES)
    allowed = MAX_CHARACTERS // MAX_FILE_BYTES + 1
    document = {"sshTunnel": {"knownHosts": ["${file:large}" * (allowed + 50)]}}
    resolved = resolve(document, environ={}, base=tmp_path)
    assert len(resolved.document["sshTunnel"]["knownHosts"][0]) < MAX_CHARACTERS + 2 * MAX_FILE_BYTES
    assert len(resolved.problems) == 50
    assert resolved.problems[0].found == (
        f"${{file:large}}, after references with more than {MAX_CHARACTERS} characters in total"
    )


def test_a_file_that_may_not_be_read_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text("geheim")

    def refuse(*_: Any, **__: Any) -> int:
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr(os, "open", refuse)
    found = resolve({"ca": "${file:key}"}, environ={}, base=tmp_path).problems
    assert "cannot be read: Permission denied" in found[0].found


DOCUMENTS = st.recursive(
    st.none() | st.text(max_size=5) | st.sampled_from(["${env:X}", "${file:y}", "${env:", "${"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=6,
)


@given(DOCUMENTS)
def test_any_document_is_taken(document: Any) -> None:
    for whole in (document, {"ca": document, "uri": document, "specificConfig": document}):
        assert resolve(whole, environ={}).problems is not None


@pytest.mark.parametrize(
    "name",
    [
        *("CONNECTIVITY_SECRETS__KEY", "connectivity_secrets__old_keys", "CONNECTIVITY_API__TOKEN"),
        *("CONNECTIVITY_TOKEN", "CONNECTIVITY_SPARK__REMOTE", "CONNECTIVITY_TRACING__ENDPOINT"),
    ],
)
def test_variables_of_the_services_own_secrets_are_not_read(name: str) -> None:
    found = resolve({"ca": f"${{env:{name}}}"}, environ={name: "geheim"})
    assert (found.document, found.values) == ({"ca": f"${{env:{name}}}"}, frozenset())
    assert [problem.found for problem in found.problems] == [f"${{env:{name}}}, a variable that belongs to the service"]


def test_files_of_the_services_own_are_not_read_on_any_way(tmp_path: Path) -> None:
    data, key, open_to = tmp_path / "data", tmp_path / "key", tmp_path / "open"
    data.mkdir()
    open_to.mkdir()
    for file in (data / "secrets.key", key, open_to / "word"):
        file.write_text("geheim", encoding="utf-8")
    (open_to / "link").symlink_to(data / "secrets.key")
    (open_to / "folder").symlink_to(data)
    (open_to / "same").hardlink_to(key)
    (open_to / "inner").hardlink_to(data / "secrets.key")
    texts = [str(data / "secrets.key"), str(key), "link", "folder/secrets.key", "same", "inner", "../data/secrets.key"]
    texts += [f"{data}/../data/secrets.key", f"/proc/self/root{key}", f"{data}/./secrets.key"]
    for text in texts:
        found = resolve({"ca": f"${{file:{text}}}"}, base=open_to, rules=ReferenceRules(own=[data, key]))
        assert [problem.found for problem in found.problems] == [
            f"${{file:{text}}}, a file that belongs to the service"
        ]
        assert found.values == frozenset()
    rules = ReferenceRules(own=[data, key, tmp_path / "missing"])
    assert resolve({"ca": "${file:word}"}, base=open_to, rules=rules).document == {"ca": "geheim"}
    assert resolve({"ca": "${file:link}"}, base=open_to).problems == []


def test_the_files_of_the_service_are_listed_at_most_once_for_a_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A document may name a file with several links very often, and the lake may have very many files."""
    data, listed, walk = tmp_path / "data", list[Path](), os.walk
    data.mkdir()
    (data / "own").write_text("geheim", encoding="utf-8")
    (tmp_path / "word").write_text("password", encoding="utf-8")
    (tmp_path / "same").hardlink_to(tmp_path / "word")

    def counted(path: Path, **more: Any) -> Any:
        listed.append(path)
        return walk(path, **more)

    monkeypatch.setattr(os, "walk", counted)
    rules = ReferenceRules(own=[data])
    found = resolve({"ca": "${file:word}${file:same}" * 50}, base=tmp_path, rules=rules)
    assert (found.document, listed) == ({"ca": "password" * 100}, [data])
    listed.clear()
    assert resolve({"ca": "no reference"}, base=tmp_path, rules=rules).problems == []
    assert listed == []


@pytest.mark.parametrize("path", ["/proc/self/environ", "/proc/self/status", "/sys/kernel/uevent_seqnum"])
def test_a_secret_reference_cannot_name_a_system_file(path: str) -> None:
    (problem,) = resolve({"ca": f"${{file:{path}}}"}).problems
    assert "a file in a system folder" in problem.found


def test_folders_limit_the_files_of_references(tmp_path: Path) -> None:
    for name in ("mine", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "word").write_text("geheim", encoding="utf-8")
    (tmp_path / "mine" / "link").symlink_to(tmp_path / "other" / "word")
    rules = ReferenceRules(folders=[tmp_path / "mine"])
    assert resolve({"ca": f"${{file:{tmp_path}/mine/word}}"}, rules=rules).document == {"ca": "geheim"}
    for text in (
        f"{tmp_path}/other/word",
        f"{tmp_path}/mine/../other/word",
        f"{tmp_path}/mine/link",
        f"{tmp_path}/mineral/word",
        "/etc/passwd",
    ):
        (problem,) = resolve({"ca": f"${{file:{text}}}"}, rules=rules).problems
        assert problem.found == f"${{file:{text}}}, a file outside the folders in secrets.folders"


def test_existing_and_missing_files_outside_of_the_folders_get_the_same_refusal(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("binary", "nowhere", "loop", "binary/below", "."):
        (problem,) = resolve({"ca": f"${{file:{tmp_path}/{name}}}"}, rules=NOTHING).problems
        assert problem.found == f"${{file:{tmp_path}/{name}}}, a file outside the folders in secrets.folders"


def test_existing_and_missing_files_of_the_services_own_get_the_same_refusal(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (tmp_path / "link").symlink_to(data)
    (data / "secrets.key").write_text("geheim", encoding="utf-8")
    for own in (data, tmp_path / "link"):
        rules = ReferenceRules(own=[own], folders=[tmp_path])
        for name in ("secrets.key", "nowhere", "nowhere/below", "."):
            (problem,) = resolve({"ca": f"${{file:{data}/{name}}}"}, rules=rules).problems
            assert problem.found == f"${{file:{data}/{name}}}, a file that belongs to the service"
            assert problem.expected == "a file in an allowed folder"


def test_variables_limit_the_names_of_references() -> None:
    environ = {
        "BROKER_PASSWORD": "geheim",
        "broker_x": "geheim",
        "AWS_SECRET": "geheim",
        "CONNECTIVITY_API__TOKEN": "x",
    }
    rules = ReferenceRules(variables=["BROKER_*", "CONNECTIVITY_*"])
    assert resolve({"ca": "${env:BROKER_PASSWORD}"}, environ=environ, rules=rules).document == {"ca": "geheim"}
    for name in ("AWS_SECRET", "broker_x", "MISSING"):
        found = resolve({"ca": f"${{env:{name}}}"}, environ=environ, rules=rules)
        assert [problem.found for problem in found.problems] == [
            f"${{env:{name}}}, a variable that matches no pattern in secrets.variables"
        ]
        assert found.values == frozenset()
    (problem,) = resolve({"ca": "${env:CONNECTIVITY_API__TOKEN}"}, environ=environ, rules=rules).problems
    assert problem.found == "${env:CONNECTIVITY_API__TOKEN}, a variable that belongs to the service"
