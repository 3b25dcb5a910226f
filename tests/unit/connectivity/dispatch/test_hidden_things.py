"""A subject that can read no part of a thing learns nothing of it by any request."""

from __future__ import annotations

from typing import Any

import pytest

from connectivity.targets.signal_context import TWIN_EVENTS
from tests.support.in_process.search_client import Searcher, has_thing
from tests.support.in_process.service import (
    OWNER,
    ConnectionHarness,
    command,
    document,
    pause,
    policy,
    source,
    streaming,
    target,
    until,
)
from tests.support.in_process.two_connections import other_connection

pytestmark = pytest.mark.usefixtures("harnesses")

VIEWER = "acme:viewer"
GRANT, REVOKE = {"grant": ["READ"], "revoke": []}, {"grant": [], "revoke": ["READ"]}
BOTH = {"grant": ["READ"], "revoke": ["READ"]}

UNDONE = [
    pytest.param([{"thing:/attributes": BOTH}], id="a grant and a revoke of one resource"),
    pytest.param([{"thing:/attributes": GRANT}, {"thing:/attributes": REVOKE}], id="in two entries"),
    pytest.param([{"thing:/": GRANT}, {"thing:/": REVOKE}], id="of the whole thing"),
    pytest.param([{"thing:/attributes/none": GRANT}], id="a grant for nothing that exists"),
]


def terms(resources: list[dict[str, Any]]) -> dict[str, Any]:
    """The owner's policy with an entry of the viewer for each of these."""
    made = policy(OWNER)
    for number, each in enumerate(resources):
        made["entries"][f"VIEW{number}"] = {"subjects": {VIEWER: {"type": "test"}}, "resources": each}
    return made


async def site_with(resources: list[dict[str, Any]]) -> tuple[ConnectionHarness, ConnectionHarness]:
    """A site whose second source is the viewer's, and a connection with the viewer's target."""
    harness = ConnectionHarness(source(), source("viewer", VIEWER))
    watching = await other_connection(harness, target(TWIN_EVENTS, authorizationContext=[VIEWER])).follow()
    await has_thing(harness, "lamp-7", {"attributes": {"on": True}}, policy=terms(resources))
    await has_thing(harness, "lamp-8", {"attributes": {"on": True}}, policy=terms([{"thing:/attributes": GRANT}]))
    return harness, watching


@pytest.mark.parametrize("resources", UNDONE)
async def test_a_subject_that_can_read_only_the_id_retrieves_and_finds_nothing(resources: list[dict[str, Any]]) -> None:
    harness, _ = await site_with(resources)
    for path, headers in (("/", {}), ("/attributes", {}), ("/", {"at_historical_revision": 1}), ("/", {"fields": "a"})):
        answer = await harness.ask(command("retrieve", path, **headers), source=1)
        assert answer["status"] == 404, answer
    several = document(
        "_/_/things/twin/commands/retrieve", value={"thingIds": ["acme.site:lamp-7", "acme.site:lamp-8"]}
    )
    assert [each["thingId"] for each in (await harness.ask(several, source=1))["value"]] == ["acme.site:lamp-8"]
    searcher = Searcher(harness, source=1)
    assert await searcher.all() == ["acme.site:lamp-8"]
    assert await searcher.all('eq(thingId,"acme.site:lamp-7")') == []
    key = await searcher.subscribe(aggregation={})
    assert await searcher.request(key) == [[{"count": 1}]]


@pytest.mark.parametrize("resources", UNDONE)
async def test_a_subject_that_can_read_only_the_id_replays_no_history(resources: list[dict[str, Any]]) -> None:
    harness, _ = await site_with(resources)
    harness.forget()
    harness.deliver(streaming("subscribeForPersistedEvents", {}, correlation_id="s"), source=1)
    await until(lambda: harness.answers())
    key = harness.answers()[0]["value"]["subscriptionId"]
    harness.deliver(streaming("request", {"subscriptionId": key, "demand": 5}), source=1)
    await until(lambda: len(harness.answers()) > 1)
    assert harness.answers()[1]["value"]["error"]["error"] == "things:thing.notfound"


@pytest.mark.parametrize("resources", UNDONE)
async def test_a_subject_that_can_read_only_the_id_gets_no_event(resources: list[dict[str, Any]]) -> None:
    harness, watching = await site_with(resources)
    await harness.ask(command("modify", "/attributes/on", False))
    await harness.ask(command("modify", "/", {"attributes": {"on": 1}}))
    await harness.ask(command("merge", "/", {"attributes": {"on": 2}}, content_type="application/merge-patch+json"))
    await harness.ask(command("modify", "/attributes/on", 3, name="lamp-8"))
    await until(lambda: len(watching.answers()) >= 2)
    await pause()
    assert {answer["topic"].split("/")[1] for answer in watching.answers()} == {"lamp-8"}
