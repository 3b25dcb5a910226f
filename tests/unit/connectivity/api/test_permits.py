"""Permissions of a token's `grants`: subjects, streams, and operations on connections."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from fastapi import FastAPI, Request

from connectivity.api.authentication import Caller
from connectivity.api.connections import COMMANDS
from connectivity.api.permits import permit_of
from connectivity.config.api_settings import TokenRole
from connectivity.errors import OperationRefused
from tests.support.api.fake_management import (
    DOCUMENT,
    FakeManagement,
    app_of,
    ask,
    client_of,
    management_with_connection,
    shared_app,
)

TOKENS = [
    {"name": "writer", "token": "w" * 16, "role": "write", "subjects": ["acme:w"]},
    {"name": "admin", "token": "a" * 16, "role": "admin", "subjects": ["acme:a"]},
]
WRITER, ADMIN = ({"authorization": f"Bearer {letter * 16}"} for letter in "wa")


@cache
def guarded() -> FastAPI:
    return shared_app(tokens=TOKENS)


@cache
def granting() -> FastAPI:
    return shared_app(tokens=[{**TOKENS[0], "grants": ["acme:fleet", "depot:*"]}, TOKENS[1]])


def with_subjects(*subjects: str) -> dict[str, Any]:
    source = {"addresses": ["cmd/2"], "qos": 1, "authorizationContext": ["acme:fleet", *subjects]}
    return {**DOCUMENT, "id": "site", "sources": [source]}


def own() -> FakeManagement:
    """A connection with a subject that the token may grant."""
    management = FakeManagement()
    management._store(with_subjects())
    return management


@pytest.mark.parametrize(
    "subject",
    ["acme:admin", "acme:fleet-2", "depot", "depots:a", " depot:a", "Depot:a", "{{ header:a }}", "acme:{{ header:a }}"],
)
async def test_a_subject_that_a_token_may_not_grant_is_refused_by_name(subject: str) -> None:
    for method, path, management in (
        ("POST", "/api/2/connections", None),
        ("POST", "/api/2/connections?dry-run=true", None),
        ("PUT", "/api/2/connections/site", None),
        ("PUT", "/api/2/connections/site", own()),
    ):
        answer = await ask(management, method, path, granting(), headers=WRITER, json=with_subjects(subject))
        assert (answer.status_code, answer.json()["error"]) == (403, "api:subject.forbidden")
        assert answer.json()["message"] == (
            f"sources[0].authorizationContext[1]: found \"{subject}\", which the 'grants' of the token 'writer' do not "
            "include."
        )
        assert answer.json()["description"] == "expected one of: acme:fleet, depot:*"


async def test_subjects_of_targets_need_to_be_granted_too() -> None:
    target = {"address": "out", "qos": 1, "topics": ["_/_/things/twin/events"], "authorizationContext": ["acme:admin"]}
    sent = {**with_subjects(), "targets": [target]}
    answer = await ask(own(), "PUT", "/api/2/connections/site", granting(), headers=WRITER, json=sent)
    assert answer.status_code == 403
    assert answer.json()["message"].startswith('targets[0].authorizationContext[0]: found "acme:admin"')


async def test_connections_with_subjects_that_a_token_may_not_grant_are_not_its_own() -> None:
    """It can neither replace them, even by one that it may have, nor open, close or delete them."""
    text = {**WRITER, "content-type": "text/plain"}
    requests: list[tuple[str, str, dict[str, Any]]] = [
        ("PUT", "/api/2/connections/site", {"headers": WRITER, "json": with_subjects()}),
        ("DELETE", "/api/2/connections/site", {"headers": WRITER}),
        ("DELETE", "/api/2/connectivity/subscriptions/ab", {"headers": WRITER}),
        *(("POST", "/api/2/connections/site/command", {"headers": text, "content": it}) for it in COMMANDS),
    ]
    for method, path, sent in requests:
        management = management_with_connection()
        answer = await ask(management, method, path, granting(), **sent)
        assert (answer.status_code, answer.json()["error"]) == (403, "api:subject.forbidden"), (method, path, sent)
        assert management.stored == management_with_connection().stored


def test_a_stored_connection_that_is_invalid_has_unknown_subjects() -> None:
    request = Request({"type": "http", "state": {"caller": Caller("writer", TokenRole.WRITE, grants=("acme:*",))}})
    with pytest.raises(OperationRefused, match="cannot compare its subjects"):
        permit_of(request)(None, ())


def with_streams(*, of: str = "", keys: Sequence[str] = (), used: Sequence[str] = ("s",)) -> dict[str, Any]:
    """A source of the Streamr protocol. `of`: the policy of the stream `tanks`."""
    options = {"streams": {"tanks": {"policyId": of}} if of else {}, "authKeys": dict.fromkeys(keys, "0" * 64)}
    source = {"addresses": ["cmd/2"], "qos": 1, "authorizationContext": ["acme:fleet"], "payloadMapping": list(used)}
    definitions = {"s": {"mappingEngine": "Streamr", "options": options}}
    return {**DOCUMENT, "id": "new", "sources": [source], "mappingDefinitions": definitions}


@cache
def granting_streamr() -> FastAPI:
    return shared_app(tokens=[{**TOKENS[0], "grants": ["acme:fleet", "streamr:anonymous", "streamr:pump"]}])


async def test_subjects_of_the_streamr_protocol_need_to_be_granted_too() -> None:
    for app, sent, refused in (
        (granting(), with_streams(), 'sources[0].payloadMapping[0]: found "streamr:anonymous"'),
        (granting(), with_streams(used=["Streamr"]), 'sources[0].payloadMapping[0]: found "streamr:anonymous"'),
        (
            granting_streamr(),
            with_streams(keys=["pump", "valve"]),
            'mappingDefinitions.s.options.authKeys.valve: found "streamr:valve"',
        ),
    ):
        answer = await ask(
            management_with_connection(), "PUT", "/api/2/connections/new", app, headers=WRITER, json=sent
        )
        assert (answer.status_code, answer.json()["error"]) == (403, "api:subject.forbidden")
        assert answer.json()["message"].startswith(refused)
    sent = with_streams(keys=["pump"])
    answer = await ask(
        management_with_connection(), "PUT", "/api/2/connections/new", granting_streamr(), headers=WRITER, json=sent
    )
    assert answer.status_code == 201


async def test_a_token_with_grants_cannot_choose_the_policy_of_a_stream() -> None:
    """Its policy would decide who can read and write all messages of the stream."""
    management = management_with_connection()
    management._store({**with_streams(of="acme:tanks"), "id": "streams"})
    for engine in ("Streamr", "ReactiveStreamsIO"):
        sent = with_streams(of="acme:own")
        sent["mappingDefinitions"]["s"] = {
            "mappingEngine": engine,
            "options": {"streams": {"tanks": {"policyId": "acme:own"}}},
        }
        answer = await ask(management, "PUT", "/api/2/connections/new", granting_streamr(), headers=WRITER, json=sent)
        assert (answer.status_code, answer.json()["error"]) == (403, "api:stream.forbidden")
        assert answer.json()["message"] == (
            "mappingDefinitions.s.options.streams.tanks: found the policy \"acme:own\", which the token 'writer' "
            "may not assign to a stream."
        )
    sent = with_streams(of="acme:tanks")
    answer = await ask(management, "PUT", "/api/2/connections/new", granting_streamr(), headers=WRITER, json=sent)
    assert answer.status_code == 201


async def test_a_token_may_grant_its_subjects_and_all_of_its_namespaces() -> None:
    sent = with_subjects("depot:a", "depot:{{ header:name }}")
    answer = await ask(own(), "PUT", "/api/2/connections/site", granting(), headers=WRITER, json=sent)
    assert answer.status_code == 204


async def test_admins_and_tokens_without_grants_may_grant_every_subject() -> None:
    for app, headers in ((granting(), ADMIN), (guarded(), WRITER)):
        sent = with_subjects("other:root", "{{ header:subject }}")
        answer = await ask(
            management_with_connection(), "PUT", "/api/2/connections/site", app, headers=headers, json=sent
        )
        assert answer.status_code == 204


async def test_a_token_with_an_empty_list_may_grant_nothing() -> None:
    app = app_of(management_with_connection(), tokens=[{**TOKENS[0], "grants": []}])
    async with client_of(app) as client:
        answer = await client.put("/api/2/connections/site", headers=WRITER, json=with_subjects())
    assert (answer.status_code, answer.json()["description"]) == (403, "expected one of: none")
