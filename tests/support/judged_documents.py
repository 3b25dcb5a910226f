"""Properties of each connection document: it has problems, each with its path, or it is usable.

A usable document is the same after the store, and after a reader has received it with masked secrets; and all parts
that the start of a connection creates can be created.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

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
from tests.support.in_process.service import NOW
from tests.support.validation import validate

VAULT = Vault([new_key()])


def judged(document: Any) -> Connection | None:
    """Return the connection of a valid document, or None. Raises AssertionError for an incomplete problem."""
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


def begin(connection: Connection) -> None:
    """Create all parts and notes of a connection that exist before it is opened."""
    list(notes(connection))
    list(caveats(connection))
    supervisor = Supervisor(
        connection,
        cast(Any, SimpleNamespace(dispatcher=SimpleNamespace(handle=print), components=(), turns=None)),
        cast(Any, SimpleNamespace(note_committed=print)),
        PrometheusRegistry(),
        pauses=Backoff(),
        consume=ConsumeOptions(1),
        now=lambda: NOW,
    )
    assert supervisor.connection is connection


def check(document: Any) -> None:
    """Check all properties; needs a running event loop."""
    connection = judged(document)
    if connection is None:
        return
    begin(connection)
    written = json.loads(json.dumps(document))
    assert parse(written, environ={}) == connection
    sealed = VAULT.seal(written)
    assert parse(VAULT.unseal(sealed), environ={}) == connection
    shown = mask(sealed)
    assert parse(VAULT.keep(shown, sealed), environ={}) == connection
    assert mask(shown) == shown
