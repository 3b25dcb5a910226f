"""Random connection documents: each has problems, each with its path, or it is usable.

A usable document is the same after a round trip through the store, and through a copy with masked secrets; and what is made
of it at the start of a connection is made.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings

from tests.support.dice import examples
from tests.support.judged_documents import check, judged
from tests.support.random_documents import USABLE, anything, from_schema, nearly_usable

SLOW_TO_MAKE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
usual = settings(max_examples=examples(100), suppress_health_check=SLOW_TO_MAKE)
long = settings(max_examples=examples(5000), suppress_health_check=SLOW_TO_MAKE)


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
