"""The check of plain English finds sentences that break its rules, and no others."""

from __future__ import annotations

import pytest

from tools.language import LONGEST_MODULE_DOCSTRING, comments, main, markdown, python


@pytest.mark.parametrize(
    ("sentence", "rule"),
    [
        ("What is not there is skipped.", "name the subject of the sentence"),
        ("Whoever asks gets nothing.", "name the subject of the sentence"),
        ("A request is told 404.", "say what happens"),
        ("Send a command that is none.", "say what it is instead"),
        ("It works as it should.", "say how"),
        ("The file stands on its own page.", "write 'is'"),
        ("A variable counts more than the file.", "write 'applies'"),
        ("An admin sees what he may read.", "write 'they'"),
        ("This is a wide query.", "use the field's word"),
        ("The door is closed.", "write 'listener'"),
        ("Mend the port.", "write 'repair, fix'"),
    ],
)
def test_a_planted_sentence_is_found_in_pages_docstrings_and_comments(sentence: str, rule: str) -> None:
    for found in (
        markdown(f"# Title\n\n{sentence}\n"),
        python(f'"""A module."""\n\ndef f():\n    """{sentence}"""\n'),
        python(f'"""A module."""\n\n# {sentence}\n'),
        comments(f"key: value\n  # {sentence}\n"),
    ):
        assert rule in {breach.rule for breach in found}


def test_plain_sentences_and_code_are_left_alone() -> None:
    page = "See each broker's page. `What` is a name.\n\n```\nWhoever reads this, it is code.\n```\n"
    assert list(markdown(page)) == []
    assert list(python('"""A queue of messages."""\n\nx = "What a text."  # bounded\n')) == []
    assert list(comments("# A list of hosts.\ntopic: door # A\n#!/bin/sh\n")) == []


def test_a_docstring_starts_with_a_short_line_and_a_modules_ends_soon() -> None:
    long = "x" * 101
    assert [breach.rule for breach in python(f'"""{long}"""\n')] == ["at most 100 characters in the first line"]
    lines = "\n".join(["A module.", "", *["line"] * LONGEST_MODULE_DOCSTRING])
    assert [breach.rule for breach in python(f'"""{lines}\n"""\n')] == ["at most 12 lines in a module's docstring"]


def test_product_documentation_examples_and_tools_have_no_such_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0, capsys.readouterr().out
