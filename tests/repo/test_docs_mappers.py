"""The generated page of the payload mappers."""

from __future__ import annotations

import json
import re

from mappings.mappers import load_codec, mapper_names
from tests.support.table import each_row
from tools.docs.mappers import mappings_page

PAGE = mappings_page()
MAPPERS = [name for name in mapper_names() if load_codec(name).options]
BLOCKS = [json.loads(text) for text in re.findall(r"```json\n(.*?)\n```", PAGE, re.DOTALL)]


@each_row("name", MAPPERS)
def test_every_mapper_is_on_the_page_with_its_options(name: str) -> None:
    section = PAGE.partition(f"## {name}\n")[2].partition("\n## ")[0]
    assert section
    assert [option.name for option in load_codec(name).options if f"| `{option.name}` |" not in section] == []


@each_row("block", BLOCKS[1:], ids=lambda block: block["own"]["mappingEngine"])
def test_the_definitions_on_the_page_can_be_used(block: dict[str, dict[str, dict[str, object]]]) -> None:
    codec = load_codec(str(block["own"]["mappingEngine"]))
    configured = codec.configure(block["own"]["options"])
    assert configured is not codec
    assert type(configured) is type(codec)


def test_the_page_has_definitions_of_known_mappers_each_once() -> None:
    named = [block["own"]["mappingEngine"] for block in BLOCKS[1:]]
    assert len(named) >= 8
    assert named == sorted(set(named) & {*MAPPERS, "ReactiveStreamsIO"})


def test_every_option_explains_itself() -> None:
    short = [
        (name, option.name)
        for name in MAPPERS
        for option in load_codec(name).options
        if not (option.description.endswith(".") and option.example is not None)
    ]
    assert short == []
