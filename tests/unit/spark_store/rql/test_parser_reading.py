"""Reading a text from left to right, as filters and options are read."""

from __future__ import annotations

import re

import pytest

from spark_store.errors import QueryError, RqlSyntaxError
from spark_store.rql.parser import TextReader


class Words(TextReader):
    def refuse(self, position: int, expected: str) -> QueryError:
        return RqlSyntaxError(self.text, position, expected)


@pytest.mark.parametrize(
    ("text", "name", "rest"),
    [
        ("attributes/a,1", "attributes/a", ",1"),
        ("attributes/a b)", "attributes/a b", ")"),
        (r"attributes/a\"b,1", 'attributes/a"b', ",1"),
        (r"attributes/a\\b,1", "attributes/a\\b", ",1"),
        (r"attributes/\u00e4,1", "attributes/ä", ",1"),
        ("attributes/a(b,1", "attributes/a(b", ",1"),
    ],
)
def test_a_property_ends_according_to_the_grammar(text: str, name: str, rest: str) -> None:
    words = Words(text)
    assert words.property() == name
    assert words.text[words.position :] == rest


@pytest.mark.parametrize(
    ("text", "position"), [("", 0), (",", 0), (r"a\q", 1), (r"a\u12", 1), (r"a\ud800", 1), ("a\\", 1)]
)
def test_a_syntax_error_has_the_position_of_the_fault(text: str, position: int) -> None:
    with pytest.raises(RqlSyntaxError) as caught:
        Words(text).property()
    assert caught.value.position == position


def test_reading_absent_text_keeps_the_position() -> None:
    words = Words("abc")
    assert words.run(re.compile("[0-9]+")) == ""
    assert words.take("b") is False
    assert words.position == 0
    assert words.run(re.compile("[a-b]+")) == "ab"
    words.expect("c")
    with pytest.raises(RqlSyntaxError, match="position 3: expected the end"):
        words.fail("the end")
