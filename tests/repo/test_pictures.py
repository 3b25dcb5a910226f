"""The pictures of the demo are drawn from its output."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from tools.docs import pictures

OUTPUT = "\x1b[1mdevices report on MQTT\x1b[0m ──\n boiler MQTT -> create\n\n\x1b[1mthe end\x1b[0m\n all is well\n"


def test_a_picture_shows_the_lines_of_the_scenes_that_it_names() -> None:
    lines = pictures.parts_of(pictures.scenes(OUTPUT), "devices report")
    drawn = ElementTree.fromstring(pictures.picture(lines))
    text = "".join(drawn.itertext()).replace("\xa0", " ")
    assert "boiler MQTT -> create" in text
    assert "all is well" not in text


def test_a_scene_that_the_demo_does_not_print_is_an_error() -> None:
    with pytest.raises(LookupError, match="no part titled 'a storm'"):
        pictures.parts_of(pictures.scenes(OUTPUT), "a storm")


@pytest.mark.parametrize("name", pictures.SCENES)
def test_pictures_load_nothing_from_elsewhere(name: str) -> None:
    picture = (pictures.PICTURES / f"{name}.svg").read_text(encoding="utf-8")
    assert "url(http" not in picture
    assert "@font-face" not in picture
