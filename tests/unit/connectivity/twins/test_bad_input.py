"""Unusual and invalid commands without a broker: codec, decision, journal, response.

The vectors have the response to a command on a thing and, in `back`, the bytes of a later retrieve of the same path. The
history has the stored bytes as sent.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from mappings.ids import EntityId, EntityType
from tests.support.in_process.service import LAMP, ConnectionHarness, command, creation, document, policy
from tests.support.paths import VECTORS

pytestmark = pytest.mark.usefixtures("harnesses")

CASES = json.loads((VECTORS / "twins" / "bad_input.json").read_text(encoding="utf-8"))
DEEPEST = 200


def written(action: str, path: str, text: str | None, **headers: Any) -> bytes:
    """A command whose value is written exactly so."""
    whole = json.loads(command(action, path, **{name.replace("-", "_"): value for name, value in headers.items()}))
    head = json.dumps(whole, ensure_ascii=False)
    return (head if text is None else f'{head[:-1]},"value":{text}}}').encode("utf-8", "surrogatepass")


def value_text(payload: bytes) -> str:
    """Return the bytes of the value in a response."""
    return payload.partition(b',"value":')[2].rpartition(b',"status":')[0].decode()


async def a_lamp() -> ConnectionHarness:
    harness = ConnectionHarness()
    harness.deliver(
        command("create", value={"_policy": policy("acme:owner"), "attributes": {"text": "t"}, "features": {"f": {}}})
    )
    await harness.settled(1)
    harness.forget()
    return harness


@pytest.mark.parametrize("vector", CASES, ids=lambda vector: vector["about"])
async def test_bad_input_is_refused_and_odd_input_comes_back(vector: dict[str, Any]) -> None:
    harness = await a_lamp()
    before = len(harness.history())
    payload = written(vector["action"], vector["path"], vector.get("text"), **vector.get("headers", {}))
    answer = await harness.ask(payload)
    assert answer["status"] == vector["status"]
    if "error" in vector:
        assert answer["value"]["error"] == vector["error"]
        assert len(harness.history()) == before
        return
    assert harness.history()[-1].value == vector["text"].encode()
    assert harness.history()[-1].path == vector.get("stored", vector["path"])
    if "back" in vector:
        await harness.ask(command("retrieve", vector["path"]))
        assert value_text(harness.link.published[-1].envelope.payload) == vector["back"]


@pytest.mark.parametrize(("spare", "status"), [(0, 201), (1, 400)])
@pytest.mark.parametrize("brackets", [("[", "]"), ('{"a":', "}")], ids=["arrays", "objects"])
async def test_nesting_ends_at_its_limit(spare: int, status: int, brackets: tuple[str, str]) -> None:
    """The levels of the path are included, because a whole thing is stored."""
    harness = await a_lamp()
    opened, closed = brackets
    levels = DEEPEST - 2 + spare
    text = opened * (levels - 1) + ("[]" if opened == "[" else "{}") + closed * (levels - 1)
    answer = await harness.ask(written("modify", "/attributes/x", text))
    assert answer["status"] == status
    assert status == 201 or answer["value"]["error"] == "json.invalid"


async def test_a_hundred_thousand_open_brackets_are_refused() -> None:
    harness = await a_lamp()
    answer = await harness.ask(written("modify", "/attributes/x", "[" * 100_000 + "]" * 100_000))
    assert (answer["status"], answer["value"]["error"]) == (400, "json.invalid")


@pytest.mark.parametrize(
    ("namespace", "name", "status"),
    [
        ("acme.site", "ä", 400),
        ("acme.site", "n" * 247, 400),
        ("acme.site", "n" * 246, 201),
        ("acme.site", "tab\t", 400),
        ("acme.site", "_", 400),
        ("acme.7x", "n", 400),
        ("acme..x", "n", 400),
        (".acme", "n", 400),
        ("", "n", 201),
        ("a-b.c_d", "n", 201),
        ("acme.site", 'a:b #%?*,"Ł水', 201),
    ],
)
async def test_case_14_15_names_and_namespaces(namespace: str, name: str, status: int) -> None:
    harness = ConnectionHarness()
    answer = await harness.ask(
        document(f"{namespace}/{name}/things/twin/commands/create", value={"_policy": policy("acme:owner")})
    )
    assert answer["status"] == status
    if status == 201:
        assert answer["value"]["thingId"] == f"{namespace}:{name}"
        assert harness.journal.latest(EntityId(EntityType.THING, namespace, name)) == 1
    else:
        assert answer["value"]["error"] == "things:id.invalid"


@pytest.mark.parametrize("id", ["acme.site:a/b", "acme.site:ä", "acme.site:" + "n" * 247, "nothing"])
async def test_case_14_an_id_in_the_value_follows_the_same_rules(id: str) -> None:
    answer = await ConnectionHarness().ask(command("create", value={"thingId": id}))
    assert (answer["status"], answer["value"]["error"]) == (400, "things:id.invalid")


async def test_case_14_a_slash_in_a_name_makes_another_topic() -> None:
    answer = await ConnectionHarness().ask(document("acme.site/a/b/things/twin/commands/create", value={}))
    assert (answer["status"], answer["value"]["error"]) == (400, "protocoladapter:unknown.topicpath")


async def test_nothing_that_was_refused_is_in_the_history() -> None:
    harness = await a_lamp()
    for vector in CASES:
        harness.deliver(written(vector["action"], vector["path"], vector.get("text"), **vector.get("headers", {})))
    harness.deliver(creation(correlation_id="last"))
    await harness.ended(len(CASES) + 1)
    accepted = sum(answer["status"] < 300 for answer in harness.answers())
    assert len(harness.history(LAMP)) == 1 + accepted
    assert [event.revision for event in harness.history(LAMP)] == list(range(1, accepted + 2))
