"""Entity tags of every part of a thing and of a policy, with every action."""

from __future__ import annotations

from typing import Any

import pytest

from connectivity.errors import TwinError
from tests.support.twin_harness import POLICY, THING, VIEWER, TwinHarness, entry, granting, policy, thing, twin_harness

THING_PARTS: dict[str, Any] = {
    "/policyId": POLICY,
    "/definition": "a:b:2",
    "/attributes": {"a": 2},
    "/attributes/a": 2,
    "/features": {"f": {"properties": {}}},
    "/features/f": {"properties": {}},
    "/features/f/definition": ["a:c:2"],
    "/features/f/properties": {"p": 2},
    "/features/f/properties/p": 2,
    "/features/f/desiredProperties": {"p": 2},
    "/features/f/desiredProperties/p": 2,
}
"""Every part of a thing, and another value for it."""

SUBJECT = {"type": "other"}
POLICY_PARTS: dict[str, Any] = {
    "/entries/SOME": entry(["edge:other"], {"thing:/": granting("READ")}),
    "/entries/SOME/subjects": {"edge:other": SUBJECT},
    "/entries/SOME/subjects/edge:viewer": SUBJECT,
    "/entries/SOME/resources": {"thing:/": granting("WRITE")},
    "/entries/SOME/resources/thing:/": granting("WRITE"),
    "/entries/SOME/importable": "explicit",
    "/imports": {},
}


def full_harness() -> TwinHarness:
    feature = {"definition": ["a:c:1"], "properties": {"p": 1}, "desiredProperties": {"p": 1}}
    harness = twin_harness(definition="a:b:1", attributes={"a": 1}, features={"f": feature})
    harness.write_policy({"SOME": entry([VIEWER], {"thing:/": granting("READ")})})
    return harness


def tag_of(harness: TwinHarness, to: Any, path: str) -> str:
    tag: str = harness.send("retrieve", path, to=to).response.headers["etag"]
    return tag


def refused(harness: TwinHarness, action: str, path: str, value: Any = ..., **more: Any) -> tuple[int, str, str | None]:
    """Return status, code and tag of the refusal."""
    with pytest.raises(TwinError) as caught:
        harness.send(action, path, value, **more)
    return caught.value.fault.status, caught.value.fault.error, caught.value.etag


def cases() -> list[Any]:
    found = []
    for path, value in {"/": {"attributes": {}}, **THING_PARTS}.items():
        actions = ("retrieve", "modify", "merge", *(() if path == "/policyId" else ("delete",)))
        found += [pytest.param("things", action, path, value, id=f"{action} {path}") for action in actions]
    whole = {
        "policyId": POLICY,
        "entries": {"OWNERS": entry(["edge:gateway-3"], {"policy:/": granting("READ", "WRITE")})},
    }
    for path, value in {"/": whole, **POLICY_PARTS}.items():
        actions = (
            "retrieve",
            "modify",
            *(() if path.endswith(("/subjects", "/resources", "importable")) else ("delete",)),
        )
        found += [
            pytest.param("policies", action, path, value, id=f"{action} policy {path}")
            for action in actions
            if (action, path) != ("delete", "/")
        ]
    return found


@pytest.mark.parametrize(("group", "action", "path", "value"), cases())
def test_a_tag_decides_and_the_refusal_has_the_present_one(group: str, action: str, path: str, value: Any) -> None:
    entity = thing(THING) if group == "things" else policy(POLICY)
    body = value if action in ("modify", "merge") else ...

    def ask(harness: TwinHarness, **tags: str) -> int:
        return harness.status(action, path, body, to=entity, **tags)

    tag = tag_of(full_harness(), entity, path)
    failed = (412, f"{group}:precondition.failed", tag)
    found = failed if action != "retrieve" else (304, f"{group}:precondition.notmodified", tag)
    for matching in ("*", tag, f'"other", {tag}'):
        assert ask(full_harness(), if_match=matching) in (200, 204)
        assert refused(full_harness(), action, path, body, to=entity, if_none_match=matching) == found
    for other in ('"other"', '"other","another"', f"W/{tag}"):
        assert refused(full_harness(), action, path, body, to=entity, if_match=other) == failed
    assert ask(full_harness(), if_none_match='"other","another"') in (200, 204)
    both = {"if_match": tag, "if_none_match": '"other"'}
    assert ask(full_harness(), **both) in (200, 204)


@pytest.mark.parametrize("path", [path for path in THING_PARTS if path not in ("/policyId", "/features/f")])
def test_an_absent_part_has_no_tag(path: str) -> None:
    features: dict[str, Any] | None = {"f": {}} if path.startswith("/features/") else None
    members = {} if features is None else {"features": features}
    value = THING_PARTS[path]
    for action in ("modify", "merge"):
        missing = (412, "things:precondition.failed", None)
        assert refused(twin_harness(**members), action, path, value, if_match="*") == missing
        assert refused(twin_harness(**members), action, path, value, if_match='"other"') == missing
        assert twin_harness(**members).status(action, path, value, if_none_match="*") == (
            201 if action == "modify" else 204
        )
    for action in ("retrieve", "delete"):
        for header in ("if_match", "if_none_match"):
            status, _, tag = refused(twin_harness(**members), action, path, **{header: "*"})
            assert (status, tag) == (404, None)


def test_a_writer_that_cannot_read_the_part_gets_no_tag() -> None:
    harness = full_harness()
    harness.write_policy({"SOME": entry([VIEWER], {"thing:/attributes": granting("WRITE")})})
    refusal = refused(harness, "modify", "/attributes/a", 3, by=[VIEWER], if_none_match="*")
    assert refusal == (412, "things:precondition.failed", None)


def test_the_creation_of_an_existing_thing_is_refused_with_its_tag() -> None:
    harness = full_harness()
    for action in ("create", "modify"):
        found = refused(harness, action, "/", {"policyId": POLICY}, if_none_match="*")
        assert found == (412, "things:precondition.failed", '"rev:1"')
    assert refused(TwinHarness(), "retrieve", "/", if_match="*") == (404, "things:thing.notfound", None)


def test_a_value_that_changes_nothing_is_refused_without_a_tag() -> None:
    for action in ("modify", "merge"):
        found = refused(full_harness(), action, "/attributes/a", 1, if_equal="skip")
        assert found == (412, "things:precondition.failed", None)
