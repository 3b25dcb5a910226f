"""The table of docs/reference/errors.md matches the service: each code is produced as documented.

A code is produced here by a delivery without a broker, or is listed in `ELSEWHERE` with the test file that produces it.
Codes of policies are produced in the tests of policies; here they are only searched for in the table.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import pytest

from connectivity.maintenance.erasure import ERASED
from connectivity.twins import errors
from mappings.errors import Fault
from tests.support.in_process.service import OWNER, ConnectionHarness, command, document, policy, source, streaming
from tests.support.in_process.two_connections import acknowledgement, live, message, with_status
from tests.support.paths import ROOT
from tests.support.table import each_row

_ROW = re.compile(r"^\| `(?P<code>[^`]+)` \| (?:(?P<status>\d{3}) \| )?(?P<text>.*) ?\|$", re.MULTILINE)
_CODE = re.compile(
    r"(?:things|policies|protocoladapter|placeholder|connectivity|acknowledgement|messages|thing-search):[a-zA-Z][\w\-]*(?:[.:][a-zA-Z][\w\-]*)*"
    r"|(?:json|headers?|timeout|command|mediatype|rql|streaming|signal|live|entity|namespace)(?:\.[a-z]+){1,4}|internalerror"
)
_NO_CODES = frozenset({"things:id", "policies:id"})
BY_TARGETS = frozenset({"signal.enrichment.failed"})
"""Reported for events to targets, only in the log."""

READ = {"grant": ["READ"], "revoke": []}
READER, LISTENER = "acme:reader", "acme:listener"
MERGE = {"content_type": "application/merge-patch+json"}


class Row(NamedTuple):
    code: str
    status: int | None
    text: str


def rows() -> tuple[dict[str, Row], dict[str, Row]]:
    """The codes that are sent, and those that never are."""
    sent, never = (
        (ROOT / "docs" / "reference" / "errors.md")
        .read_text(encoding="utf-8")
        .split("## Codes of the protocol that are never")
    )
    return tuple(  # type: ignore[return-value]
        {
            found["code"]: Row(found["code"], int(found["status"]) if found["status"] else None, found["text"].strip())
            for found in _ROW.finditer(page)
        }
        for page in (sent, never)
    )


SENT, NEVER = rows()


@cache
def codes_in_the_code() -> frozenset[str]:
    found = set(errors.codes())
    for package in ("connectivity", "mappings", "spark_store"):
        for file in (ROOT / package).rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            if _CODE.search(text) is None:
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and _CODE.fullmatch(node.value):
                    found.add(node.value)
    return frozenset(found - _NO_CODES)


def test_every_code_of_the_code_is_in_the_table() -> None:
    assert codes_in_the_code() - SENT.keys() == set()


def test_every_code_of_the_table_is_in_the_code() -> None:
    expected = {code for code in SENT if not code.startswith("policies:")}
    assert expected - codes_in_the_code() == set()


def test_an_unused_error_code_is_absent_from_the_code_and_documents_its_reason() -> None:
    assert codes_in_the_code() & NEVER.keys() == set()
    assert all(row.text for row in NEVER.values())
    assert SENT.keys() & NEVER.keys() == set()


def test_the_statuses_of_the_table_are_those_of_the_code() -> None:
    for code in errors.codes():
        assert errors.fault(code, "acme:x").status == SENT[code].status, code


def test_every_code_of_the_table_is_produced_somewhere() -> None:
    expected = {code for code in SENT if not code.startswith("policies:")} - BY_TARGETS
    assert expected == PRODUCED.keys() | ELSEWHERE.keys() | {ERASED.error}


# --- codes that need more than one delivery ---


ELSEWHERE = {
    "things:creation.notallowed": "tests/unit/connectivity/twins/test_decider_creation.py",
    "acknowledgement:correlation-id.missing": "tests/unit/connectivity/dispatch/test_request_reply.py",
    "acknowledgement:label.not.unique": "tests/vectors/connections/shared.yaml",
    "acknowledgement:request.timeout": "tests/unit/connectivity/dispatch/test_request_reply.py",
    **dict.fromkeys(
        ("things:dailyquota.exceeded", "things:quota.exceeded", "things:storage.low"),
        "tests/unit/connectivity/dispatch/test_quota_check.py",
    ),
    "command.timeout": "tests/unit/connectivity/dispatch/test_request_reply_live.py",
    "connectivity:command.invalid": "tests/unit/connectivity/api/test_connections.py",
    "connectivity:precondition.failed": "tests/unit/connectivity/api/test_preconditions.py",
    "connectivity:precondition.notmodified": "tests/unit/connectivity/api/test_preconditions.py",
    "connectivity:connection.configuration.invalid": "tests/vectors/connections/shared.yaml",
    "connectivity:connection.conflict": "tests/unit/connectivity/management/test_manager.py",
    "connectivity:connection.failed": "tests/unit/connectivity/management/test_manager.py",
    "connectivity:connection.history.notfound": "tests/unit/connectivity/management/test_manager.py",
    "connectivity:connection.notfound": "tests/unit/connectivity/management/test_manager.py",
    "connectivity:id.notsettable": "tests/unit/connectivity/management/test_manager.py",
    "connectivity:connection.id.invalid": "tests/vectors/connections/shared.yaml",
    "connectivity:connection.unavailable": "tests/unit/connectivity/management/test_connection_test.py",
    "connectivity:connection.uri.invalid": "tests/vectors/connections/shared.yaml",
    "connectivity:message.mapper.config.failed": "tests/vectors/connections/shared.yaml",
    "connectivity:message.mapper.config.invalid": "tests/vectors/connections/shared.yaml",
    "connectivity:message.mapping.failed": "tests/vectors/mappings/raw_message.json",
    "connectivity:message.sending.failed": "tests/links/test_kafka.py",
    "connectivity:subscription.conflict": "tests/unit/connectivity/management/test_subscription_table.py",
    "connectivity:subscription.notfound": "tests/unit/connectivity/management/test_subscription_table.py",
    "connectivity:topic.invalid": "tests/vectors/connections/shared.yaml",
    "internalerror": "tests/unit/connectivity/dispatch/test_dispatcher_failures.py",
    "live.response.limit": "tests/unit/connectivity/dispatch/test_request_reply_live.py",
    "messages:payload.toolarge": "tests/unit/mappings/mappers/test_ditto.py",
    "placeholder:function.signature.invalid": "tests/vectors/placeholders.txt",
    "placeholder:function.too.complex": "tests/unit/mappings/placeholders/test_template.py",
    "placeholder:function.unknown": "tests/vectors/placeholders.txt",
    "streaming.subscription.cancelled": "tests/unit/connectivity/management/test_subscription_table.py",
    "streaming.subscription.limit": "tests/unit/connectivity/subscriptions/test_limits.py",
    "streaming.subscription.timeout": "tests/vectors/ditto/outgoing.json",
    "thing-search:aggregation.invalid": "tests/unit/spark_store/search/test_aggregation.py",
    "thing-search:aggregation.limit": "tests/unit/connectivity/subscriptions/test_aggregation_feed.py",
    "thing-search:aggregation.toolarge": "tests/unit/spark_store/search/test_aggregation.py",
    "thing-search:budget.exceeded": "tests/unit/connectivity/subscriptions/test_search_feed.py",
    "thing-search:past.behind": "tests/unit/connectivity/subscriptions/test_as_of_feed.py",
    "thing-search:store.unavailable": "tests/unit/connectivity/subscriptions/test_search_feed_store.py",
    "thing-search:past.unavailable": "tests/unit/connectivity/subscriptions/test_search_feed.py",
    "thing-search:past.unreachable": "tests/unit/connectivity/subscriptions/test_as_of_feed.py",
    "thing-search:search.limit": "tests/unit/connectivity/subscriptions/test_search_queue.py",
    "thing-search:search.option.invalid": "tests/unit/connectivity/subscriptions/test_search_feed.py",
    "thing-search:subscription.aborted": "tests/vectors/ditto/outgoing.json",
    "thing-search:subscription.cancelled": "tests/unit/connectivity/management/test_subscription_table.py",
    "thing-search:subscription.limit": "tests/unit/connectivity/subscriptions/test_search_feed.py",
    "thing-search:subscription.not.found": "tests/vectors/ditto/outgoing.json",
    "thing-search:subscription.protocol.error": "tests/vectors/ditto/outgoing.json",
    "thing-search:subscription.timeout": "tests/vectors/ditto/outgoing.json",
    "things:field.selection.invalid": "tests/vectors/connections/shared.yaml",
    "things:thing.history.notfound": "tests/unit/connectivity/store/test_past_state.py",
}


@each_row("code", sorted(ELSEWHERE))
def test_a_code_that_is_produced_elsewhere_is_named_there(code: str) -> None:
    assert code in (ROOT / ELSEWHERE[code]).read_text(encoding="utf-8")


def test_a_history_that_was_erased_is_gone() -> None:
    assert (ERASED.error, ERASED.status) == ("streaming.subscription.erased", SENT[ERASED.error].status)


# --- codes that one delivery produces ---


class ErrorCase(NamedTuple):
    """A delivery, who sends it, and where the error answers if not among the errors of the lamp."""

    payload: bytes
    by: str = OWNER
    group: str = "things/twin"
    harness: str = "usual"


def _modify(path: str, value: Any = 1, **headers: Any) -> bytes:
    return command("modify", path, value, **headers)


def _text(topic: str, rest: str = "") -> bytes:
    return f'{{"topic":"{topic}","path":"/"{rest}}}'.encode()


LAMP = "acme.site/lamp-7/things/twin/commands"
PARTS = {
    "policyId": "/policyId",
    "definition": "/definition",
    "attributes": "/attributes",
    "attribute": "/attributes/a",
    "features": "/features",
    "feature": "/features/f",
    "feature.definition": "/features/f/definition",
    "feature.properties": "/features/f/properties",
    "feature.property": "/features/f/properties/p",
    "feature.desiredProperties": "/features/f/desiredProperties",
    "feature.desiredProperty": "/features/f/desiredProperties/p",
}
_VALUES: dict[str, Any] = {
    "policyId": "acme.site:other",
    "definition": "a:b:1",
    "feature.definition": ["a:b:1"],
    "attribute": 1,
    "feature.property": 1,
    "feature.desiredProperty": 1,
}

PRODUCED: dict[str, ErrorCase] = {
    "json.invalid": ErrorCase(_modify("/", {"attributes": []})),
    "json.field.missing": ErrorCase(_text("acme.site/_/things/twin/commands/retrieve", ',"value":{}'), group="_"),
    "json.format.invalid": ErrorCase(_modify("/attributes", 1)),
    "json.fieldselector.invalid": ErrorCase(_text(f"{LAMP}/retrieve", ',"fields":"a("')),
    "json.key.invalid": ErrorCase(_modify("/attributes", {"": 1})),
    "json.pointer.invalid": ErrorCase(_modify("/attributes//a")),
    "header.invalid": ErrorCase(_modify("/attributes/a", if_match="garbage")),
    "header.notsupported": ErrorCase(command("retrieve", put_metadata=[])),
    "timeout.invalid": ErrorCase(_modify("/attributes/a", timeout=-1)),
    "headers.too.large": ErrorCase(_modify("/attributes/a", custom="x" * 8_192)),
    "mediatype.unsupported": ErrorCase(command("merge", "/attributes", {"a": 1})),
    "rql.expression.invalid": ErrorCase(_modify("/attributes/a", condition="eq(foo,1)")),
    "things:condition.invalid": ErrorCase(_modify("/attributes/a", condition="eq(")),
    "protocoladapter:unknown.topicpath": ErrorCase(_text(f"{LAMP}/patch"), group="unknown"),
    "protocoladapter:unknown.path": ErrorCase(_modify("/foo")),
    "protocoladapter:illegal.adaptable": ErrorCase(_text(f"{LAMP}/retrieve", ',"status":200')),
    "placeholder:unresolved": ErrorCase(command("retrieve"), group="unknown", harness="unresolved"),
    "placeholder:placeholder.reference.notsupported": ErrorCase(
        command("create", value={"_copyPolicyFrom": "{{ ref:lamp-7 }}"}, name="new"), group="new"
    ),
    "placeholder:placeholder.reference.unknown.field": ErrorCase(
        command("create", value={"_copyPolicyFrom": "{{ ref:things/acme.site:lamp-7/attributes }}"}, name="new"),
        group="new",
    ),
    "signal.unsupported": ErrorCase(with_status(live("retrieve", response_required=True), 200), group="things/live"),
    "connectivity:connection.id.enforcement.failed": ErrorCase(command("retrieve"), harness="enforced"),
    "connectivity:message.toolarge": ErrorCase(b'"' + b"x" * (1 << 20) + b'"', group="unknown"),
    "things:id.invalid": ErrorCase(document("acme.7x/n/things/twin/commands/create", value={}), group="unknown"),
    "things:id.notsettable": ErrorCase(_modify("/", {"thingId": "acme.site:other"})),
    "things:id.notdeletable": ErrorCase(command("merge", value={"thingId": None}, **MERGE)),
    "things:policyId.notdeletable": ErrorCase(command("merge", value={"policyId": None}, **MERGE)),
    "things:merge.invalid": ErrorCase(command("merge", value={}, **MERGE)),
    "things:policy.invalid": ErrorCase(command("create", value={"_policy": {"entries": {}}}, name="new"), group="new"),
    "things:policy.conflicting": ErrorCase(
        command("create", value={"_policy": {}, "_copyPolicyFrom": "acme.site:lamp-7"}, name="new"), group="new"
    ),
    "things:things.ids.missing": ErrorCase(
        _text("acme.site/_/things/twin/commands/retrieve", ',"value":{"thingIds":[]}'), group="_"
    ),
    "things:definition.identifier.invalid": ErrorCase(_modify("/definition", "x")),
    "things:feature.definition.empty": ErrorCase(_modify("/features/f/definition", [])),
    "things:metadata.headersconflict": ErrorCase(_modify("/attributes/a", put_metadata=[], delete_metadata="k")),
    "things:metadata.notmodifiable": ErrorCase(_modify("/", {"_metadata": {}}, put_metadata=[])),
    "things:thing.notcreatable": ErrorCase(command("create", value={})),
    "things:live.channelcondition.notallowed": ErrorCase(
        _modify("/attributes/a", live_channel_condition="exists(thingId)")
    ),
    "things:thing.notfound": ErrorCase(command("retrieve", name="none"), group="none"),
    "things:thing.notmodifiable": ErrorCase(_modify("/", {}), READER),
    "things:thing.notdeletable": ErrorCase(command("delete"), READER),
    "things:event.notallowed": ErrorCase(
        document("acme.site/lamp-7/things/live/events/modified", "/attributes/a", 1), READER, group="things/live"
    ),
    "things:thing.conflict": ErrorCase(command("create", value={"policyId": "acme.site:lamp-7"})),
    "things:precondition.failed": ErrorCase(_modify("/", {}, if_match='"rev:9"')),
    "things:precondition.notmodified": ErrorCase(command("retrieve", if_none_match="*")),
    "things:condition.failed": ErrorCase(_modify("/attributes/a", condition="exists(attributes/none)")),
    "things:thing.toolarge": ErrorCase(_modify("/attributes/a", "x" * 102_401)),
    "acknowledgement:label.invalid": ErrorCase(_modify("/attributes/a", requested_acks=["ä"])),
    "acknowledgement:label.not.declared": ErrorCase(acknowledgement("other:seen")),
    "acknowledgement:ditto.acklabel.forbidden": ErrorCase(acknowledgement("twin-persisted")),
    "acknowledgement:request.duplicate.correlation-id": ErrorCase(
        _modify("/attributes/a", requested_acks=["other:seen"], correlation_id="c-1"), harness="twice"
    ),
    "messages:send.notallowed": ErrorCase(message(), READER, group="things/live"),
    "messages:subject.invalid": ErrorCase(
        document("acme.site/lamp-7/things/live/messages", "/inbox/messages/x"), group="things/live"
    ),
    "streaming.subscription.not.found": ErrorCase(
        streaming("request", {"subscriptionId": "x", "demand": 1}), group="failed"
    ),
    "streaming.subscription.protocol.error": ErrorCase(
        streaming("request", {"subscriptionId": "{key}", "demand": 0}), group="failed", harness="subscribed"
    ),
}
for _part, _path in PARTS.items():
    PRODUCED[f"things:{_part}.notfound"] = ErrorCase(command("retrieve", _path), LISTENER)
    PRODUCED[f"things:{_part}.notmodifiable"] = ErrorCase(_modify(_path, _VALUES.get(_part, {})), READER)

TOPICS = {
    "unknown": "unknown/unknown/things/twin/errors",
    "_": "acme.site/_/things/twin/errors",
    "new": "acme.site/new/things/twin/errors",
    "none": "acme.site/none/things/twin/errors",
    "failed": "acme.site/lamp-7/things/twin/streaming/failed",
}


def _usual(**first: Any) -> Callable[[], ConnectionHarness]:
    return lambda: ConnectionHarness(source("in", OWNER, **first), source("in", READER), source("in", LISTENER))


SITES: dict[str, Callable[[], ConnectionHarness]] = {
    "usual": _usual(),
    "twice": _usual(),
    "subscribed": _usual(),
    "unresolved": _usual(authorizationContext=["{{ header:who }}", OWNER]),
    "enforced": _usual(enforcement={"input": "{{ header:device }}", "filters": ["{{ thing:id }}"]}),
}


async def _furnished(how: ErrorCase) -> ConnectionHarness:
    """A lamp whose reader sees one attribute, its listener messages alone; neither may change anything."""
    harness = SITES[how.harness]()
    rules = policy(OWNER)
    rules["entries"]["READER"] = {
        "subjects": {READER: {"type": "test"}},
        "resources": {"thing:/attributes/seen": READ, "message:/": READ},
    }
    rules["entries"]["LISTENER"] = {"subjects": {LISTENER: {"type": "test"}}, "resources": {"message:/": READ}}
    made = command("create", value={"_policy": rules, "attributes": {"seen": 1}}, response_required=False)
    harness.deliver(made, who="x", device="acme.site:lamp-7")
    await harness.settled(1)
    if how.harness == "twice":
        harness.deliver(how.payload)
    harness.forget()
    return harness


@pytest.mark.usefixtures("harnesses")
@pytest.mark.parametrize("code", sorted(PRODUCED))
async def test_a_code_is_produced_with_its_status_on_its_topic(code: str) -> None:
    how = PRODUCED[code]
    harness = await _furnished(how)
    payload = how.payload
    if how.harness == "subscribed":
        created = await harness.ask(streaming("subscribeForPersistedEvents", {}))
        payload = payload.replace(b"{key}", created["value"]["subscriptionId"].encode())
        harness.forget()
    headers = {"device": "acme.site:other"} if how.harness == "enforced" else {}
    answer = await harness.ask(payload, **headers, source=[OWNER, READER, LISTENER].index(how.by))
    error = answer["value"].get("error")
    if how.group == "failed":
        error = error["error"]
        assert answer["value"]["error"]["status"] == SENT[code].status
    else:
        assert (answer["status"], answer["value"]["status"], answer["path"]) == (
            SENT[code].status,
            SENT[code].status,
            "/",
        )
    assert error == code
    assert answer["topic"] == TOPICS.get(how.group, f"acme.site/lamp-7/{how.group}/errors")


def test_no_message_of_an_error_is_empty() -> None:
    for code in errors.codes():
        found: Fault = errors.fault(code, "acme:x", "/attributes/a", "something")
        assert found.message
        assert json.dumps(found.extra)
