"""A sender without permissions gets the same responses for an entity as for a missing one.

Every command is sent twice, by each of its ways: about an existing entity, and about a missing one. Only the ID may differ
in address, topic, headers, status and texts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from mappings.streamr.auth_keys import fingerprint
from tests.support.in_process.reactive_streams_io import raw, subscribe
from tests.support.in_process.search_client import has_thing
from tests.support.in_process.service import (
    OWNER,
    ConnectionHarness,
    command,
    document,
    pause,
    policy,
    searching,
    source,
    streaming,
    until,
)
from tests.support.reactive_streams_io.conversation import H

pytestmark = pytest.mark.usefixtures("harnesses")

STRANGER = "acme:stranger"
THERE, MISSING = "lamp-7", "lamp-8"
LAMP = {
    "definition": "acme:lamp:1",
    "attributes": {"on": True},
    "features": {"f": {"definition": ["a:b:1"], "properties": {"p": 1}, "desiredProperties": {"p": 1}}},
}
MERGE_PATCH = {"content_type": "application/merge-patch+json"}
PARTS: dict[str, Any] = {
    "/policyId": "acme.site:lamp-7",
    "/definition": "acme:lamp:1",
    "/attributes": {"on": True},
    "/attributes/on": True,
    "/attributes/none": 1,
    "/features": {"f": {}},
    "/features/f": {},
    "/features/none": {},
    "/features/f/definition": ["a:b:1"],
    "/features/f/properties": {"p": 1},
    "/features/f/properties/p": 1,
    "/features/f/desiredProperties": {"p": 1},
    "/features/f/desiredProperties/p": 1,
}
ENTRY: dict[str, Any] = {"subjects": {}, "resources": {}}
POLICY_PARTS: dict[str, Any] = {
    "/entries": {},
    "/entries/OWNER": ENTRY,
    "/entries/NONE": ENTRY,
    "/entries/OWNER/subjects": {},
    f"/entries/OWNER/subjects/{OWNER}": {"type": "test"},
    "/entries/OWNER/resources": {},
    "/entries/OWNER/resources/thing:/": {"grant": [], "revoke": []},
    "/entries/OWNER/importable": "never",
    "/entries/OWNER/namespaces": [],
    "/entries/OWNER/allowedAdditions": [],
    "/entries/OWNER/references": [],
    "/imports": {},
    "/imports/acme.site:foreign": {},
    "/imports/acme.site:foreign/entries": [],
}
TAGS: list[dict[str, Any]] = [
    {"if_match": '"rev:1"'},
    {"if_match": "*"},
    {"if_match": '"rev:9"'},
    {"if_none_match": '"rev:1"'},
    {"if_none_match": "*"},
    {"if_match": "garbage"},
]
CONDITIONS: list[dict[str, Any]] = [
    {"condition": "eq(attributes/on,true)"},
    {"condition": "not(exists(attributes/on))"},
    {"condition": "exists(features/*/properties/p)"},
    {"condition": "eq(_revision,1)"},
    {"condition": "eq("},
]
ALWAYS: list[dict[str, Any]] = [{}, {"requested_acks": ["twin-persisted"]}, {"timeout": "3s"}, *TAGS]
WRITES: list[dict[str, Any]] = [
    *CONDITIONS,
    {"if_equal": "skip"},
    {"if_equal": "skip-minimizing-merge"},
    {"put_metadata": [{"key": "*/unit", "value": 1}]},
    {"delete_metadata": "*/unit"},
    {"merge_thing_patch_conditions": {"on": "eq(attributes/on,true)"}},
]
READS: list[dict[str, Any]] = [
    *CONDITIONS,
    {"get_metadata": "*/unit"},
    {"live_channel_condition": "eq(attributes/on,true)"},
    {"at_historical_revision": 1},
    {"at_historical_revision": 9},
    {"at_historical_timestamp": "2020-01-01T00:00:00Z"},
    {"at_historical_timestamp": "2040-01-01T00:00:00Z"},
]
UNCREATABLE: list[Any] = [
    {"policyId": "acme.site:foreign"},
    {"policyId": "acme.site:none"},
    {"_policy": {"entries": {}}},
    {"_policy": policy(OWNER)},
    {"_copyPolicyFrom": "acme.site:foreign"},
    {"_copyPolicyFrom": "{{ ref:things/acme.site:lamp-7/policyId }}"},
    {"attributes": {"large": "x" * 103_000}},
    5,
]
"""Values of things that a subject without permissions must not create."""

POLICIES = [
    {"entries": {}},
    policy(OWNER),
    {**policy(STRANGER), "imports": {"acme.site:foreign": {}}},
    {**policy(STRANGER), "imports": {"acme.site:none": {}}},
]


def on_policy(action: str, path: str = "/", value: Any = ..., **headers: Any) -> bytes:
    return document(f"acme.site/lamp-7/policies/commands/{action}", path, value, **headers)


def thing_commands() -> Iterator[bytes]:
    for path, value in {"/": ..., **PARTS}.items():
        for headers in (*ALWAYS, *READS):
            yield command("retrieve", path, **headers)
        for headers in (*ALWAYS, *WRITES):
            yield command("delete", path, **headers)
            if path != "/":
                yield command("modify", path, value, **headers)
                yield command("merge", path, value, **MERGE_PATCH, **headers)
        if path != "/":
            yield command("modify", path, {"\u00e4": 5}, condition="exists(attributes/on)")
            yield command("modify", path)
    yield command("merge", "/attributes", {"on": 1})
    yield command("retrieve", "/", fields="thingId,_policy,_revision")
    yield document("acme.site/_/things/twin/commands/retrieve", "/", {"thingIds": ["acme.site:lamp-7"]})


def creations() -> Iterator[bytes]:
    """Yield commands that create things, also ones that fail only because of their entity tags."""
    for value in UNCREATABLE:
        for headers in (*ALWAYS, *WRITES):
            yield command("create", "/", value, **headers)
            yield command("modify", "/", value, **headers)
            yield command("merge", "/", value, **MERGE_PATCH, **headers)
    for tags in TAGS:
        if "if_match" in tags:
            yield command("create", "/", {}, **tags)
            yield command("modify", "/", {}, **tags)
            yield command("merge", "/", {"attributes": {}}, **MERGE_PATCH, **tags)


def policy_commands() -> Iterator[bytes]:
    for path, value in {"/": ..., **POLICY_PARTS}.items():
        for headers in (*ALWAYS, {"policy_view": "resolved"}, {"policy_view": "none"}, *READS[-4:]):
            yield on_policy("retrieve", path, **headers)
        for headers in (*ALWAYS, {"if_equal": "skip"}, {"condition": "eq("}):
            yield on_policy("delete", path, **headers)
            if path != "/":
                yield on_policy("modify", path, value, **headers)
    for made in POLICIES:
        for headers in (*ALWAYS, {"if_equal": "skip"}):
            yield on_policy("create", "/", {**made, "policyId": "acme.site:lamp-7"}, **headers)
            yield on_policy("modify", "/", made, **headers)
    for tags in TAGS:
        if "if_match" in tags:
            yield on_policy("create", "/", {**policy(STRANGER), "policyId": "acme.site:lamp-7"}, **tags)
            yield on_policy("modify", "/", policy(STRANGER), **tags)


def live_signals() -> Iterator[bytes]:
    ways: list[dict[str, Any]] = [{}, {"timeout": "3s"}, {"timeout": 0}, {"requested_acks": ["live-response"]}]
    for headers in ways:
        for box in ("/inbox", "/outbox", "/features/f/inbox", "/features/none/outbox"):
            yield document("acme.site/lamp-7/things/live/messages/ask", f"{box}/messages/ask", 1, **headers)
        for path in ("/", "/attributes/on", "/features/f/properties/p", f"/attributes/{'x' * 300}"):
            for action in ("create", "modify", "merge", "delete", "retrieve"):
                topic = f"acme.site/lamp-7/things/live/commands/{action}"
                yield document(topic, path, {} if action in ("create", "modify", "merge") else ..., **headers)
            for action in ("created", "modified", "merged", "deleted"):
                topic = f"acme.site/lamp-7/things/live/events/{action}"
                yield document(topic, path, ... if action == "deleted" else {}, **headers)


SETS = {
    "commands on things": thing_commands,
    "creations of things": creations,
    "commands on policies": policy_commands,
    "live signals": live_signals,
}


async def site(terms: dict[str, Any], id: str = "acme.site:lamp-7") -> ConnectionHarness:
    """A lamp under a policy with this ID, which exists in any case, and a stranger at the second source."""
    streamr = {"streams": {}, "authKeys": {"pump": fingerprint("K")}}
    answered = {"replyTarget": {"address": "{{ header:reply-to }}"}}
    harness = ConnectionHarness(
        source(),
        source("stranger", STRANGER),
        source("streamr", STRANGER, payloadMapping=["streamr"], **answered),
        source("rsio", STRANGER, payloadMapping=["rsio"], **answered),
        mappingDefinitions={
            "streamr": {"mappingEngine": "Streamr", "options": streamr},
            "rsio": {"mappingEngine": "ReactiveStreamsIO", "options": {}},
        },
    )
    await has_thing(harness, "other", policy={"policyId": "acme.site:foreign", **policy(OWNER)})
    await has_thing(harness, THERE, LAMP, policy={"policyId": id, **terms})
    if id != "acme.site:lamp-7":
        made = document("acme.site/lamp-7/policies/commands/modify", "/", terms)
        assert (await harness.ask(made))["status"] == 201
    harness.forget()
    return harness


def about(payload: bytes, name: str) -> bytes:
    return payload.replace(THERE.encode(), name.encode())


async def answered(
    harness: ConnectionHarness, payloads: list[bytes], name: str, **options: Any
) -> list[tuple[Any, ...]]:
    """Return all responses to payloads about an entity, with the ID masked."""
    harness.forget()
    harness.deliver(*(about(payload, name) for payload in payloads), **options)
    await until(lambda: len(harness.outcomes) == len(payloads))
    await pause()
    return [
        (each.address, each.envelope.payload.replace(name.encode(), THERE.encode()), dict(each.envelope.headers))
        for each in harness.link.published
    ]


UNDONE = {"grant": ["READ", "WRITE"], "revoke": ["READ", "WRITE"]}
NOTHING = policy(OWNER)
REVOKED = policy(OWNER)
REVOKED["entries"]["NONE"] = {
    "subjects": {STRANGER: {"type": "test"}},
    "resources": {f"{type}:/": UNDONE for type in ("thing", "policy", "message")},
}
ELSEWHERE = policy(OWNER)
ELSEWHERE["entries"]["STREAMS"] = {
    "subjects": {STRANGER: {"type": "test"}},
    "resources": {"stream:/": {"grant": ["READ", "WRITE"], "revoke": []}},
}


@pytest.mark.parametrize("sent", SETS)
@pytest.mark.parametrize(
    ("terms", "id"),
    [(NOTHING, "acme.site:lamp-7"), (REVOKED, "acme.site:lamp-7"), (ELSEWHERE, "acme.site:terms")],
    ids=["no entry", "a revoked grant", "streams alone"],
)
async def test_an_entity_without_permissions_is_answered_for_like_a_missing_one(
    terms: dict[str, Any], id: str, sent: str
) -> None:
    harness = await site(terms, id)
    payloads = []
    for number, payload in enumerate(SETS[sent]()):
        message = json.loads(payload)
        message["headers"]["correlation-id"] = f"c-{number}"
        payloads.append(json.dumps(message).encode())
    there = await answered(harness, payloads, THERE, source=1)
    missing = await answered(harness, payloads, MISSING, source=1)
    assert len(there) > len(payloads) * 3 // 4, "live events and requests that nobody waits for are not answered"
    for (_, text, _), (_, other, _) in zip(there, missing, strict=True):
        assert text == other
        assert json.loads(text)["status"] != 403 or b"created" in text, text
    assert there == missing
    assert [event.revision for event in harness.history()] == [1]


WAITING: dict[str, Any] = {"requested_acks": ["nobody:there"], "correlation_id": "c-1"}


def commands_that_wait() -> Iterator[bytes]:
    for path, value in PARTS.items():
        yield command("modify", path, value, **WAITING)
        yield command("delete", path, **WAITING)
    yield command("delete", "/", **WAITING)
    for value in UNCREATABLE:
        for action in ("create", "modify"):
            yield command(action, "/", value, **WAITING)


async def test_a_stranger_does_not_learn_that_a_signal_with_its_correlation_id_waits() -> None:
    harness = await site(NOTHING)
    harness.deliver(command("modify", "/attributes/on", False, **WAITING))
    await until(lambda: harness.waiting_deliveries() == 1)
    for payload in commands_that_wait():
        there = await answered(harness, [payload], THERE, source=1)
        assert there == await answered(harness, [payload], MISSING, source=1), payload
    assert harness.waiting_deliveries() == 1


@pytest.mark.parametrize("action", ["modify", "merge"])
async def test_a_modify_of_the_whole_that_would_create_a_missing_thing_is_not_found(action: str) -> None:
    """The one case in which the answers differ: the other one has created a thing."""
    for id in ("acme.site:lamp-7", "acme.site:terms"):
        harness = await site(NOTHING, id)
        for value in ({"attributes": {"on": 1}}, {"_policy": policy(STRANGER)}):
            answer = await harness.ask(command(action, "/", value, **MERGE_PATCH), source=1)
            assert (answer["status"], answer["value"]["error"]) == (404, "things:thing.notfound")
        answer = await harness.ask(on_policy("modify", "/", policy(STRANGER)), source=1)
        assert (answer["status"], answer["value"]["error"]) == (404, "policies:policy.notfound")
        answer = await harness.ask(
            command("create", "/", {"_policy": {"policyId": "a:new", **policy(STRANGER)}}), source=1
        )
        assert (answer["status"], answer["value"]["error"]) == (409, "things:thing.conflict")


async def test_replays_and_searches_of_hidden_and_missing_things_give_the_same_answers() -> None:
    harness = await site(REVOKED)
    found = []
    for name in (THERE, MISSING):
        responses = []
        topics = {
            "streaming": about(streaming("subscribeForPersistedEvents", {}), name),
            "policies": about(
                document("acme.site/lamp-7/policies/streaming/subscribeForPersistedEvents", "/", {}), name
            ),
            "search": about(searching("subscribe", {"filter": 'eq(thingId,"acme.site:lamp-7")'}), name),
        }
        for asking in topics.values():
            harness.forget()
            harness.deliver(asking.replace(b"{}}", b'{}, "headers": {"correlation-id": "c"}}'), source=1)
            await until(lambda: harness.answers())
            (created,) = harness.answers()
            key = created["value"]["subscriptionId"]
            request = json.loads(asking)
            request["topic"] = request["topic"].rpartition("/")[0] + "/request"
            request["value"] = {"subscriptionId": key, "demand": 5}
            harness.deliver(json.dumps(request).encode(), source=1)
            await until(lambda: len(harness.answers()) > 1)
            responses += [json.dumps(each).replace(key, "KEY").replace(name, THERE) for each in harness.answers()]
        found.append([_without_correlation(text) for text in responses])
    assert found[0] == found[1]


def _without_correlation(text: str) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(text)
    message["headers"].pop("correlation-id", None)
    return message


STREAMR = [
    {"type": type, "stream": f"{kind}/acme.site:lamp-7", "authKey": "K", **more}
    for kind in ("things", "policies")
    for type, more in (
        ("subscribe", {}),
        ("resend", {"sub": "a", "resend_last": 1}),
        ("publish", {"msg": json.dumps({"topic": "acme.site/lamp-7/things/twin/commands/delete", "path": "/"})}),
        ("publish", {"msg": json.dumps({"topic": "acme.site/lamp-7/policies/commands/delete", "path": "/"})}),
    )
]


RSIO = [
    raw(H, subscribe(f"{kind}/acme.site:lamp-7/{what}", 1, 1))
    for kind in ("things", "policies")
    for what in ("history", "live")
]


async def test_streams_of_hidden_and_missing_entities_give_the_same_answers() -> None:
    harness = await site(REVOKED)
    requests = [*((2, json.dumps(each).encode()) for each in STREAMR), *((3, each) for each in RSIO)]
    for number, (origin, request) in enumerate(requests):
        there = await answered(harness, [request], THERE, source=origin, reply_to=f"x{number}", correlation_id="c")
        missing = await answered(harness, [request], MISSING, source=origin, reply_to=f"y{number}", correlation_id="c")
        assert there, request
        assert str(missing).replace(f"'y{number}'", f"'x{number}'") == str(there), request
