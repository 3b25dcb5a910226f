"""Checks of a document's scripts, in a process of its own."""

from __future__ import annotations

import re
import signal
import subprocess
from typing import Any

import pytest

from connectivity.mapping.script_check import missing_protection, script_problem
from connectivity.mapping.script_protocol import Direction, WorkerReady, frame
from connectivity.validation.limitations import notes
from connectivity.validation.validator import parse
from tests.support.table import each_row
from tests.support.validation import validate

pytestmark = pytest.mark.extra("javascript")


@each_row(
    ("source", "direction", "problem"),
    [
        ("function mapToDittoProtocolMsg() {}", "incoming", None),
        ("const mapFromDittoProtocolMsgWrapper = () => {}", "outgoing", None),
        ("function mapToDittoProtocolMsg() {}", "outgoing", "without the function mapFromDittoProtocolMsg"),
        ("function mapToDittoProtocol() {}", "incoming", "without the function mapToDittoProtocolMsg"),
        ("function mapToDittoProtocolMsg() {", "incoming", "SyntaxError"),
        ("}), (() => { for (;;); })(), (() => {", "incoming", "SyntaxError"),
        ("throw new Error('mine'); function mapToDittoProtocolMsg() {}", "incoming", "Error: mine"),
        ("for (;;);", "incoming", "ran longer than 500 ms"),
        ("new Array(2 ** 31).sort()", "incoming", "ran longer than 500 ms"),
        ("const a = []; for (;;) a.push(new Array(1000).fill(1))", "incoming", "memory|longer|null"),
    ],
)
def test_a_script_that_cannot_be_used_is_a_problem(source: str, direction: Direction, problem: str | None) -> None:
    found = script_problem((source,), (), direction)
    if problem is None:
        assert found is None
    else:
        assert found is not None
        assert re.search(problem, found), found


def test_libraries_are_loaded_while_a_script_is_checked() -> None:
    source = "const LONG = dcodeIO.Long.ONE, BYTES = new dcodeIO.ByteBuffer(); function mapToDittoProtocolMsg() {}"
    assert script_problem((source,), ("long", "bytebuffer"), "incoming") is None
    assert "dcodeIO" in str(script_problem((source,), (), "incoming"))


def test_a_failed_check_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise subprocess.TimeoutExpired("python", 60)

    monkeypatch.setattr(subprocess, "run", fails)
    assert "could not be checked" in str(script_problem(("function f() {}",), (), "incoming"))


def test_a_script_that_makes_a_forbidden_system_call_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    killed = subprocess.CompletedProcess([], -signal.SIGSYS, frame(WorkerReady()))
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: killed)
    assert "forbidden system call" in str(script_problem(("function g() {}",), (), "incoming"))


def test_missing_isolation_of_script_processes_is_logged_for_connections_with_scripts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ready = subprocess.CompletedProcess([], 0, frame(WorkerReady(("their system calls are not limited",))))
    scripted = parse(document({"incomingScript": "function mapToDittoProtocolMsg() {}"}), environ={})
    assert list(notes(scripted)) == []
    missing_protection.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "run", lambda *_, **__: ready)
        noted, plain = list(notes(scripted)), list(notes(parse(document({}, name="Ditto", engine="Ditto"), environ={})))
    missing_protection.cache_clear()
    assert plain == []
    assert noted == ["a: script processes are not fully isolated on this machine: their system calls are not limited"]


def document(options: object, name: str = "scripted", engine: str = "JavaScript") -> dict[str, Any]:
    return {
        "id": "a",
        "connectionType": "mqtt",
        "connectionStatus": "open",
        "uri": "tcp://broker.example:1883",
        "sources": [
            {
                "addresses": ["in"],
                "qos": 1,
                "authorizationContext": ["a:b"],
                "payloadMapping": [name],
                "replyTarget": {"address": "out"},
            }
        ],
        "mappingDefinitions": {"scripted": {"mappingEngine": engine, "options": options}},
    }


OPTIONS = "mappingDefinitions.scripted.options"
FAILED = "connectivity:message.mapper.config.failed"
INVALID = "connectivity:message.mapper.config.invalid"


@pytest.mark.parametrize(
    ("options", "paths", "code"),
    [
        ({"incomingScript": "function mapToDittoProtocolMsg() {}"}, [], FAILED),
        (
            {"incomingScript": "", "outgoingScript": "function mapFromDittoProtocolMsg() {}", "loadLongJS": True},
            [],
            FAILED,
        ),
        ({}, ["incomingScript"], INVALID),
        ({"incomingScript": "function mapToDittoProtocolMsg() {"}, ["incomingScript"], FAILED),
        (
            {"incomingScript": "function mapToDittoProtocolMsg() {}", "outgoingScript": "let a"},
            ["outgoingScript"],
            FAILED,
        ),
        ({"incomingScript": "x" * 50_001}, ["incomingScript"], FAILED),
        ({"incomingSkript": "a", "loadLongJS": 7}, ["incomingSkript", "loadLongJS"], INVALID),
    ],
)
def test_case_1_8_problems_of_scripts_have_the_path_of_their_option(
    options: object, paths: list[str], code: str
) -> None:
    found = validate(document(options), environ={})
    assert [(problem.path, problem.code) for problem in found] == [(f"{OPTIONS}.{path}", code) for path in paths]


def test_case_1_8_scripts_need_a_definition() -> None:
    (problem,) = validate(document({}, name="JavaScript", engine="Ditto"), environ={})
    assert (problem.path, problem.code) == ("sources[0].payloadMapping[0]", INVALID)
    assert "that sets incomingScript or outgoingScript for JavaScript" in problem.expected


def test_a_hint_names_the_nearest_option() -> None:
    problems = validate(document({"incomingSkript": "a"}), environ={})
    assert problems[0].hint == "did you mean incomingScript?"
