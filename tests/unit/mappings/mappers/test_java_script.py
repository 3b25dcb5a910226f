"""JavaScript: what its options say, and that it is the Ditto protocol around its scripts."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from mappings.mappers import load_codec
from mappings.mappers.scripts import Scripts
from mappings.model.envelope import Envelope
from mappings.model.signals import Command
from mappings.options import InvalidMapperOptions
from tests.contract.payload_mapper import MapperBehaviors, mapper


class TestJavaScript(MapperBehaviors):
    name = "JavaScript"
    options: ClassVar = {"incomingScript": "function mapToDittoProtocolMsg() {}"}

    def test_a_mapper_without_its_required_options_is_refused(self) -> None:
        """One script of two."""
        codec = load_codec(self.name)
        assert codec.needs_definition
        for written in ({}, {"incomingScript": " ", "outgoingScript": None}):
            with pytest.raises(InvalidMapperOptions) as caught:
                codec.configure(written)
            assert [problem.steps for problem in caught.value.problems] == [("incomingScript",)]


@pytest.mark.parametrize(
    ("options", "scripts"),
    [
        ({"incomingScript": "a", "outgoingScript": None, "loadLongJS": "true"}, Scripts("a", "", ("long",))),
        ({"outgoingScript": "b", "loadBytebufferJS": "false"}, Scripts("", "b")),
        (
            {"incomingScript": "a", "outgoingScript": "b", "loadBytebufferJS": True, "loadLongJS": True},
            Scripts("a", "b", ("long", "bytebuffer")),
        ),
    ],
)
def test_options_name_scripts_and_libraries(options: dict[str, Any], scripts: Scripts) -> None:
    assert mapper("JavaScript", options).scripts == scripts


@pytest.mark.parametrize(
    ("options", "charset"), [({"incomingScript": "a"}, "utf-8"), ({"outgoingScript": "b"}, "latin-1")]
)
def test_only_deliveries_without_incoming_script_have_the_charset_of_their_content_type(
    options: dict[str, Any], charset: str
) -> None:
    text = '{"topic":"acme.site/lamp-7/things/twin/commands/modify","path":"/attributes/name","value":"Grüße"}'
    headers = {"content-type": "application/json; charset=ISO-8859-1"}
    (signal,) = mapper("JavaScript", options).decode(Envelope(text.encode(charset), headers), None)
    assert isinstance(signal, Command)
    assert signal.value == '"Grüße"'.encode()


def test_other_mappers_have_no_scripts() -> None:
    assert load_codec("Ditto").scripts is None
