"""Random connection documents over HTTP: each is stored, or refused with the path of the error.

Management is the real one here, and so is the journal; brokers are not.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any, cast

import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from connectivity.api.app import application
from connectivity.config.api_settings import ApiSettings
from connectivity.connections.lifecycle import Status
from connectivity.maintenance.erasure import Eraser
from connectivity.monitoring.prometheus import PrometheusRegistry
from connectivity.security.keys import new_key
from tests.support.api.fake_erasures import Erasures
from tests.support.api.fake_management import client_of
from tests.support.dice import examples
from tests.support.in_process.connection_management import ManagementHarness
from tests.support.random_documents import USABLE, from_schema, nearly_usable

SLOW_TO_MAKE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
usual = settings(max_examples=examples(40), suppress_health_check=SLOW_TO_MAKE)
long = settings(max_examples=examples(1000), suppress_health_check=SLOW_TO_MAKE)
documents = st.one_of(nearly_usable(), nearly_usable(), from_schema)
PATH = "/api/2/connections/site"
JSON = {"content-type": "application/json"}


def app_of(harness: ManagementHarness) -> FastAPI:
    return application(
        PrometheusRegistry(), lambda: (True, {}), ApiSettings(), cast(Eraser, Erasures()), harness.manager
    )


async def put(document: dict[str, Any]) -> None:
    """Replace a document, and check the result."""
    with tempfile.TemporaryDirectory() as folder:
        harness = await ManagementHarness(Path(folder), (new_key(),)).started()
        harness.broker = (Status.OPEN, "connected")
        try:
            async with client_of(app_of(harness)) as client:
                kind = document["connectionType"] if isinstance(document.get("connectionType"), str) else ""
                first = next((each for each in USABLE if each["connectionType"] == kind), USABLE[0])
                made = await client.put(PATH, json={**first, "id": "site"})
                assert made.status_code == 201, made.text
                before = await client.get(PATH)
                answer = await client.put(PATH, content=_written(document), headers=JSON)
                found = await client.get(PATH)
                after = found.json()
                if answer.status_code == 204:
                    assert (before.headers["etag"], found.headers["etag"]) == ('"rev:1"', '"rev:2"')
                    # The returned document can be put again, and changes only the revision.
                    again = await client.put(PATH, json=after)
                    assert again.status_code == 204, again.text
                    assert (await client.get(PATH)).json() == after
                    return
                assert answer.status_code in (400, 409), answer.text
                error = answer.json()
                assert error["error"]
                assert error["message"]
                assert all(problem["path"] and problem["found"] for problem in error.get("problems", ()))
                assert after == before.json()
        finally:
            await harness.store.close()


def _written(document: dict[str, Any]) -> bytes:
    """Encode a document with the ID of its path, as another ID would be refused for that alone."""
    return json.dumps({**document, "id": "site"}).encode()


@usual
@given(documents)
def test_a_document_that_is_put_is_stored_or_refused_with_its_place(document: dict[str, Any]) -> None:
    asyncio.run(put(document))


@pytest.mark.soak(shard="api")
@long
@given(documents)
def test_many_documents_that_are_put(document: dict[str, Any]) -> None:
    asyncio.run(put(document))
