"""Entity tags."""

from __future__ import annotations

from connectivity.twins.preconditions import Tags, parse_tags
from tests.support.table import each_row


@each_row(
    ("text", "tags"),
    [
        ("*", Tags(True)),
        (" * ", Tags(True)),
        ('"rev:1"', Tags(False, ((False, '"rev:1"'),))),
        (' W/"a" , "b" ', Tags(False, ((True, '"a"'), (False, '"b"')))),
        ('""', Tags(False, ((False, '""'),))),
        *((text, None) for text in ("", "rev:1", '"a', '"a""b"', '"a",', '*, "a"', '"*"')),
    ],
)
def test_tags_are_read_or_refused(text: str, tags: Tags | None) -> None:
    assert parse_tags(text) == tags


def test_a_weak_tag_matches_weakly_alone() -> None:
    tags = Tags(False, ((True, '"a"'),))
    assert (tags.match_weakly('"a"'), tags.match_strongly('"a"'), tags.match_weakly('"b"')) == (True, False, False)
    assert Tags(True).match_strongly('"a"')
