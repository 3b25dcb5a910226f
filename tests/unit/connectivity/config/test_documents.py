"""JSON and YAML files as plain values."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from connectivity.config import documents
from connectivity.config.documents import MAX_BYTES, MAX_DEPTH, is_within_limits, read_document
from tests.support.acceptance import accepted, accepts
from tests.support.cpu_budget import at_most
from tests.support.dice import examples
from tests.support.table import each_row

SECRET = "s3cr3t"


def read(folder: Path, name: str, content: str | bytes) -> tuple[Any, list[str]]:
    file = folder / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    document, problems = read_document(file)
    return document, [f"{problem.path}: {problem.found}" for problem in problems]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", '{"a": [1, {"b": null}]}'),
        ("a.JSON", b'\xef\xbb\xbf{"a": [1, {"b": null}]}'),
        ("a.yaml", "a:\n  - 1\n  - b: ~\n"),
        ("a.yml", "a: [1, {b: null}]"),
        ("a.yml", "# a remark\nx: &x {b: null}\na: [1, *x]"),
    ],
)
def test_a_document_is_read(tmp_path: Path, name: str, content: str | bytes) -> None:
    document, problems = read(tmp_path, name, content)
    assert (document["a"], problems) == ([1, {"b": None}], [])


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("a.txt", "{}", "$: a file named *.txt"),
        ("a", "{}", "$: a file name without an extension"),
        ("a.json", "", "$: an empty file"),
        ("a.yaml", " \n", "$: an empty file"),
        ("a.json", b'{"a": "\xff"}', "$: a byte at position 7 that is not UTF-8"),
        ("a.json", '{"a": 1,\n "b" 2}', "$: line 2, column 6: Expecting ':' delimiter"),
        ("a.json", '{"a": NaN}', "$: the number NaN"),
        ("a.json", '{"a": ' + "9" * 5000 + "}", "$: a number that is too long, or a value that is nested too deep"),
        ("a.json", "[" * 100_000, "$: a number that is too long, or a value that is nested too deep"),
        ("a.yaml", "a: 1\nb: c: d\n", "$: line 2, column 5: mapping values are not allowed here"),
        ("a.yaml", "a: [1\n", "$: line 2, column 1: expected ',' or ']', but got '<stream end>'"),
        ("a.yaml", "a: \x01", "$: position 3: special characters are not allowed"),
        ("a.yaml", "a: 1\n---\nb: 2", "$: line 2, column 1: but found another document"),
        ("a.yaml", f"a: *{SECRET}", "$: line 1, column 4: found undefined alias '…'"),
        ("a.yaml", f"a: !{SECRET} b", "$: line 1, column 4: could not determine a constructor for the tag '…'"),
        ("a.yaml", "a: !!bool maybe", "$: a value that does not fit its type, or a value that is nested too deep"),
        ("a.yaml", f"a: 0x{'f' * 5_000}", "$: a value that does not fit its type, or a value that is nested too deep"),
        ("a.yaml", f"a: 1{':1' * 5_000}", "$: a value that does not fit its type, or a value that is nested too deep"),
        ("a.yaml", "a: 2030-13-45", "$: a value that does not fit its type, or a value that is nested too deep"),
        ("a.yaml", "? [a]\n: b", "$: line 1, column 3: found unhashable key"),
        ("a.yaml", "[" * 2_000, "$: a value that does not fit its type, or a value that is nested too deep"),
        ("a.yaml", "&a [*a]", "$: a larger document"),
        ("a.json", "[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2), "$: a larger document"),
        ("a.json", " " * (MAX_BYTES + 1), "$: a larger file"),
        ("a.json", '{"a": ["\\udfff"]}', "a[0]: a text with an unpaired surrogate"),
        ("a.json", '{"\\ud800": 1}', '["\\ud800"]: a text with an unpaired surrogate'),
    ],
)
def test_an_unreadable_document_is_one_problem(tmp_path: Path, name: str, content: str | bytes, found: str) -> None:
    document, problems = read(tmp_path, name, content)
    assert (document, problems) == (None, [found])


def test_endless_aliases_are_a_problem_and_take_no_time(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    _, problems = read(tmp_path, "a.yaml", "\n".join(lines))
    assert problems == ["$: a larger document"]


@pytest.mark.parametrize("name", ["a.json", "a.yaml"])
def test_a_duplicate_name_is_a_problem(tmp_path: Path, name: str) -> None:
    content = '{"a": 1, "b": [{"c": 1, "d": 1, "c": 2, "c": 3}], "a": 2}'
    document, problems = read(tmp_path, name, content)
    assert problems == [
        '$: the name "a" several times in one object'.replace("$", "a"),
        'b[0].c: the name "c" several times in one object',
    ]
    assert document["a"] == 2


def test_a_merge_key_may_be_overridden(tmp_path: Path) -> None:
    content = "base: &base {a: 1, b: 2}\nown: {<<: *base, a: 3}\n"
    document, problems = read(tmp_path, "a.yaml", content)
    assert (document["own"], problems) == ({"a": 3, "b": 2}, [])


def test_a_folder_and_a_missing_file_are_problems(tmp_path: Path) -> None:
    (tmp_path / "a.json").mkdir()
    assert [problem.found for problem in read_document(tmp_path / "a.json").problems] == ["a folder"]
    found = read_document(tmp_path / "b.json").problems[0].found
    assert found == "a file that cannot be read: No such file or directory"


def test_merge_keys_that_multiply_are_a_problem_and_take_no_time(tmp_path: Path) -> None:
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 8)}]}}" for n in range(1, 7)]
    assert read(tmp_path, "a.yaml", "\n".join(lines)) == (None, ["$: a larger document"])


def test_the_first_of_several_merged_objects_takes_precedence(tmp_path: Path) -> None:
    content = "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nown: {<<: [*a, *b], z: 3}\n"
    document, problems = read(tmp_path, "a.yaml", content)
    assert (document["own"], problems) == ({"x": 1, "y": 1, "z": 3}, [])


def test_many_names_with_one_twice_take_no_time(tmp_path: Path) -> None:
    """Comparing each with each would take most of a minute."""
    pairs = ", ".join(f'"n{index}": 1' for index in range(50_000))
    with at_most(10):
        _, problems = read(tmp_path, "a.json", f'{{{pairs}, "n0": 2}}')
        assert problems == ['n0: the name "n0" several times in one object']


def test_a_pipe_is_a_problem_and_does_not_block_the_reader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.json")
    # Opened for both ends, so that a reader would find it empty and the test could still end.
    held = os.open(tmp_path / "a.json", os.O_RDWR | os.O_NONBLOCK)
    reader = threading.Thread(target=lambda: found.extend(read_document(tmp_path / "a.json").problems), daemon=True)
    found: list[Any] = []
    reader.start()
    reader.join(5)
    os.write(held, b"x")
    os.close(held)
    assert [(problem.found, problem.expected) for problem in found] == [
        ("a pipe, a socket or a device", "a regular file")
    ]


@accepts(at_least=1)
@given(
    st.dictionaries(st.text("ab", min_size=1), st.integers() | st.none()).map(lambda value: json.dumps(value).encode())
    | st.binary()
    | st.text().map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.sampled_from(["json", "yaml"]),
)
@settings(max_examples=examples(250), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_file_is_read_or_has_problems(tmp_path: Path, content: bytes, suffix: str) -> None:
    is_read_or_has_problems(tmp_path, f"a.{suffix}", content)


def is_read_or_has_problems(folder: Path, name: str, content: bytes) -> None:
    document, problems = read(folder, name, content)
    assert is_within_limits(document)
    if not problems:
        accepted()
        # Null is null in JSON and in YAML.
        assert document is not None or yaml.safe_load(content) is None


TAGS = [
    "!!int",
    "!!float",
    "!!bool",
    "!!timestamp",
    "!!binary",
    "!!set",
    "!!omap",
    "!!pairs",
    "!!null",
    "!!str",
    "!!map",
]


@accepts(at_least=1)
@given(
    st.sampled_from(TAGS), st.sampled_from(["", "x", "1", "{}", "[]", "{a: b}", "[a, b]", "1:2", "_", "=", "0b", "<<"])
)
@settings(max_examples=examples(500), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_tag_is_read_or_a_problem(tmp_path: Path, tag: str, value: str) -> None:
    is_read_or_has_problems(tmp_path, "a.yaml", f"a: {tag} {value}".encode())


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=10,
)


@given(VALUES)
@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_written_document_is_read_back_unchanged(tmp_path: Path, value: Any) -> None:
    assert read(tmp_path, "a.json", json.dumps(value)) == (value, [])
    assert read(tmp_path, "a.yaml", yaml.safe_dump(value)) == (value, [])


def test_a_cyclic_value_is_not_within_the_limits() -> None:
    cyclic: list[Any] = []
    cyclic.append(cyclic)
    assert is_within_limits({"a": [1, {"b": 2}]})
    assert not is_within_limits(cyclic)


# --- with libyaml, and without -----------------------------------------------------------------------------------------

PIECES = [
    "a",
    "b: ",
    "- ",
    "\n",
    "\n  ",
    "\n- ",
    "? ",
    "?",
    ",",
    "[",
    "]",
    "{",
    "}",
    "|",
    ">",
    "|-",
    "|2\n",
    "&x ",
    "*x",
    "!",
    "#",
]
PIECES += [
    "!!str ",
    "!!set {a}",
    '"',
    "'",
    "\\",
    " #",
    "%",
    "\t",
    "é",
    "😀",
    "\u2028",
    "\x85",
    "\ufeff",
    "\r",
    "\0",
    "---\n",
    "...\n",
]
PIECES += [
    "%YAML 1.2\n",
    "<<: ",
    "<<: *x\n",
    "http://x?y=z",
    "1",
    "0x1f",
    "1:30",
    ".inf",
    "2020-01-01",
    "010",
    "=",
    "~",
    "yes",
    "{a: 1}",
]


def test_libyaml_is_used_if_installed() -> None:
    assert yaml.__with_libyaml__
    assert documents._fast_loader is not None


@given(st.lists(st.sampled_from(PIECES), max_size=9).map("".join))
@settings(max_examples=examples(1_000), deadline=None)
def test_libyaml_and_the_python_loader_read_the_same(text: str) -> None:
    assert_read_alike(text)


@each_row(
    "text",
    [
        *(file.read_text() for file in sorted(Path("examples/connections").glob("*.yaml"))),
        "a: [events?filter=eq(a,1)]",
        "a: events?filter=eq(a,1)",
        "a: |#\n b",
        "a: >-# b",
        "a:\t1",
        "a: !",
        "a: ''\n\ufeff",
        "a: &x {b: 1}\nc: {<<: *x, b: 2}",
        f"{'n' * 1_100}: 1",
        f"{'é' * 1_030}: 1",
        "[" * 1_100,
        "- " * 1_100,
        "? " * 1_100,
        "{a: " * 1_100,
    ],
)
def test_libyaml_changes_nothing_of(text: str) -> None:
    assert_read_alike(text)


def assert_read_alike(text: str) -> None:
    """Compare documents by repr, so that 1 and True differ and NaN equals itself, and their problems."""
    fast = repr(_loaded_as_yaml(text))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "_fast_loader", None)
        assert fast == repr(_loaded_as_yaml(text))


def _loaded_as_yaml(text: str) -> Any:
    return documents._load(documents._load_yaml, text)
