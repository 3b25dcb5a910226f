"""A fake `ConnectionManager` on dictionaries, and HTTP clients of the API in the same process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, cast

import httpx
from fastapi import FastAPI

from connectivity.api.app import application
from connectivity.config.api_settings import ApiSettings
from connectivity.connections.model import Connection
from connectivity.errors import DefinitionError, OperationRefused
from connectivity.maintenance.erasure import Eraser
from connectivity.management.definition import (
    Definition,
    Judge,
    Owner,
    PastRevision,
    Permit,
    SampleMessage,
    is_past_revision,
    permit_all,
)
from connectivity.management.manager import ConnectionManager
from connectivity.management.permission_requests import PermissionRequest, PermissionRequests
from connectivity.monitoring.prometheus import PrometheusRegistry
from connectivity.security.on_behalf import BehalfAudit
from connectivity.security.uri import mask_uri
from connectivity.subscriptions.search_requests import HttpSearch, HttpSearchPage, SearchRequests
from connectivity.twins.context import CurrentStateLookup
from connectivity.twins.decider import Decision, decide
from connectivity.validation.validator import parse
from mappings.errors import Fault
from mappings.model.signals import Command
from tests.support.api.described_answers import check_response
from tests.support.api.fake_erasures import Erasures

DOCUMENT: Mapping[str, Any] = {
    "id": "site",
    "connectionType": "mqtt-5",
    "connectionStatus": "closed",
    "uri": "tcp://fleet:pass-word@broker.acme.example:1883",
    "sources": [{"addresses": ["cmd/#"], "qos": 1, "authorizationContext": ["integration:fleet"]}],
}
START = datetime(2026, 2, 3, 9, 0, tzinfo=UTC)


def missing(connection_id: str) -> OperationRefused:
    return OperationRefused(Fault(404, "connectivity:connection.notfound", f"There is no connection {connection_id}."))


def owned_by_file(connection_id: str) -> OperationRefused:
    words = f"The connection {connection_id} is owned by site.yaml."
    return OperationRefused(Fault(409, "connectivity:connection.conflict", words))


def _decide(command: Command, subjects: Sequence[str]) -> Decision:
    """Decide a command without any entity."""
    return decide(command, subjects, CurrentStateLookup(lambda _: None, lambda: ""), "")


@dataclass
class FakeManagement:
    """Stores revisions, records the calls, and raises the errors that a test sets in `refuses`."""

    stored: dict[str, list[Definition]] = field(default_factory=dict)
    requests: list[tuple[Any, ...]] = field(default_factory=list)
    refuses: dict[str, Exception] = field(default_factory=dict)
    next_offset: int | None = None
    """The error to raise, by the name of the method."""
    made: int = 0

    def _do(self, name: str, *arguments: Any) -> None:
        self.requests.append((name, *arguments))
        if (refusal := self.refuses.get(name)) is not None:
            raise refusal

    def _known(self, connection_id: str) -> Definition:
        if connection_id not in self.stored:
            raise missing(connection_id)
        return self.stored[connection_id][-1]

    def _connections(self) -> list[Connection]:
        return [parse(dict(it[-1].document)) for it in self.stored.values()]

    def _require(self, permit: Permit, connection_id: str) -> Definition:
        found = self._known(connection_id)
        _check(found.document, permit, self._connections())
        return found

    def _store(self, document: Mapping[str, Any], permit: Permit = permit_all) -> Definition:
        _check(document, permit, self._connections())
        revisions = self.stored.setdefault(document["id"], [])
        shown = {**document, "uri": mask_uri(document["uri"])}
        at = START + timedelta(hours=len(revisions))
        revisions.append(Definition(document["id"], shown, len(revisions) + 1, Owner.API, at))
        return revisions[-1]

    def ids(self) -> Sequence[str]:
        return sorted(self.stored)

    async def definitions(self) -> Sequence[Definition]:
        self._do("definitions")
        return [self.stored[it][-1] for it in self.ids()]

    async def definition(self, connection_id: str, at: PastRevision | None = None) -> Definition:
        self._do("definition", connection_id, at)
        self._known(connection_id)
        for it in reversed(self.stored[connection_id]):
            if at is None or is_past_revision(at, it.revision, it.modified):
                return it
        raise OperationRefused(Fault(404, "connectivity:connection.history.notfound", "Nothing is known of it."))

    async def revisions(self, connection_id: str) -> Sequence[Mapping[str, Any]]:
        self._known(connection_id)
        return [
            {"revision": it.revision, "modified": it.modified, "by": "anna", "action": "modify"}
            for it in reversed(self.stored[connection_id])
        ]

    async def create(self, document: Mapping[str, Any], by: str, permit: Permit = permit_all) -> Definition:
        self._do("create", dict(document), by)
        if not document.get("id"):
            self.made += 1
            document = {**document, "id": f"made-{self.made}"}
        if document["id"] in self.stored if isinstance(document["id"], str) else False:
            raise OperationRefused(Fault(409, "connectivity:connection.conflict", "The id is taken."))
        return self._store({"connectionStatus": "closed", **document}, permit)

    async def put(
        self, connection_id: str, document: Mapping[str, Any], by: str, judge: Judge, permit: Permit = permit_all
    ) -> tuple[Definition, bool]:
        self._do("put", connection_id, dict(document), by)
        is_new = connection_id not in self.stored
        judge(None if is_new else self._known(connection_id).revision)
        if not is_new and self._known(connection_id).owner is Owner.FILE:
            raise owned_by_file(connection_id)
        if not is_new:
            self._require(permit, connection_id)
        return self._store({**document, "id": connection_id}, permit), is_new

    async def delete(self, connection_id: str, by: str, judge: Judge, permit: Permit = permit_all) -> None:
        self._do("delete", connection_id, by)
        self._require(permit, connection_id)
        judge(self._known(connection_id).revision)
        if self._known(connection_id).owner is Owner.FILE:
            raise owned_by_file(connection_id)
        del self.stored[connection_id]

    async def _command(self, name: str, connection_id: str, by: str, permit: Permit) -> None:
        self._do(name, connection_id, by)
        self._require(permit, connection_id)

    async def open(self, connection_id: str, by: str, permit: Permit = permit_all) -> None:
        await self._command("open", connection_id, by, permit)

    async def close(self, connection_id: str, by: str, permit: Permit = permit_all) -> None:
        await self._command("close", connection_id, by, permit)

    async def reset_metrics(self, connection_id: str, by: str, permit: Permit = permit_all) -> None:
        await self._command("reset_metrics", connection_id, by, permit)

    async def enable_logs(self, connection_id: str, by: str, permit: Permit = permit_all) -> None:
        await self._command("enable_logs", connection_id, by, permit)

    async def reset_logs(self, connection_id: str, by: str, permit: Permit = permit_all) -> None:
        await self._command("reset_logs", connection_id, by, permit)

    async def test(
        self, document: Mapping[str, Any], sample: SampleMessage | None = None, permit: Permit = permit_all
    ) -> Mapping[str, Any]:
        self._do("test", dict(document), sample)
        _check({**document, "id": "on-trial"}, permit)
        return {"status": "open"}

    def status(self, connection_id: str) -> Mapping[str, Any]:
        self._known(connection_id)
        return {"connectionId": connection_id, "connectionStatus": "open", "liveStatus": "open"}

    def metrics(self, connection_id: str) -> Mapping[str, Any]:
        self._known(connection_id)
        return {"connectionId": connection_id, "connectionMetrics": {}}

    def logs(self, connection_id: str) -> Mapping[str, Any]:
        self._known(connection_id)
        return {"connectionId": connection_id, "connectionLogs": []}

    def subscription_count(self) -> int:
        return 5

    def subscriptions(self, limit: int = 1_000) -> Sequence[Mapping[str, Any]]:
        self._do("subscriptions", limit)
        return [{"id": "abcd", "connection": "site", "entity": "acme:lamp", "demand": 1, "sent": 0, "idle": 0.5}]

    async def cancel_subscription(self, prefix: str, by: str, permit: Permit = permit_all) -> None:
        self._do("cancel", prefix, by)
        if not "abcd".startswith(prefix):
            raise OperationRefused(Fault(404, "connectivity:subscription.notfound", "No open subscription begins so."))
        for connection in self._connections():
            permit(connection, self._connections())

    async def things(self, inquiry: HttpSearch) -> HttpSearchPage:
        self._do("things", inquiry)
        cursor = "bmV4dA" if inquiry.options is None else None
        return HttpSearchPage(b'[{"thingId":"acme:lamp"}]', cursor, self.next_offset)

    async def count(self, inquiry: HttpSearch) -> int:
        self._do("count", inquiry)
        return 7

    async def plan(self, inquiry: HttpSearch) -> Mapping[str, Any]:
        self._do("plan", inquiry)
        text = "in the order of IDs; 7 things, order +thingId\nevery thing"
        found = {"accessPath": "in the order of IDs", "order": "+thingId", "things": 7, "candidates": None}
        return {**found, "isIndexed": True, "text": text}

    async def check(self, request: PermissionRequest) -> bytes:
        self._do("check", request)
        checks = PermissionRequests(_decide, cast(BehalfAudit, None))
        return await checks.check(replace(request, instead=None))

    async def audit(self, limit: int = 100) -> Sequence[Mapping[str, Any]]:
        self._do("audit", limit)
        return [{"at": START, "by": "anna", "action": "delete", "connection": "site", "revision": 2}][:limit]


def _check(document: Mapping[str, Any], permit: Permit, known: Sequence[Connection] = ()) -> None:
    try:
        connection = parse(dict(document))
    except DefinitionError as error:
        fault = Fault(400, error.problems[0].code, "The connection has problems.")
        raise OperationRefused(fault, error.problems) from None
    permit(connection, known)


def management_with_connection(*, by_file: bool = False, connection_id: str = "site") -> FakeManagement:
    """Return a management with one connection; with `by_file`, a file owns it."""
    management = FakeManagement()
    found = management._store({**DOCUMENT, "id": connection_id})
    if by_file:
        management.stored[connection_id] = [replace(found, owner=Owner.FILE)]
    return management


def app_of(
    management: FakeManagement | None = None,
    erasures: Erasures | None = None,
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    readiness: Callable[[], tuple[bool, Mapping[str, Any]]] = lambda: (True, {"status": "ready"}),
    **settings: Any,
) -> FastAPI:
    """Return the API over these fakes. `settings` are those of `api`."""
    found = management or FakeManagement()
    return application(
        PrometheusRegistry(),
        readiness,
        ApiSettings(**settings),
        cast(Eraser, erasures or Erasures()),
        cast(ConnectionManager, found),
        cast(SearchRequests, found),
        sleep,
        permissions=cast(PermissionRequests, found),
    )


def client_of(app: FastAPI, address: str = "127.0.0.1") -> httpx.AsyncClient:
    """Return a client of the API with this address, which the caller closes."""
    transport = httpx.ASGITransport(app=app, client=(address, 4711))
    hooks = {"response": [check_response]}
    return httpx.AsyncClient(transport=transport, base_url="http://localhost:8080", event_hooks=hooks)


class _Relay:
    """Forwards each call to the management of the current test."""

    def __init__(self) -> None:
        self.management: ContextVar[FakeManagement] = ContextVar("management")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.management.get(), name)


_RELAY = _Relay()


def shared_app(**settings: Any) -> FastAPI:
    """Return an API that many tests share, each with its own management: creating one takes long."""
    return app_of(cast(FakeManagement, _RELAY), **settings)


@cache
def _open_app() -> FastAPI:
    return shared_app()


async def ask(
    management: FakeManagement | None, method: str, path: str, app: FastAPI | None = None, **more: Any
) -> httpx.Response:
    """Send a request, by default without a token. `more` are further arguments of httpx."""
    token = _RELAY.management.set(management or FakeManagement())
    try:
        async with client_of(app or _open_app()) as client:
            return await client.request(method, path, **more)
    finally:
        _RELAY.management.reset(token)
