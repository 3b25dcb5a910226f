"""What the pages say is so: links lead somewhere, commands exist, examples can be read and used."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from connectivity.settings import load_settings
from connectivity.spec import lint
from connectivity.spec.checks import document_types
from tests.support.paths import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
EXAMPLES = sorted((ROOT / "examples" / "connections").iterdir())
AT_COMPOSE = sorted((ROOT / "examples" / "compose").iterdir())

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
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
    """Every fenced block in this language."""
    found = [(page, *fence) for page in PAGES for fence in _FENCE.findall(page.read_text(encoding="utf-8"))]
    return [Block(*block) for block in found if block[1] == language]


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts make them."""
    headings = _HEADING.findall(prose(page))
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def make_targets() -> dict[str, str]:
    """Target → its explanation, empty where there is none."""
    return dict(_TARGET.findall((ROOT / "Makefile").read_text(encoding="utf-8")))


def document(file: Path) -> Any:
    text = file.read_text(encoding="utf-8")
    return json.loads(text) if file.suffix == ".json" else yaml.safe_load(text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(prose(page)):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {link}"
        assert not anchor or anchor in anchors(target), f"{page.name} links to {link}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_page_begins_with_one_title(page: Path) -> None:
    assert re.match(r"(<!--.*?-->\s*)?# \S", page.read_text(encoding="utf-8"), re.DOTALL)


def test_every_page_stands_in_the_index() -> None:
    listed = {
        link.partition("#")[0] for link in _LINK.findall((ROOT / "docs" / "index.md").read_text(encoding="utf-8"))
    }
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert pages - listed == {"index.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_make_targets_that_a_page_names_exist(page: Path) -> None:
    assert set(_MAKE.findall(page.read_text(encoding="utf-8"))) - set(make_targets()) == set()


def test_every_make_target_explains_itself() -> None:
    assert {target for target, explanation in make_targets().items() if not explanation} == set()


def test_the_fixed_make_targets_are_there() -> None:
    """People and scripts rely on these."""
    fixed = {"demo", "test", "install", "unit", "check", "soak", "bench", "docs", "serve", "clean", "help"}
    assert fixed <= set(make_targets())


@pytest.mark.parametrize("block", blocks("json"), ids=str)
def test_json_in_a_page_can_be_read(block: Block) -> None:
    json.loads(block.text)


@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_yaml_in_a_page_can_be_read(block: Block) -> None:
    assert yaml.safe_load(block.text) is not None


@pytest.mark.parametrize("file", [*EXAMPLES, *AT_COMPOSE], ids=lambda file: f"{file.parent.name}/{file.name}")
def test_an_example_connection_has_no_problems(file: Path) -> None:
    assert [str(problem) for problem in lint(document(file))] == []


def test_there_is_an_example_connection_for_every_type() -> None:
    assert {document(file)["connectionType"] for file in EXAMPLES} == set(document_types())


def test_the_example_settings_can_be_used() -> None:
    assert load_settings(ROOT / "examples" / "settings.yaml").connections_dir == Path("examples/connections")


def test_changelog_fragments_are_of_a_known_kind_and_say_something() -> None:
    for file in (ROOT / "changelog.d").glob("*.md"):
        assert re.fullmatch(r"(\d+|\+[a-z0-9-]+)\.(added|changed|fixed|removed)\.md", file.name), file.name
        assert file.read_text(encoding="utf-8").strip()
