"""Commands on things and policies over a real broker, as an owner and a partial reader see them.

A selection; each rule by itself is tested in tests/unit/connectivity/twins. Case numbers: behavior cases of twins.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.brokers.mosquitto import Mosquitto
from tests.support.clients.mqtt import MqttClient
from tests.support.connection_documents import EVERYTHING, READ, Reader, client, connection, policy_for, source, topic
from tests.support.service_process import ServiceProcess

pytestmark = pytest.mark.broker("mosquitto")

OWNER, PARTIAL, STRANGER = "acme:owner", "acme:partial", "acme:stranger"
MERGE = {"content-type": "application/merge-patch+json"}

POLICY = policy_for(
    OWNER,
    acme_partial={
        "thing:/attributes/public": READ,
        "thing:/features/lamp/properties": EVERYTHING,
        "thing:/features/lamp/properties/serial": {"grant": ["READ"], "revoke": ["WRITE"]},
    },
)
THING = {
    "_policy": POLICY,
    "attributes": {"public": {"hall": 7}, "private": "x", "maker": "ACME"},
    "features": {"lamp": {"properties": {"on": False, "serial": "L-1"}}, "fan": {"properties": {"speed": 3}}},
}


@pytest.fixture(scope="module")
def service(mosquitto: Mosquitto, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    harness = connection(
        mosquitto, source("t/owner", OWNER), source("t/partial", PARTIAL), source("t/stranger", STRANGER)
    )
    with ServiceProcess.start(tmp_path_factory.mktemp("twins"), [harness]) as running:
        yield running


@pytest.fixture(scope="module")
def clients(service: ServiceProcess, mosquitto: Mosquitto) -> Iterator[dict[str, MqttClient]]:
    made = {name: client(mosquitto, f"t/{name}") for name in ("owner", "partial", "stranger")}
    yield made
    for requester in made.values():
        requester.close()


@pytest.fixture(scope="module")
def owner(clients: dict[str, MqttClient]) -> MqttClient:
    return clients["owner"]


@pytest.fixture
def partial(clients: dict[str, MqttClient]) -> MqttClient:
    return clients["partial"]


@pytest.fixture
def stranger(clients: dict[str, MqttClient]) -> MqttClient:
    return clients["stranger"]


@pytest.fixture
def name() -> str:
    return f"box-{secrets.token_hex(4)}"


@pytest.fixture
def box(owner: MqttClient, name: str) -> str:
    """A thing at revision 1 with a policy of its own."""
    answer = ask(owner, name, "create", value=THING)
    assert answer["status"] == 201, answer
    return name


def ask(requester: MqttClient, name: str, verb: str, path: str = "/", value: Any = None, **more: Any) -> dict[str, Any]:
    group = more.pop("group", "things/twin")
    return requester.ask_for(topic(name, f"commands/{verb}", group), path, value, **more)


def refused(answer: dict[str, Any], status: int, error: str) -> None:
    """Check that the answer is this error, with the same status in both places."""
    assert (answer["status"], answer["value"]["status"], answer["value"]["error"]) == (status, status, error)
    assert answer["topic"].endswith("/errors")
    assert answer["path"] == "/"


# --- creating, changing, deleting ---------------------------------------------------------------------------------------


def test_case_01_61_create_answers_with_the_thing_and_its_tag(owner: MqttClient, name: str) -> None:
    answer = ask(owner, name, "create", value={"attributes": {"a": 1}})
    assert (answer["status"], answer["topic"]) == (201, topic(name, "commands/create"))
    assert answer["value"] == {"thingId": f"acme.site:{name}", "policyId": f"acme.site:{name}", "attributes": {"a": 1}}
    assert (answer["headers"]["etag"], answer["headers"]["entity-revision"]) == ('"rev:1"', 1)
    assert answer["headers"]["response-required"] is False
    assert ask(owner, name, "retrieve", group="policies")["status"] == 200


def test_case_02_creating_an_existing_thing_is_a_conflict(owner: MqttClient, box: str) -> None:
    refused(ask(owner, box, "create", value={"policyId": f"acme.site:{box}"}), 409, "things:thing.conflict")
    (item,) = Reader(owner, box).all()
    assert item["revision"] == 1


def test_case_04_05_modify_creates_and_replaces(owner: MqttClient, name: str) -> None:
    answer = ask(owner, name, "modify", value={"features": {"f": {}}})
    assert (answer["status"], answer["topic"]) == (201, topic(name, "commands/create"))
    answer = ask(owner, name, "modify", value={"attributes": {"b": 2}})
    assert answer["status"] == 204
    assert "value" not in answer
    found = ask(owner, name, "retrieve")["value"]
    assert found == {"thingId": f"acme.site:{name}", "policyId": f"acme.site:{name}", "attributes": {"b": 2}}


def test_case_25_26_sub_resources_are_created_then_modified(owner: MqttClient, box: str) -> None:
    answer = ask(owner, box, "modify", "/attributes/x/y", {"z": 1.50})
    assert (answer["status"], answer["path"], answer["value"]) == (201, "/attributes/x/y", {"z": 1.5})
    assert ask(owner, box, "modify", "/attributes/x/y", 2)["status"] == 204
    assert ask(owner, box, "retrieve", "/attributes/x")["value"] == {"y": 2}
    refused(ask(owner, box, "modify", "/features/none/properties/p", 1), 404, "things:feature.notfound")


def test_numbers_and_texts_keep_their_spelling(owner: MqttClient, box: str) -> None:
    """A value is kept as received: `1.50`, `1e2` and `\\u00e4` are not encoded again."""
    spelt = b'{"a":1.50,"b":1e2,"c":"\\u00e4/\\/","d":-0}'
    owner.send(
        b'{"topic":"%s","path":"/attributes/spelt","value": %s }' % (topic(box, "commands/modify").encode(), spelt)
    )
    assert owner.next()["status"] == 201
    Reader(owner, box, {"fromHistoricalRevision": -1}).all()
    event = next(m.payload for m in reversed(owner.messages) if b"/streaming/next" in m.payload)
    assert spelt in event


def test_case_10_11_12_a_deleted_thing_is_gone_and_can_be_made_again(owner: MqttClient, box: str) -> None:
    assert ask(owner, box, "delete")["status"] == 204
    for verb in ("retrieve", "delete"):
        refused(ask(owner, box, verb), 404, "things:thing.notfound")
    refused(ask(owner, box, "modify", "/attributes/a", 1), 404, "things:thing.notfound")
    answer = ask(owner, box, "create", value={"policyId": f"acme.site:{box}"})
    assert (answer["status"], answer["headers"]["entity-revision"]) == (201, 3)


def test_case_20_several_things_are_retrieved_at_once(owner: MqttClient, box: str) -> None:
    ids = [f"acme.site:{box}", "acme.site:never-there"]
    answer = owner.ask_for("_/_/things/twin/commands/retrieve", value={"thingIds": ids})
    assert answer["status"] == 200
    assert [thing["thingId"] for thing in answer["value"]] == ids[:1]


def test_case_21_fields_select(owner: MqttClient, box: str) -> None:
    answer = ask(owner, box, "retrieve", fields="thingId,_revision,attributes(public/hall)")
    assert answer["value"] == {
        "thingId": f"acme.site:{box}",
        "_revision": 1,
        "attributes": {"public": {"hall": 7}},
    }


@pytest.mark.parametrize("key", ["$ref", "a:b", "a b", "$.a:b c", "{a}", "a.b", "#"])
def test_case_118_keys_with_odd_characters_are_echoed_as_they_are(owner: MqttClient, box: str, key: str) -> None:
    path = f"/features/lamp/properties/{key}"
    answer = ask(owner, box, "modify", path, {key: 1})
    assert (answer["status"], answer["path"], answer["value"]) == (201, path, {key: 1})
    assert ask(owner, box, "retrieve", path)["value"] == {key: 1}
    assert ask(owner, box, "modify", f"{path}/{key}", 2)["path"] == f"{path}/{key}"
    assert [item["path"] for item in Reader(owner, box).all()[1:]] == [path, f"{path}/{key}"]


def test_case_88_metadata_is_read_where_it_is_asked_for(owner: MqttClient, partial: MqttClient, box: str) -> None:
    put = {"put-metadata": [{"key": "*/unit", "value": "m"}]}
    answer = ask(owner, box, "modify", "/attributes", {"public": {"hall": 7}, "private": "x"}, headers=put)
    assert (answer["status"], set(put) & set(answer["headers"])) == (204, set())
    public = {"public": {"hall": {"unit": "m"}}}
    for requester, visible in ((owner, {**public, "private": {"unit": "m"}}), (partial, public)):
        assert ask(requester, box, "retrieve", fields="_metadata")["value"] == {"_metadata": {"attributes": visible}}
        found = ask(requester, box, "retrieve", "/attributes/public", headers={"get-metadata": "*/unit"})
        assert found["headers"]["ditto-metadata"] == {"hall": {"unit": "m"}}
        assert "_metadata" not in ask(requester, box, "retrieve")["value"]
    assert ask(owner, box, "delete", "/attributes/public")["status"] == 204
    was = ask(owner, box, "retrieve", headers={"at-historical-revision": 2}, fields="_metadata/attributes/public")
    assert was["value"] == {"_metadata": {"attributes": public}}
    now = ask(owner, box, "retrieve", fields="_metadata/attributes/public")
    assert now["value"] == {}
    items = Reader(owner, box).all()
    assert [item["headers"]["historical-headers"] for item in items] == [{}] * 3
    both = {**put, "get-metadata": "unit"}
    refused(ask(owner, box, "modify", "/attributes/a", 1, headers=both), 400, "things:metadata.headersconflict")


def test_case_48_a_part_of_a_patch_has_a_condition_of_its_own(owner: MqttClient, box: str) -> None:
    headers = {**MERGE, "merge-thing-patch-conditions": {"maker": "eq(attributes/maker,'OTHER')"}}
    assert ask(owner, box, "merge", "/attributes", {"maker": "NEW", "n": 1}, headers=headers)["status"] == 204
    assert Reader(owner, box, {"fromHistoricalRevision": -1}).all()[0]["value"] == {"n": 1}


# --- merging ------------------------------------------------------------------------------------------------------------


def test_case_42_merge_sets_and_removes(owner: MqttClient, box: str) -> None:
    patch = {"maker": None, "public": {"floor": 2}}
    answer = ask(owner, box, "merge", "/attributes", patch, headers=MERGE)
    assert answer["status"] == 204
    assert "value" not in answer
    assert ask(owner, box, "retrieve", "/attributes")["value"] == {"public": {"hall": 7, "floor": 2}, "private": "x"}
    assert Reader(owner, box, {"fromHistoricalRevision": -1}).all()[0]["value"] == patch


def test_case_44_45_merge_of_a_whole_thing(owner: MqttClient, name: str) -> None:
    refused(ask(owner, name, "merge", "/attributes", {"a": 1}, headers=MERGE), 404, "things:thing.notfound")
    answer = ask(owner, name, "merge", value={"attributes": {"a": 1, "b": None}}, headers=MERGE)
    assert (answer["status"], answer["topic"]) == (201, topic(name, "commands/create"))
    assert answer["value"]["attributes"] == {"a": 1}
    refused(ask(owner, name, "merge", value={}, headers=MERGE), 400, "things:merge.invalid")


@pytest.mark.parametrize("headers", [{}, {"content-type": "application/json"}])
def test_case_41_a_merge_has_the_content_type_of_a_patch(owner: MqttClient, box: str, headers: dict[str, str]) -> None:
    refused(ask(owner, box, "merge", "/attributes", {"a": 1}, headers=headers), 415, "mediatype.unsupported")


# --- who may see and do what --------------------------------------------------------------------------------------------


def test_case_70_a_reader_of_a_part_sees_that_part(partial: MqttClient, box: str) -> None:
    answer = ask(partial, box, "retrieve")
    assert answer["status"] == 200
    assert answer["value"] == {
        "thingId": f"acme.site:{box}",
        "attributes": {"public": {"hall": 7}},
        "features": {"lamp": {"properties": {"on": False, "serial": "L-1"}}},
    }


def test_case_71_an_unreadable_part_is_not_found(partial: MqttClient, box: str) -> None:
    refused(ask(partial, box, "retrieve", "/attributes/private"), 404, "things:attribute.notfound")
    refused(ask(partial, box, "retrieve", "/features/fan"), 404, "things:feature.notfound")
    assert ask(partial, box, "retrieve", "/features")["value"] == {
        "lamp": {"properties": {"on": False, "serial": "L-1"}}
    }


def test_case_72_a_stranger_finds_nothing_and_may_do_nothing(stranger: MqttClient, box: str) -> None:
    refused(ask(stranger, box, "retrieve"), 404, "things:thing.notfound")
    refused(ask(stranger, box, "modify", "/attributes/a", 1), 404, "things:thing.notfound")
    refused(ask(stranger, box, "delete"), 404, "things:thing.notfound")
    refused(ask(stranger, box, "retrieve", group="policies"), 404, "policies:policy.notfound")


def test_case_50_73_writing_ends_where_it_is_revoked(partial: MqttClient, owner: MqttClient, box: str) -> None:
    assert ask(partial, box, "modify", "/features/lamp/properties/on", True)["status"] == 204
    refused(
        ask(partial, box, "modify", "/features/lamp/properties/serial", "L-2"),
        403,
        "things:feature.property.notmodifiable",
    )
    refused(
        ask(partial, box, "modify", "/features/lamp/properties", {"on": 1}),
        403,
        "things:feature.properties.notmodifiable",
    )
    assert ask(partial, box, "merge", "/features/lamp/properties", {"on": 2}, headers=MERGE)["status"] == 204
    refused(
        ask(partial, box, "merge", "/features/lamp/properties", {"serial": "L-2"}, headers=MERGE),
        403,
        "things:thing.notmodifiable",
    )
    assert ask(owner, box, "retrieve", "/features/lamp/properties")["value"] == {"on": 2, "serial": "L-1"}


def test_case_77_a_policy_change_applies_immediately(owner: MqttClient, stranger: MqttClient, box: str) -> None:
    wider = policy_for(OWNER, acme_stranger={"thing:/attributes/public": READ})
    for policy, seen in ((wider, {"public": {"hall": 7}}), (POLICY, None)):
        assert ask(owner, box, "modify", value=policy, group="policies")["status"] == 204
        answer = ask(stranger, box, "retrieve")
        if seen is None:
            refused(answer, 404, "things:thing.notfound")
        else:
            assert answer["value"]["attributes"] == seen


def test_case_67_a_policy_is_deleted_after_its_things(owner: MqttClient, box: str) -> None:
    answer = ask(owner, box, "delete", group="policies")
    refused(answer, 409, "policies:policy.referenceconflict")
    assert answer["value"]["message"] == f"The policy 'acme.site:{box}' cannot be deleted: 1 thing names it."
    assert ask(owner, box, "retrieve")["status"] == 200
    assert ask(owner, box, "delete")["status"] == 204
    assert ask(owner, box, "delete", group="policies")["status"] == 204
    answer = ask(owner, box, "create", value={"policyId": f"acme.site:{box}", **POLICY}, group="policies")
    assert answer["status"] == 201


def test_case_65_an_unknown_policy_is_reported_on_the_topic_of_policies(owner: MqttClient, name: str) -> None:
    answer = ask(owner, name, "create", value={"policyId": "acme.site:never-there"})
    refused(answer, 404, "policies:policy.notfound")
    assert answer["topic"] == topic(name, "errors", "policies")


# --- conditions ---------------------------------------------------------------------------------------------------------


def test_case_79_80_81_82_entity_tags(owner: MqttClient, box: str, name: str) -> None:
    whole = {"attributes": {"n": 1}}
    first = {"if-match": '"rev:1"'}
    assert ask(owner, box, "modify", value=whole, headers=first)["headers"]["etag"] == '"rev:2"'
    refused(ask(owner, box, "modify", value=whole, headers=first), 412, "things:precondition.failed")
    refused(ask(owner, box, "delete", headers=first), 412, "things:precondition.failed")
    refused(ask(owner, box, "modify", value=whole, headers={"if-none-match": "*"}), 412, "things:precondition.failed")
    assert ask(owner, box, "retrieve", headers={"if-none-match": '"rev:2"'})["status"] == 304
    assert ask(owner, box, "retrieve", headers={"if-none-match": '"rev:1"'})["status"] == 200
    other = f"{name}-other"
    refused(ask(owner, other, "modify", value=whole, headers={"if-match": "*"}), 412, "things:precondition.failed")
    assert ask(owner, other, "modify", value=whole, headers={"if-none-match": "*"})["status"] == 201


def test_case_83_84_conditions(owner: MqttClient, box: str) -> None:
    """Also case 42 of the connection cases: 412 for a false condition, 400 for an unreadable one."""
    for condition, status, error in (
        ("eq(attributes/maker,'ACME')", 201, None),
        ("eq(attributes/maker,'OTHER')", 412, "things:condition.failed"),
        ("ne(attributes/none,1)", 204, None),
        ("exists(attributes/none)", 412, "things:condition.failed"),
    ):
        answer = ask(owner, box, "modify", "/attributes/when", 1, headers={"condition": condition})
        assert answer["status"] == status
        assert answer.get("value") == 1 if status == 201 else answer.get("value", {}).get("error") == error
    answer = ask(owner, box, "modify", "/attributes/when", 1, headers={"condition": "eq("})
    assert (answer["status"], answer["value"]["error"]) in (
        (400, "rql.expression.invalid"),
        (400, "things:condition.invalid"),
    )
    assert len(Reader(owner, box).all()) == 3


def test_case_85_86_87_if_equal_skips_or_minimizes_a_change_to_an_equal_value(owner: MqttClient, box: str) -> None:
    path, skip = "/attributes/maker", {"if-equal": "skip"}
    assert ask(owner, box, "modify", path, "ACME")["headers"]["entity-revision"] == 2
    refused(ask(owner, box, "modify", path, "ACME", headers=skip), 412, "things:precondition.failed")
    minimal = {**MERGE, "if-equal": "skip-minimizing-merge"}
    assert ask(owner, box, "merge", "/attributes", {"maker": "ACME", "new": 1}, headers=minimal)["status"] == 204
    items = Reader(owner, box).all()
    assert [(item["revision"], item["path"]) for item in items[1:]] == [(2, path), (3, "/attributes")]
    assert items[-1]["value"] == {"new": 1}


# --- sizes and answers --------------------------------------------------------------------------------------------------


def test_case_17_18_things_have_a_largest_size(owner: MqttClient, box: str, name: str) -> None:
    big = {"a": "x" * 102_401}
    refused(ask(owner, f"{name}-big", "create", value={"attributes": big}), 413, "things:thing.toolarge")
    assert ask(owner, box, "modify", "/attributes/most", "x" * 100_000)["status"] == 201
    refused(ask(owner, box, "modify", "/attributes/rest", "x" * 3_000), 413, "things:thing.toolarge")
    refused(ask(owner, box, "retrieve", "/attributes/rest"), 404, "things:attribute.notfound")


def test_case_22_a_command_without_a_required_response_gets_no_response(owner: MqttClient, box: str) -> None:
    """Neither a response nor an error, but the command takes effect."""
    silent = {"response-required": False}
    for verb, path, value in (
        ("retrieve", "/", None),
        ("modify", "/attributes/silent", 1),
        ("modify", "/features/none/properties", {}),
        ("delete", "/attributes/none", None),
    ):
        owner.command(topic(box, f"commands/{verb}"), path, value, headers=silent)
    owner.command(topic(box, "commands/retrieve"), "/attributes/silent", headers={"correlation-id": "answered"})
    answer = owner.next()
    assert (answer["headers"]["correlation-id"], answer["value"]) == ("answered", 1)


def test_custom_headers_travel_with_the_answer_and_conditions_do_not(owner: MqttClient, box: str) -> None:
    sent = {"trace": "t-1", "X-Mixed": "y", "if-match": "*", "condition": "ne(attributes/n,1)", "ditto-origin": "else"}
    found = ask(owner, box, "retrieve", headers=sent)["headers"]
    assert (found["trace"], found["X-Mixed"], found["ditto-originator"]) == ("t-1", "y", OWNER)
    assert not {"if-match", "condition", "ditto-origin"} & set(found)


def test_many_commands_of_one_source_keep_their_order(owner: MqttClient, box: str) -> None:
    """Case 10 of the connection cases."""
    sent = [owner.command(topic(box, "commands/modify"), "/attributes/n", number, wait=False) for number in range(500)]
    answers = [owner.next() for _ in sent]
    assert [answer["headers"]["correlation-id"] for answer in answers] == sent
    assert [answer["headers"]["entity-revision"] for answer in answers] == list(range(2, 502))


# --- policies -----------------------------------------------------------------------------------------------------------


def test_case_51_52_policies_are_created_and_modified(owner: MqttClient, name: str) -> None:
    policy = {"policyId": f"acme.site:{name}", **policy_for(OWNER)}
    answer = ask(owner, name, "create", value=policy, group="policies")
    assert (answer["status"], answer["topic"]) == (201, topic(name, "commands/create", "policies"))
    assert answer["value"]["entries"]["OWNER"]["importable"] == "implicit"
    assert (answer["value"]["imports"], answer["headers"]["etag"]) == ({}, '"rev:1"')
    refused(ask(owner, name, "create", value=policy, group="policies"), 409, "policies:policy.conflict")
    assert ask(owner, name, "modify", value=policy_for(OWNER), group="policies")["status"] == 204
    answer = ask(owner, f"{name}-2", "modify", value=policy_for(OWNER), group="policies")
    assert (answer["status"], answer["topic"]) == (201, topic(f"{name}-2", "commands/create", "policies"))


def test_case_54_55_a_policy_change_that_locks_out_its_author_is_refused(
    owner: MqttClient, box: str, name: str
) -> None:
    foreign = {"policyId": f"acme.site:{name}-p", **policy_for(STRANGER)}
    refused(ask(owner, f"{name}-p", "create", value=foreign, group="policies"), 403, "policies:policy.notcreatable")
    allowed = {"allow-policy-lockout": True}
    assert ask(owner, f"{name}-p", "create", value=foreign, group="policies", headers=allowed)["status"] == 201
    empty: dict[str, Any] = {"entries": {}}
    refused(ask(owner, box, "modify", value=empty, group="policies"), 403, "policies:policy.modificationinvalid")
    assert ask(owner, box, "retrieve")["status"] == 200


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"resources": {"thing:/": {"grant": ["READ"]}}}, "json.field.missing"),
        ({"subjects": {"acme:x": {}}}, "json.field.missing"),
        ({"subjects": {"no-issuer": {"type": "t"}}}, "policies:subjectid.invalid"),
        ({"subjects": {"acme:x": {"type": "t", "expiry": "2001-01-01T00:00:00Z"}}}, "policies:subjectexpiry.invalid"),
    ],
)
def test_case_58_60_a_policy_with_a_mistake_is_refused(
    owner: MqttClient, box: str, change: dict[str, Any], error: str
) -> None:
    entries = {**policy_for(OWNER)["entries"], "MORE": {"subjects": {}, "resources": {}, **change}}
    refused(ask(owner, box, "modify", value={"entries": entries}, group="policies"), 400, error)


def test_the_partial_reader_has_no_history(partial: MqttClient, box: str) -> None:
    """Case 95: a history shows everything, so it wants READ on everything."""
    Reader(partial, box).request(1)
    assert partial.next()["value"]["error"]["error"] == "things:thing.notfound"
