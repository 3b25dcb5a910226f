"""The JSON Schema of connection files, compared with `validate`."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings

from connectivity.transports import connection_types
from connectivity.validation.file_schema import file_schema
from tests.support.dice import examples
from tests.support.file_schema import complaints, is_accepted
from tests.support.random_documents import USABLE, nearly_usable
from tests.support.table import each_row
from tests.support.validation import validate
from tests.support.vectors.connections import Case, base_document, load_cases

CASES = [case for name in ("shared", "amqp_091", "kafka") for case in load_cases(name)]
BROKEN = [case for case in CASES if case.problems]

REFUSED = 132
"""The number of invalid documents that the schema refuses; only `validate` finds the rest.

An example is an invalid filter.
"""

WHOLE_NUMBERS = {
    "amqp-091": "requestedHeartbeat",
    "kafka": "throttlingLimit",
    "mqtt": "lastWillQos",
    "mqtt-5": "lastWillQos",
}
"""An option of each connection type."""


def without(name: str) -> dict[str, Any]:
    document = base_document("shared")
    del document[name]
    return document


@each_row("case", [case for case in CASES if not case.problems], ids=str)
def test_the_schema_accepts_a_document_without_problems(case: Case) -> None:
    assert complaints(case.document) == []


@pytest.mark.parametrize("document", USABLE, ids=lambda document: str(document["connectionType"]))
def test_the_schema_accepts_a_document_of_each_type(document: dict[str, Any]) -> None:
    assert complaints(document) == []


def test_the_schema_refuses_four_fifths_of_the_broken_documents() -> None:
    refused = [case for case in BROKEN if not is_accepted(case.document)]
    assert (len(refused), len(BROKEN)) == (REFUSED, 166)


@given(nearly_usable())
@settings(max_examples=examples(100), deadline=None)
def test_the_schema_accepts_whatever_has_no_problems(document: dict[str, Any]) -> None:
    if not validate(copy.deepcopy(document), environ={}):
        assert complaints(document) == []


def test_a_file_may_hold_a_list_of_connections() -> None:
    document = base_document("shared")
    assert complaints([document, base_document("kafka")]) == []
    assert not is_accepted([document, {**document, "uri": "amqp://h"}])
    assert complaints([]) == []


def test_in_a_file_the_id_is_optional() -> None:
    assert complaints(without("id")) == []
    assert not is_accepted(without("uri"))


@pytest.mark.parametrize(
    ("type_of", "more"),
    [
        ("shared", {"uri": "${env:BROKER_URI}"}),
        ("shared", {"uri": "amqp://bridge:${file:p/word}@${env:HOST}:${env:PORT}/fleet"}),
        ("shared", {"uri": "AMQPS://h:5671", "ca": "${file:ca.pem}"}),
        ("shared", {"credentials": {"type": "client-cert", "cert": "${file:c.crt}", "key": "*****"}}),
        ("shared", {"specificConfig": {"requestedHeartbeat": "${env:BEAT}"}}),
        ("shared", {"ca": "\x1d\n"}),
        ("kafka", {"specificConfig": {"bootstrapServers": "${env:SERVERS}", "saslMechanism": "${env:MECHANISM}"}}),
    ],
)
def test_references_masked_secrets_and_blanks_may_stand_for_values(type_of: str, more: dict[str, Any]) -> None:
    assert complaints(base_document(type_of) | more) == []


@pytest.mark.parametrize("text", ["1_0", "\u0661", "many"])
@pytest.mark.parametrize("document", USABLE, ids=lambda document: str(document["connectionType"]))
def test_whole_numbers_of_options_have_the_digits_from_0_to_9(document: dict[str, Any], text: str) -> None:
    name = WHOLE_NUMBERS[document["connectionType"]]
    changed = {**document, "specificConfig": {**(document.get("specificConfig") or {}), name: text}}
    assert not is_accepted(changed)
    assert [problem.path for problem in validate(changed, environ={})] == [f"specificConfig.{name}"]


@pytest.mark.parametrize("name", connection_types())
def test_every_connection_type_has_its_part(name: str) -> None:
    definitions = file_schema()["$defs"]
    types = [it["if"]["properties"]["connectionType"]["const"] for it in definitions["Connection"]["allOf"][1:]]
    assert types == list(connection_types())
    assert definitions[f"{name}.specificConfig"]["additionalProperties"] is False


def test_every_field_and_option_is_described() -> None:
    definitions = file_schema()["$defs"]
    models = [definitions["Connection"], *(definitions[f"{name}.specificConfig"] for name in connection_types())]
    bare = [name for model in models for name, field in model["properties"].items() if not field.get("description")]
    assert bare == []
