"""Whatever a document says: it has problems, each with its place, or it can be used. Nothing else happens.

What can be used comes back the same from the store and from whoever was shown it with its secrets masked; and what is made
of it at the start of a connection is made.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, example, given, settings

from connectivity.config.documents import is_encodable
from connectivity.connections.model import Connection
from connectivity.connections.vault import Vault, mask
from connectivity.errors import DefinitionError
from connectivity.management.client import Backoff
from connectivity.management.supervisor import Supervisor
from connectivity.monitoring.prometheus import PrometheusRegistry
from connectivity.security.keys import new_key
from connectivity.transports.base import ConsumeOptions
from connectivity.validation.limitations import caveats, notes
from connectivity.validation.validator import parse
from tests.support.dice import examples
from tests.support.in_process.service import NOW
from tests.support.random_documents import USABLE, anything, from_schema, nearly_usable
from tests.support.validation import validate

VAULT = Vault([new_key()])
SLOW_TO_MAKE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
usual = settings(max_examples=examples(100), suppress_health_check=SLOW_TO_MAKE)
long = settings(max_examples=examples(5000), suppress_health_check=SLOW_TO_MAKE)


def judged(document: Any) -> Connection | None:
    """The connection of a document, or None for one with problems, once it is clear that nothing else happens."""
    problems = validate(document, environ={})
    for problem in problems:
        assert problem.path
        assert problem.found
        assert problem.expected
        assert ":" in problem.code or problem.code.count(".") > 1
        assert is_encodable(str(problem))
        assert len(str(problem)) < 4000
    if not problems:
        return parse(document, environ={})
    with pytest.raises(DefinitionError) as refused:
        parse(document, environ={})
    assert list(refused.value.problems) == problems
    return None


def begun(connection: Connection) -> None:
    """All that is made of a connection before it is opened, and told of it."""
    list(notes(connection))
    list(caveats(connection))
    supervisor = Supervisor(
        connection,
        cast(Any, SimpleNamespace(dispatcher=SimpleNamespace(handle=print), components=())),
        cast(Any, SimpleNamespace(note_committed=print)),
        PrometheusRegistry(),
        pauses=Backoff(),
        consume=ConsumeOptions(1),
        now=lambda: NOW,
    )
    assert supervisor.connection is connection


def check(document: Any) -> None:
    connection = judged(document)
    if connection is None:
        return
    begun(connection)
    written = json.loads(json.dumps(document))
    assert parse(written, environ={}) == connection
    sealed = VAULT.seal(written)
    assert parse(VAULT.unseal(sealed), environ={}) == connection
    shown = mask(sealed)
    assert parse(VAULT.keep(shown, sealed), environ={}) == connection
    assert mask(shown) == shown


@pytest.mark.parametrize("document", USABLE, ids=[document["connectionType"] for document in USABLE])
async def test_the_documents_that_changes_start_at_can_be_used(document: dict[str, Any]) -> None:
    assert judged(document) is not None
    check(document)


@usual
@given(from_schema)
async def test_a_document_by_chance_has_problems_or_can_be_used(document: Any) -> None:
    check(document)


@usual
@given(nearly_usable())
async def test_a_document_that_is_wrong_in_few_places_has_problems_or_can_be_used(document: Any) -> None:
    check(document)


@usual
@given(anything)
@example({"sources": [[]], "targets": {}, "mappingContext": 7})
def test_arbitrary_input_is_reported_as_an_invalid_document(document: Any) -> None:
    assert judged(document) is None


@pytest.mark.soak(shard="properties")
@long
@given(from_schema)
async def test_many_documents_by_chance(document: Any) -> None:
    check(document)


@pytest.mark.soak(shard="properties")
@long
@given(nearly_usable())
async def test_many_documents_that_are_wrong_in_few_places(document: Any) -> None:
    check(document)
