"""Numbers keep their text in the results of searches and retrieves."""

from __future__ import annotations

import json
from typing import Any

import pytest

from connectivity.security.on_behalf import BehalfAudit
from connectivity.subscriptions.search_requests import HttpSearch, SearchRequests
from mappings.json_values import encode_value
from mappings.model.field_selector import parse_fields
from spark_store.records import AuditEntry
from tests.support.in_process.search_client import Searcher
from tests.support.in_process.service import LAMP, NOW, OWNER, ConnectionHarness, command, source, until

pytestmark = pytest.mark.usefixtures("harnesses")

GUEST = "acme:guest"
VALUES = '{"a":8.4E37,"b":[2e3,{"c":1.0}],"d":2000.0,"e":0.10,"f":9223372036854775807,"g":-0.0}'
NUMBERS = ("8.4E37", "2e3", '"c":1.0', "2000.0", '"e":0.10', "9223372036854775807", "-0.0")
ALL = {"grant": ["READ", "WRITE"], "revoke": []}
POLICY = json.dumps(
    {
        "entries": {
            "OWNER": {"subjects": {OWNER: {"type": "t"}}, "resources": {"thing:/": ALL, "policy:/": ALL}},
            "GUEST": {
                "subjects": {GUEST: {"type": "t"}},
                "resources": {
                    "thing:/": {"grant": ["READ"], "revoke": []},
                    "thing:/attributes/secret": {"grant": [], "revoke": ["READ"]},
                },
            },
        }
    }
)


def raw(payload: bytes, value: str) -> bytes:
    """A command with this text as its value."""
    return payload.replace(b'"value": "?"', b'"value": ' + value.encode())


@pytest.fixture
async def harness() -> ConnectionHarness:
    harness = ConnectionHarness(source(), source("guests", GUEST))
    value = f'{{"attributes":{VALUES[:-1]},"secret":1}},"_policy":{POLICY}}}'
    assert (await harness.ask(raw(command("create", value="?"), value)))["status"] == 201
    return harness


def searches_of(harness: ConnectionHarness) -> SearchRequests:
    async def note(entry: AuditEntry) -> None:
        raise AssertionError(f"no search is in the name of others: {entry}")

    audit = BehalfAudit(lambda: NOW, note)
    return SearchRequests(harness.searching, lambda: NOW, page_bytes=1 << 20, count_timeout=60.0, audit=audit)


def text(harness: ConnectionHarness) -> str:
    return harness.link.published[-1].envelope.payload.decode()


def assert_kept(found: str) -> None:
    assert [number for number in NUMBERS if number not in found] == []


async def searched(harness: ConnectionHarness, source: int = 0, filter: str | None = None, **more: Any) -> str:
    searcher = Searcher(harness, source)
    key = await searcher.subscribe(filter, **more)
    searcher.ask(key, 5)
    await until(lambda: searcher.end(key) is not None)
    assert len(searcher.pages(key)) == 1
    return next(
        each.envelope.payload.decode() for each in harness.link.published if b'"items"' in each.envelope.payload
    )


@pytest.mark.parametrize("fields", [None, "attributes", "thingId,attributes(a,b,d,e,f,g),_metadata,_revision"])
@pytest.mark.parametrize(
    "filter", [None, f'eq(thingId,"{LAMP.id}")', "and(gt(attributes/d,1999.5),eq(attributes/b,2000))"]
)
@pytest.mark.parametrize("reader", [0, 1])
async def test_a_search_over_the_protocol_keeps_numbers(
    harness: ConnectionHarness, fields: str | None, filter: str | None, reader: int
) -> None:
    assert_kept(await searched(harness, reader, filter, fields=fields))


@pytest.mark.parametrize("subject", [OWNER, GUEST])
@pytest.mark.parametrize("fields", [None, "attributes,_metadata"])
async def test_a_search_over_http_keeps_numbers(harness: ConnectionHarness, subject: str, fields: str | None) -> None:
    selection = None if fields is None else parse_fields(fields)
    for options in (None, "sort(-attributes/a)", "limit(0,5)"):
        page = await searches_of(harness).things(HttpSearch((subject,), options=options, selection=selection))
        assert_kept(page.items.decode())


async def test_merged_and_modified_parts_keep_numbers(harness: ConnectionHarness) -> None:
    merge = command("merge", "/attributes", "?", content_type="application/merge-patch+json")
    await harness.ask(raw(merge, '{"m":{"n":1E2}}'))
    await harness.ask(raw(command("modify", "/attributes/o", "?"), "7e0"))
    await harness.ask(raw(command("modify", "/attributes/a", "?"), "8.5E37"))
    found = await searched(harness, fields="attributes")
    assert '"m":{"n":1E2}' in found
    assert '"o":7e0' in found
    assert '"a":8.5E37' in found


@pytest.mark.parametrize(
    ("filter", "is_found"),
    [
        ("eq(attributes/o,2000)", True),
        ("eq(attributes/o,2000.0)", True),
        ("in(attributes/o,1,2000)", True),
        ("lt(attributes/o,1999)", False),
        ("ne(attributes/o,2000)", False),
        ("gt(attributes/many,1999)", True),
    ],
)
async def test_a_changed_number_is_found_by_its_value(harness: ConnectionHarness, filter: str, is_found: bool) -> None:
    await harness.ask(command("modify", "/attributes/o", 2000))
    await harness.ask(raw(command("modify", "/attributes/o", "?"), "2e3"))
    await harness.ask(raw(command("modify", "/attributes/many", "?"), '["x",2e3]'))
    assert (await Searcher(harness).all(filter) == ["acme.site:lamp-7"]) is is_found
    condition = await harness.ask(command("modify", "/attributes/p", 1, condition=filter))
    assert condition["status"] == (201 if is_found else 412)


async def test_a_cursor_holds_a_number_that_keeps_its_text(harness: ConnectionHarness) -> None:
    other = raw(command("create", value="?", name="lamp-8"), f'{{"attributes":{{"a":9.9E37}},"_policy":{POLICY}}}')
    assert (await harness.ask(other))["status"] == 201
    searches, found = searches_of(harness), []
    options: str | None = "size(1),sort(-attributes/a)"
    while options:
        page = await searches.things(HttpSearch((GUEST,), options=options))
        found += [thing["thingId"] for thing in json.loads(page.items)]
        options = page.cursor and f"size(1),cursor({page.cursor})"
    assert found == ["acme.site:lamp-8", "acme.site:lamp-7"]


async def test_a_retrieve_keeps_numbers_and_equal_numbers_have_one_etag(harness: ConnectionHarness) -> None:
    answer = await harness.ask(command("retrieve"))
    assert_kept(text(harness))
    assert answer["value"]["attributes"]["d"] == 2000
    tags = []
    for number in ("2e3", "2000.0"):
        await harness.ask(raw(command("modify", "/attributes/d", "?"), number))
        tags.append((await harness.ask(command("retrieve", "/attributes/d")))["headers"]["etag"])
    assert tags[0] == tags[1]


async def test_past_and_stored_states_keep_numbers(harness: ConnectionHarness) -> None:
    await harness.ask(raw(command("modify", "/attributes/a", "?"), "1E2"))
    await harness.ask(command("retrieve", at_historical_revision=1))
    assert_kept(text(harness))
    stored = harness.journal.snapshot(LAMP)
    assert stored is not None
    assert b'"a":1E2' in encode_value(stored.state)


async def test_metadata_of_a_created_thing_keeps_numbers(harness: ConnectionHarness) -> None:
    value = f'{{"attributes":{{"a":1}},"_metadata":{{"attributes":{{"a":{{"since":2e3}}}}}},"_policy":{POLICY}}}'
    assert (await harness.ask(raw(command("create", value="?", name="lamp-9"), value)))["status"] == 201
    answer = await harness.ask(command("retrieve", "/attributes/a", name="lamp-9", get_metadata="*"))
    assert answer["headers"]["ditto-metadata"] == {"since": 2000}
    assert '"since":2e3' in text(harness)
    assert '"since":2e3' in await searched(harness, filter="exists(attributes/a)", fields="_metadata")
