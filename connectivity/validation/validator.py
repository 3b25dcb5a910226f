"""Validates a connection document, and builds the `Connection` of a valid one.

A document is an object from JSON or YAML. Secret references are resolved first
(`connectivity.connections.secret_references`); problems never show secrets. The models check shapes (`shape`), then come the
rules in the order of Eclipse Ditto's connection model (`checks`), then those of the connection type
(`connectivity.transports`). Unknown fields are problems.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from connectivity.config.documents import MAX_DEPTH, MAX_VALUES, find_surrogates, is_within_limits
from connectivity.config.problems import ROOT, json_path
from connectivity.config.written_schema import SCHEMA_DIALECT
from connectivity.connections.model import Connection, migrate_mapping_context
from connectivity.connections.secret_references import UNLIMITED, ReferenceRules, ResolvedDocument, resolve
from connectivity.errors import DefinitionError, Problem
from connectivity.security import redaction
from connectivity.security.uri import MASK, is_secret_option
from connectivity.transports import connection_types
from connectivity.validation.checks import check
from connectivity.validation.shape import MAX_PROBLEMS, is_within, read_shape

_LEGACY_PATH = "mappingDefinitions.javascript"
_SHORTEST_SECRET = 3


def parse(
    document: object,
    *,
    environ: Mapping[str, str] | None = None,
    base: Path | None = None,
    references: ReferenceRules = UNLIMITED,
) -> Connection:
    """Return the connection of a document. Raises DefinitionError with every problem, up to MAX_PROBLEMS.

    `environ` and `base` are where references to secrets are looked up: the process's environment and the folder that
    relative paths start from (the working folder) by default; `references` say what they may name. The document's secrets
    are redacted everywhere as long as the connection or a copy of it exists (`connectivity.security.redaction`).
    """
    if not is_within_limits(document):
        expected = f"at most {MAX_VALUES} values, nested at most {MAX_DEPTH} deep"
        raise DefinitionError([Problem(ROOT, "a larger document", expected)])
    if problems := find_surrogates(document):
        raise DefinitionError(problems)
    is_legacy = isinstance(document, dict) and document.get("mappingContext") is not None
    written = migrate_mapping_context(document) if isinstance(document, dict) else document
    resolved = resolve(written, environ=environ, base=base, rules=references)
    shape = read_shape(written, resolved.document)
    missing = {problem.path for problem in resolved.problems}
    silent = shape.repaired | missing
    if "uri" in silent:
        # The scheme decides whether a certificate is required; an example replaces the unreadable uri.
        silent |= {"credentials"}
    problems = [problem for problem in shape.problems if problem.path not in missing]
    if shape.connection is not None:
        found = check(shape.connection, shape.repaired)
        reported = (problem for problem in found if not is_within(problem.path, silent))
        problems += islice(reported, MAX_PROBLEMS)
    hidden = _secrets(resolved, shape.connection)
    # Missing references stay in the document, to name what is missing.
    distinct = islice(dict.fromkeys(problems), MAX_PROBLEMS)
    problems = [_without_secrets(problem, hidden, resolved.options) for problem in distinct]
    problems = [*resolved.problems[:MAX_PROBLEMS], *problems]
    if is_legacy:
        problems = [replace(it, path=it.path.replace(_LEGACY_PATH, "mappingContext", 1)) for it in problems]
    if problems or shape.connection is None:
        raise DefinitionError(problems)
    return shape.connection.with_secrets(resolved.options, redaction.remember(hidden))


def _secrets(resolved: ResolvedDocument, connection: Connection | None) -> list[str]:
    """Return all secret texts, longest first: a short one may be part of a long one."""
    secrets = set(resolved.values)
    if connection is not None:
        secrets |= {value for name, value in connection.specific_config.items() if is_secret_option(name)}
        tunnel = connection.ssh_tunnel.credentials if connection.ssh_tunnel else None
        holders = [connection.broker_uri.password, getattr(connection.credentials, "key", None)]
        holders += [getattr(tunnel, "password", None), getattr(tunnel, "private_key", None)]
        secrets |= {holder.get_secret_value() for holder in holders if holder is not None}
    return sorted((text for text in secrets if len(text) >= _SHORTEST_SECRET), key=len, reverse=True)


def _without_secrets(problem: Problem, secrets: Iterable[str], options: Iterable[str]) -> Problem:
    """The problem with whatever secret a rule may have quoted hidden."""

    def hide(text: str) -> str:
        for secret in secrets:
            text = text.replace(secret, MASK)
        return text

    by_reference = problem.path in {json_path("specificConfig", name) for name in options}
    return replace(
        problem,
        found=MASK if by_reference else hide(problem.found),
        expected=hide(problem.expected),
        hint=None if by_reference else problem.hint and hide(problem.hint),
    )


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the model; that of files is in `connectivity.validation.file_schema`."""
    schema = Connection.model_json_schema(by_alias=True)
    schema["properties"]["connectionType"]["enum"] = list(connection_types())
    return {"$schema": SCHEMA_DIALECT, **schema}
