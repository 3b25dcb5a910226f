"""Permissions of streams, by real policies and keys, and the end of sessions that lose them.

Case numbers are those of the cases for Streamr.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from connectivity.sessions.streamr import access
from connectivity.twins.decider import Decider
from mappings.ids import EntityId, EntityType
from mappings.streams.stream_id import partition_id
from mappings.timestamps import utc_text
from spark_store.journal import erasure
from spark_store.journal.journal import Journal
from tests.support.dice import THOROUGH, dice
from tests.support.in_process.service import LAMP, NOW, command, until
from tests.support.in_process.streamr import (
    KEY,
    OPERATOR,
    OTHER,
    PUBLIC,
    WRITER,
    StreamrHarness,
    error,
    offsets,
    on_policy,
    publish,
    resend,
    source,
    subscribe,
    subscribed,
    unsubscribe,
)

pytestmark = pytest.mark.usefixtures("harnesses")

PUMP = "/entries/pump/resources"
LAMP_STREAM = "things/acme.site:lamp-7"
CLIENTS = source("in", "acme:clients")
ALL = {"grant": ["READ", "WRITE"], "revoke": []}


def granting(*permissions: str) -> dict[str, list[str]]:
    return {"grant": list(permissions), "revoke": []}


ROLES = {
    "policyId": "acme.site:roles",
    "entries": {
        "operator": {"subjects": {"acme:operator": {"type": "t"}}, "resources": {"policy:/": ALL}},
        "pump": {"subjects": {"streamr:pump": {"type": "t"}}, "resources": {"stream:/": granting("READ")}},
    },
}
"""A policy to be imported; the holder of KEY may read every stream by it."""


async def ditto(streamr_harness: StreamrHarness, *payloads: bytes) -> None:
    """Send Ditto commands of the operator in one batch; check that all succeed."""
    before = len(streamr_harness.reported())
    streamr_harness.deliver(*payloads, source=len(streamr_harness.readers) - 1)
    await until(lambda: len(streamr_harness.reported()) >= before + len(payloads))
    responses = streamr_harness.reported()[before:]
    assert all(answer["status"] in (201, 204) for answer in responses), responses


async def now_may(streamr_harness: StreamrHarness, resources: Mapping[str, Any]) -> None:
    """Replace the permissions of the holder of KEY."""
    await ditto(streamr_harness, on_policy("modify", PUMP, resources))


def denial(stream: str, partition: int = 0) -> str:
    return f"Not authorized to subscribe to stream {stream} and partition {partition}"


# --- at a request -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stream", "key"), [("tank", "wrong"), ("tank", OTHER), ("tank", None), ("none", KEY)])
async def test_cases_s19_s20_r23_requests_without_read_permission_are_refused_and_start_no_stream(
    stream: str, key: str
) -> None:
    streamr_harness = await StreamrHarness.filled(CLIENTS, messages=3)
    (refused,) = await streamr_harness.exchange("a", subscribe(key, stream=stream))
    assert (error(refused)["error"], error(refused)["status"]) == (denial(stream), 403)
    (refused,) = await streamr_harness.exchange("a", resend("s", key, stream=stream, resend_all=True))
    words = f"Failed to request resend from stream {stream} and partition 0: not authorized"
    assert (error(refused)["error"], error(refused)["sub"]) == (words, "s")
    await until(lambda: list(streamr_harness.streams) == [])
    assert streamr_harness.following.followers(partition_id(stream, 0)) == 0


async def test_case_s21_a_client_without_a_key_can_read_a_public_stream() -> None:
    streamr_harness = await StreamrHarness.filled(CLIENTS)
    assert await streamr_harness.exchange("a", subscribe(None, stream=PUBLIC)) == [subscribed(PUBLIC)]
    (refused,) = await streamr_harness.exchange("a", publish(key=None, stream=PUBLIC))
    assert error(refused)["error"] == f"You are not allowed to write to stream {PUBLIC}"
    (refused,) = await streamr_harness.exchange("b", subscribe(OTHER, stream=PUBLIC))
    assert error(refused)["error"] == denial(PUBLIC), "a client with a name has the permissions of that name"


@pytest.mark.parametrize(
    ("stream", "key", "status", "words"),
    [
        ("tank", OTHER, 403, "You are not allowed to write to stream tank"),
        ("tank", None, 403, "You are not allowed to write to stream tank"),
        ("none", KEY, 404, "Stream none not found."),
        ("things/none", KEY, 404, "Stream things/none not found."),
        ("tank", "wrong", 401, "Authentication failed while trying to publish to stream tank"),
        ("none", "wrong", 401, "Authentication failed while trying to publish to stream none"),
    ],
)
async def test_cases_p10_p11_p12_a_message_published_without_permission_is_not_stored(
    stream: str, key: str | None, status: int, words: str
) -> None:
    streamr_harness = await StreamrHarness.filled(CLIENTS)
    newest = streamr_harness.journal.newest_seq()
    (refused,) = await streamr_harness.exchange("a", publish(key=key, stream=stream))
    assert (error(refused)["status"], error(refused)["error"]) == (status, words)
    assert streamr_harness.journal.newest_seq() == newest


async def test_case_p17_a_client_with_write_permission_only_can_publish_but_not_subscribe() -> None:
    streamr_harness = await StreamrHarness.filled(CLIENTS)
    streamr_harness.send("a", publish(key=WRITER))
    await streamr_harness.settled(1)
    assert streamr_harness.stored() == ['{"v":1}']
    (refused,) = await streamr_harness.exchange("a", subscribe(WRITER))
    assert error(refused)["error"] == denial("tank")


async def test_clients_without_a_key_have_the_permissions_of_the_source() -> None:
    streamr_harness = await StreamrHarness.filled(source("in", "streamr:gauge"))
    streamr_harness.send("a", publish(key=None))
    await streamr_harness.settled(1)
    assert streamr_harness.stored() == ['{"v":1}']


async def test_a_change_of_the_policy_applies_to_the_next_request_of_the_same_batch() -> None:
    streamr_harness = await StreamrHarness.filled(CLIENTS)
    await now_may(streamr_harness, {"stream:/pair": ALL})
    (refused,) = await streamr_harness.exchange("a", subscribe())
    assert error(refused)["error"] == denial("tank")
    await now_may(streamr_harness, {"stream:/": granting("READ"), "stream:/pair": {"grant": [], "revoke": ["READ"]}})
    assert await streamr_harness.exchange("a", subscribe(), 1) == [subscribed()]
    (refused,) = await streamr_harness.exchange("a", subscribe(stream="pair"))
    assert error(refused)["error"] == denial("pair")


# --- later --------------------------------------------------------------------------------------------------------------


async def test_case_x06_a_session_that_loses_read_permission_gets_an_error_and_no_more_messages() -> None:
    streamr_harness = await StreamrHarness.filled(CLIENTS)
    for address, request in (("a", subscribe()), ("b", subscribe()), ("c", subscribe(stream="pair", partition=1))):
        await streamr_harness.exchange(address, request)
    await ditto(streamr_harness, on_policy("modify", "/entries/gauge/resources", {"stream:/": ALL}))
    await streamr_harness.exchange("d", subscribe(WRITER))
    await now_may(streamr_harness, {"stream:/tank": granting("WRITE"), "stream:/pair": granting("READ")})
    for address in "ab":
        (refused,) = (await streamr_harness.frames(address, 2))[1:]
        assert (error(refused)["error"], error(refused)["status"]) == (denial("tank"), 403)
        assert (error(refused)["stream"], error(refused)["partition"]) == ("tank", 0)
    streamr_harness.send(
        None, publish(), publish(key=WRITER, stream="pair", pkey="a"), publish(key=WRITER, stream="pair", pkey="b")
    )
    assert offsets(await streamr_harness.frames("d", 2)) == [1]
    await streamr_harness.frames("a", 2)
    await streamr_harness.frames("b", 2)
    (refused,) = await streamr_harness.exchange("a", unsubscribe())
    assert error(refused)["status"] == 404, "nothing is followed any longer"
    assert len(streamr_harness.received("c")) <= 2, "the other stream goes on"
    assert len(list(streamr_harness.streams)) == 2
    assert streamr_harness.following.followers(partition_id("tank", 0)) == 1


async def test_case_x06_messages_committed_with_the_policy_change_are_not_broadcast() -> None:
    streamr_harness = await StreamrHarness.filled(CLIENTS)
    await streamr_harness.exchange("a", subscribe())
    last = len(streamr_harness.readers) - 1
    streamr_harness.deliver(on_policy("modify", PUMP, {"stream:/": granting("WRITE")}), source=last)
    streamr_harness.send(None, publish(), publish())
    await until(lambda: len(streamr_harness.stored()) == 2)
    (refused,) = (await streamr_harness.frames("a", 2))[1:]
    assert error(refused)["error"] == denial("tank")


async def test_case_x06_losing_read_in_the_batch_of_the_subscribe_sends_the_reply_and_then_the_error() -> None:
    streamr_harness = await StreamrHarness.filled(CLIENTS)
    streamr_harness.send("a", subscribe())
    streamr_harness.deliver(on_policy("modify", PUMP, {}), source=len(streamr_harness.readers) - 1)
    first, second = await streamr_harness.frames("a", 2)
    assert first == subscribed()
    assert error(second)["error"] == denial("tank")


async def test_case_x06_a_change_of_an_imported_policy_is_treated_as_well() -> None:
    streamr_harness = await StreamrHarness.filled(CLIENTS)
    await ditto(
        streamr_harness, on_policy("create", "/", ROLES, "roles"), on_policy("modify", "/imports/acme.site:roles", {})
    )
    await ditto(streamr_harness, on_policy("delete", "/entries/pump"))
    assert await streamr_harness.exchange("a", subscribe()) == [subscribed()]
    await ditto(streamr_harness, on_policy("modify", "/entries/more", {"subjects": {}, "resources": {}}, "roles"))
    await streamr_harness.frames("a", 1)
    await ditto(streamr_harness, on_policy("modify", PUMP, {"stream:/pair": granting("READ")}, "roles"))
    assert error((await streamr_harness.frames("a", 2))[1])["error"] == denial("tank")


async def test_case_x06_deleting_the_policy_ends_the_subscriptions() -> None:
    streamr_harness = await StreamrHarness.filled(CLIENTS)
    await streamr_harness.exchange("a", subscribe(stream="tanks", partition=3))
    await ditto(streamr_harness, on_policy("delete", "/"))
    assert error((await streamr_harness.frames("a", 2))[1])["error"] == denial("tanks", 3)


async def test_case_x06_a_thing_under_another_policy_is_followed_by_its_readers_alone() -> None:
    streamr_harness = await StreamrHarness.filled(CLIENTS)
    other = {
        "policyId": "acme.site:other",
        "entries": {
            "operator": {
                "subjects": {"acme:operator": {"type": "t"}},
                "resources": {"policy:/": ALL, "thing:/": ALL},
            }
        },
    }
    await now_may(streamr_harness, {"thing:/": granting("READ")})
    await ditto(
        streamr_harness,
        command("create", value={"policyId": "acme.site:tanks"}),
        on_policy("create", "/", other, "other"),
    )
    assert await streamr_harness.exchange("a", subscribe(stream=LAMP_STREAM)) == [subscribed(LAMP_STREAM)]
    await ditto(streamr_harness, command("modify", "/attributes/on", 1))
    assert offsets(await streamr_harness.frames("a", 2)) == [2]
    await ditto(
        streamr_harness,
        command("modify", "/policyId", "acme.site:other"),
        command("modify", "/attributes/secret", "of others"),
    )
    assert error((await streamr_harness.frames("a", 3))[2])["error"] == denial(LAMP_STREAM)
    assert streamr_harness.following.followers(LAMP) == 0


async def test_the_subscription_of_an_expired_subject_ends_within_a_minute() -> None:
    """The service deletes the subject about a second later; otherwise, all subjects are checked in turn."""
    now = [NOW]
    streamr_harness = await StreamrHarness.filled(CLIENTS, decider=lambda store: Decider(store, now=lambda: now[0]))
    subject = {"type": "t", "expiry": "2030-01-15T08:00:00Z"}
    await ditto(streamr_harness, on_policy("modify", "/entries/pump/subjects", {"streamr:pump": subject}))
    await streamr_harness.exchange("a", subscribe())
    for _ in range(60):
        streamr_harness.sweep_sessions()
    await streamr_harness.frames("a", 1)
    now[0] = NOW.replace(hour=8)
    for _ in range(60):
        streamr_harness.sweep_sessions()
    assert error((await streamr_harness.frames("a", 2))[1])["error"] == denial("tank")


async def test_an_expired_subject_of_an_entry_for_a_namespace_gets_no_later_message() -> None:
    """Before the service deletes the subject, and without a check in turn."""
    now, stream = [NOW], "acme.north:tank"
    streamr_harness = await StreamrHarness.filled(
        source("in", OPERATOR),
        decider=lambda store: Decider(store, now=lambda: now[0]),
        options={"streams": {stream: {"policyId": "acme.site:tanks"}}},
    )
    subjects = {"streamr:pump": {"type": "t", "expiry": "2030-01-15T08:00:00Z"}}
    value = {"subjects": subjects, "resources": {"stream:/": granting("READ")}, "namespaces": ["acme.north"]}
    await ditto(streamr_harness, on_policy("modify", "/entries/pump", value))
    await streamr_harness.exchange("a", subscribe(stream=stream))
    streamr_harness.send(None, publish(key=WRITER, stream=stream))
    await streamr_harness.frames("a", 2)
    now[0] = streamr_harness.now = NOW.replace(hour=8, minute=1)
    streamr_harness.send(None, publish(key=WRITER, stream=stream))
    assert error((await streamr_harness.frames("a", 3))[2])["error"] == denial(stream)


@pytest.mark.parametrize("seed", range(4 if THOROUGH else 1))
async def test_case_x06_only_permitted_sessions_stay_subscribed_while_policies_change_at_random(seed: int) -> None:
    """Policies, one of them imported, change at random, while clients come and go."""
    random_source = dice("streamr rights", seed)
    streamr_harness = await StreamrHarness.filled(CLIENTS)
    await ditto(
        streamr_harness, on_policy("create", "/", ROLES, "roles"), on_policy("modify", "/imports/acme.site:roles", {})
    )
    await now_may(streamr_harness, {})
    granted: dict[str, set[str]] = {"tanks": set(), "roles": {"tank", "pair", "commons"}}
    followed: set[tuple[str, str]] = set()
    responses = Counter[str]()
    for _ in range(120):
        client, stream = random_source.choice("abc"), random_source.choice(("tank", "pair", "commons"))
        match random_source.choice(("subscribe", "subscribe", "unsubscribe", "policy")):
            case "subscribe":
                (frame,) = await streamr_harness.exchange(client, subscribe(stream=stream))
                may = any(stream in streams for streams in granted.values())
                assert frame[1] == (2 if may else 7)
                followed |= {(client, stream)} if may else set()
                responses[client] += 1
            case "unsubscribe":
                (frame,) = await streamr_harness.exchange(client, unsubscribe(stream=stream))
                assert frame[1] == (3 if (client, stream) in followed else 7)
                followed.discard((client, stream))
                responses[client] += 1
            case _:
                policy = random_source.choice(("tanks", "roles"))
                granted[policy] = set(random_source.sample(("tank", "pair", "commons"), random_source.randint(0, 3)))
                resources = {f"stream:/{each}": granting("READ") for each in granted[policy]}
                await ditto(streamr_harness, on_policy("modify", PUMP, resources, policy))
                lost = {each for each in followed if not any(each[1] in streams for streams in granted.values())}
                followed -= lost
                responses.update(client for client, _ in lost)
                for each in "abc":
                    await streamr_harness.frames(each, responses[each])
        for each in ("tank", "pair", "commons"):
            followers = sum(stream == each for _, stream in followed)
            assert streamr_harness.following.followers(partition_id(each, 0)) == followers
    assert followed or responses


async def test_a_replaced_thing_causes_no_permission_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streamr_harness = await StreamrHarness.filled(CLIENTS)
    await now_may(streamr_harness, {"thing:/": granting("READ")})
    await ditto(streamr_harness, command("create", value={"policyId": "acme.site:tanks"}))
    await streamr_harness.exchange("a", subscribe(stream=LAMP_STREAM))
    judged: list[str] = []

    def may_follow(stream: str, *_: object) -> bool:
        judged.append(stream)
        return True

    monkeypatch.setattr(access, "may_follow", may_follow)
    for number in range(3):
        await ditto(
            streamr_harness, command("modify", value={"policyId": "acme.site:tanks", "attributes": {"n": number}})
        )
    assert offsets(await streamr_harness.frames("a", 4)) == [2, 3, 4]
    assert judged == []
    await now_may(streamr_harness, {"thing:/": granting("READ", "WRITE")})
    assert judged == [LAMP_STREAM]


async def test_a_policy_change_that_keeps_read_permission_leaves_the_subscription_open() -> None:
    streamr_harness = await StreamrHarness.filled(CLIENTS)
    await streamr_harness.exchange("a", subscribe())
    for resources in ({"stream:/": granting("READ")}, {"stream:/tank": ALL}, {"stream:/": ALL, "thing:/": ALL}):
        await now_may(streamr_harness, resources)
        await now_may(streamr_harness, resources)
    streamr_harness.send(None, publish())
    assert offsets(await streamr_harness.frames("a", 2)) == [1]


async def test_policy_changes_are_watched_only_while_a_session_is_subscribed() -> None:
    streamr_harness = await StreamrHarness.filled(CLIENTS)
    assert len(streamr_harness.store.policy_changes._listeners) == 0
    for _ in range(2):
        await streamr_harness.exchange("a", subscribe())
        assert len(streamr_harness.store.policy_changes._listeners) == 1
        await streamr_harness.exchange("a", unsubscribe())
        for _ in range(60):
            streamr_harness.sweep_sessions()
        assert len(streamr_harness.store.policy_changes._listeners) == 0
    await streamr_harness.exchange("a", subscribe())
    streamr_harness.close_connection()
    assert len(streamr_harness.store.policy_changes._listeners) == 0


async def test_erasing_the_policy_ends_the_subscriptions(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "journal.db")
    streamr_harness = await StreamrHarness.filled(CLIENTS, journal=journal)
    await streamr_harness.exchange("a", subscribe())
    tanks = EntityId(EntityType.POLICY, "acme.site", "tanks")
    await streamr_harness.store.commits.execute(
        lambda it: erasure.begin(it, "policy", tanks.id, utc_text(NOW), "anna"),
        forgets=streamr_harness.store.snapshot(tanks),
    )
    assert error((await streamr_harness.frames("a", 2))[1])["error"] == denial("tank")
