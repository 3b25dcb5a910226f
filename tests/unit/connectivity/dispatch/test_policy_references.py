"""Things that keep a policy from being deleted: those whose writer could read it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.in_process.service import OWNER, ConnectionHarness, command, document, policy, source

pytestmark = pytest.mark.usefixtures("harnesses")

DEVICE, STRANGER = "acme:device", "acme:stranger"
SHARED = "acme.site:shared"
ENTRIES = {
    **policy(OWNER)["entries"],
    "DEVICES": {
        "subjects": {DEVICE: {"type": "test"}},
        "resources": {"thing:/": {"grant": ["READ", "WRITE"], "revoke": []}},
    },
}


def on_policy(action: str, path: str = "/", value: Any = ...) -> bytes:
    return document(f"acme.site/shared/policies/commands/{action}", path, value)


class Site:
    """An owner with a policy, a device with permissions on its things, and a stranger."""

    def __init__(self) -> None:
        self.harness = ConnectionHarness(source(), source("device", DEVICE), source("stranger", STRANGER))

    async def send(self, payload: bytes, by: int = 0) -> int:
        return int((await self.harness.ask(payload, source=by))["status"])

    async def fill(self) -> None:
        assert await self.send(on_policy("create", value={"policyId": SHARED, "entries": ENTRIES})) == 201
        for by, (name, subject) in enumerate((("lamp", OWNER), ("sensor", DEVICE), ("bait", STRANGER))):
            assert await self.send(command("create", value={"_policy": policy(subject)}, name=name), by) == 201

    async def deletion(self) -> tuple[int, str]:
        answer = await self.harness.ask(on_policy("delete"))
        return answer["status"], answer.get("value", {}).get("message", "")


WAYS = {
    "policyId": ("modify", "/policyId", SHARED, {}),
    "thing": ("modify", "/", {"policyId": SHARED}, {}),
    "merge": ("merge", "/", {"policyId": SHARED}, {"content_type": "application/merge-patch+json"}),
    "merge of policyId": ("merge", "/policyId", SHARED, {"content_type": "application/merge-patch+json"}),
}


@pytest.mark.parametrize("way", WAYS)
async def test_a_stranger_cannot_keep_a_policy_from_being_deleted_by_naming_it(way: str) -> None:
    site = Site()
    await site.fill()
    action, path, value, headers = WAYS[way]
    assert await site.send(command(action, path, value, name="bait", **headers), by=2) == 204
    assert await site.deletion() == (204, "")


@pytest.mark.parametrize("way", WAYS)
async def test_a_reader_of_a_policy_keeps_it_from_being_deleted_by_naming_it(way: str) -> None:
    site = Site()
    await site.fill()
    action, path, value, headers = WAYS[way]
    assert await site.send(command(action, path, value, name="lamp", **headers)) == 204
    assert await site.deletion() == (409, f"The policy '{SHARED}' cannot be deleted: 1 thing names it.")


@pytest.mark.parametrize(("by", "status"), [(0, 409), (2, 204)], ids=["reader", "stranger"])
async def test_a_reference_is_known_before_it_is_durable(by: int, status: int) -> None:
    site = Site()
    await site.fill()
    name = ("lamp", "sensor", "bait")[by]
    site.harness.forget()
    naming = command("modify", "/policyId", SHARED, name=name)
    site.harness.deliver(naming, source=by)
    site.harness.deliver(on_policy("delete"))
    await site.harness.settled(2)
    assert [answer["status"] for answer in site.harness.answers()] == [204, status]


async def test_a_missing_policy_can_be_named_and_is_created_by_any_subject() -> None:
    site = Site()
    await site.fill()
    assert await site.send(command("modify", "/policyId", "acme.site:later", name="bait"), by=2) == 204
    later = document("acme.site/later/policies/commands/create", value={"policyId": "acme.site:later", **policy(OWNER)})
    assert await site.send(later) == 201
    assert await site.send(document("acme.site/later/policies/commands/delete")) == 204
    assert await site.send(later) == 201


async def test_writing_a_whole_thing_changes_no_reference() -> None:
    """A device that cannot read the policy of its thing changes no reference when it replaces the thing."""
    site = Site()
    await site.fill()
    assert await site.send(command("create", value={"policyId": SHARED}, name="kept")) == 201
    for value in ({}, {"policyId": SHARED, "attributes": {"a": 1}}):
        assert await site.send(command("modify", "/", value, name="kept"), by=1) == 204
    assert (await site.deletion())[0] == 409
    assert await site.send(command("delete", name="kept")) == 204
    assert await site.send(command("modify", "/policyId", SHARED, name="sensor"), by=1) == 204
    for value in ({}, {"policyId": SHARED, "attributes": {"a": 1}}):
        assert await site.send(command("modify", "/", value, name="sensor"), by=1) == 204
    assert await site.send(command("modify", "/policyId", SHARED, name="sensor"), by=1) == 204
    # A reader says so.
    assert await site.send(command("modify", "/policyId", SHARED, name="sensor")) == 204
    assert await site.send(command("modify", "/policyId", SHARED, name="sensor"), by=1) == 204
    assert (await site.deletion())[0] == 409
    assert await site.send(command("modify", "/policyId", "acme.site:lamp", name="sensor")) == 204
    assert await site.deletion() == (204, "")
