"""The pages are correct: links have targets, commands exist, examples are valid and usable."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from connectivity import __version__
from connectivity.config.settings_loader import load_settings
from connectivity.validation.limitations import notes
from connectivity.validation.validator import parse
from tests.support import markdown
from tests.support.markdown import anchors, prose
from tests.support.paths import ROOT
from tests.support.validation import validate
from tools.docs.manual import manuals

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
EXAMPLES = sorted((ROOT / "examples" / "connections").iterdir())
AT_COMPOSE = sorted((ROOT / "examples" / "compose").iterdir())

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_MAKE = re.compile(r"(?:`|\$ )make ([a-z]+)")
_TARGET = re.compile(r"^([a-z]+):.*?(?:## (.+))?$", re.MULTILINE)


class Block(NamedTuple):
    """A fenced block of a page."""

    page: Path
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}: {self.text.strip().splitlines()[0][:40]}"


def blocks(language: str) -> list[Block]:
    """Return every fenced block in this language."""
    found = [(page, block) for page in PAGES for block in markdown.blocks(page)]
    return [Block(page, language, block.text) for page, block in found if block.language == language]


def make_targets() -> dict[str, str]:
    """Return target → its explanation, or an empty text."""
    return dict(_TARGET.findall((ROOT / "Makefile").read_text(encoding="utf-8")))


def document(file: Path) -> Any:
    text = file.read_text(encoding="utf-8")
    return json.loads(text) if file.suffix == ".json" else yaml.safe_load(text)


def broken_links(page: Path) -> Iterator[str]:
    """The links of a page to files and headings that do not exist."""
    for link in _LINK.findall(prose(page)):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            yield f"{page.name} links to {link}"
        elif anchor and anchor not in anchors(target):
            yield f"{page.name} links to {link}: no such heading"


def test_links_lead_somewhere() -> None:
    assert PAGES
    assert [problem for page in PAGES for problem in broken_links(page)] == []


def test_every_page_starts_with_one_title() -> None:
    title = re.compile(r"(<!--.*?-->\s*)?# \S", re.DOTALL)
    assert [page.name for page in PAGES if not title.match(page.read_text(encoding="utf-8"))] == []


def test_the_make_targets_that_pages_name_exist() -> None:
    targets = make_targets()
    named = {(page.name, target) for page in PAGES for target in _MAKE.findall(page.read_text(encoding="utf-8"))}
    assert {(page, target) for page, target in named if target not in targets} == set()


def test_every_make_target_explains_itself() -> None:
    assert {target for target, explanation in make_targets().items() if not explanation} == set()


def test_the_fixed_make_targets_are_there() -> None:
    """People and scripts rely on these."""
    fixed = {"demo", "test", "install", "unit", "check", "soak", "bench", "docs", "serve", "clean", "help"}
    assert fixed <= set(make_targets())


@pytest.mark.parametrize(("language", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_examples_in_pages_can_be_read(language: str, read: Callable[[str], Any]) -> None:
    found = blocks(language)
    assert found
    assert [problem for block in found if (problem := why_unreadable(block, read))] == []


def why_unreadable(block: Block, read: Callable[[str], Any]) -> str:
    """Empty for a block that can be read."""
    try:
        return "" if read(block.text) is not None else f"{block}: empty"
    except (ValueError, yaml.YAMLError) as error:
        return f"{block}: {error}"


@pytest.mark.parametrize("file", [*EXAMPLES, *AT_COMPOSE], ids=lambda file: f"{file.parent.name}/{file.name}")
def test_an_example_connection_has_no_problems(file: Path) -> None:
    assert [str(problem) for problem in validate(document(file))] == []
    assert list(notes(parse(document(file)))) == []


_CODE = re.compile(r"`[^`]*`|\]\([^)]*\)")
_NUMBER = re.compile(r"(?<![\w.,-])\d{5,}(?![\w.-])|(?<![\w,.])\d{1,3}[ \u00a0\u202f]\d{3}(?!\d)")
"""Numbers that are not written as 10,000."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_numbers_are_written_in_one_style(page: Path) -> None:
    assert _NUMBER.findall(_CODE.sub("", prose(page))) == []


def test_there_is_an_example_connection_for_every_type() -> None:
    assert {document(file)["connectionType"] for file in EXAMPLES} == set(manuals())


def test_the_example_settings_can_be_used() -> None:
    assert load_settings(ROOT / "examples" / "settings.yaml").connections_dir == Path("examples/connections")


def test_a_release_has_an_entry_of_at_most_60_lines() -> None:
    """It is for people, not for the record."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    entries = text.split("\n## ")[1:]
    assert __version__ in {entry.split()[0] for entry in entries}
    assert [entry.partition("\n")[0] for entry in entries if entry.count("\n") > 60] == []


def bad_fragments(folder: Path) -> set[str]:
    """The changelog fragments whose name is not of a known kind, or which are empty."""
    name = re.compile(r"(\d+|\+[a-z0-9-]+)\.(added|changed|fixed|removed)\.md")
    return {
        file.name
        for file in folder.glob("*.md")
        if not name.fullmatch(file.name) or not file.read_text(encoding="utf-8").strip()
    }


def test_changelog_fragments_are_of_a_known_kind_and_not_empty() -> None:
    """Immediately after a release there are no fragments."""
    assert bad_fragments(ROOT / "changelog.d") == set()


def test_a_changelog_fragment_of_an_unknown_kind_or_without_a_text_is_found(tmp_path: Path) -> None:
    texts = {
        "12.fixed.md": "Fix it.",
        "+a.added.md": "Add it.",
        "12.mended.md": "x",
        "a.fixed.md": "x",
        "13.fixed.md": " ",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert bad_fragments(tmp_path) == {"12.mended.md", "a.fixed.md", "13.fixed.md"}
