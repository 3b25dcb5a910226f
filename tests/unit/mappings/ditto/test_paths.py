"""Which paths things and policies have, and what may be done there."""

from __future__ import annotations

import pytest

from mappings.ditto.paths import RESOURCES
from mappings.errors import DecodeError, UnknownPath
from mappings.ids import EntityType
from tests.support.table import each_row

ALL = "modify merge retrieve delete"

THING_PATHS = {
    "/": f"create {ALL}",
    "/policyId": "modify merge retrieve",
    "/definition": ALL,
    "/attributes": ALL,
    "/attributes/a": ALL,
    "/attributes/a/b/c": ALL,
    "/features": ALL,
    "/features/lamp": ALL,
    "/features/lamp/definition": ALL,
    "/features/lamp/properties": ALL,
    "/features/lamp/properties/a/b": ALL,
    "/features/lamp/desiredProperties": ALL,
    "/features/lamp/desiredProperties/a": ALL,
}

POLICY_PATHS = {
    "/": "create modify retrieve delete checkPermissions",
    "/entries": "modify retrieve",
    "/entries/owner": "modify retrieve delete",
    "/entries/owner/subjects": "modify retrieve",
    "/entries/owner/subjects/acme:user": "modify retrieve delete",
    "/entries/owner/subjects/https://idp/x//y:user": "modify retrieve delete",
    "/entries/owner/resources": "modify retrieve",
    "/entries/owner/resources/thing:/": "modify retrieve delete",
    "/entries/owner/resources/thing:/features/lamp": "modify retrieve delete",
    "/entries/owner/importable": "modify retrieve",
    "/entries/owner/namespaces": "modify retrieve",
    "/entries/owner/allowedAdditions": "modify retrieve delete",
    "/entries/owner/references": "modify retrieve delete",
    "/entries/owner/actions/activateTokenIntegration": "create",
    "/actions/deactivateTokenIntegration": "create",
    "/imports": "modify retrieve delete",
    "/imports/acme:base": "modify retrieve delete",
    "/imports/acme:base/entries": "modify retrieve",
    "/imports/acme:base/transitiveImports": "modify retrieve",
}


@each_row(("path", "actions"), THING_PATHS.items())
def test_a_path_of_a_thing_takes_its_actions(path: str, actions: str) -> None:
    assert RESOURCES[EntityType.THING](path) == (path, frozenset(actions.split()))


@each_row(("path", "actions"), POLICY_PATHS.items())
def test_a_path_of_a_policy_takes_its_actions(path: str, actions: str) -> None:
    assert RESOURCES[EntityType.POLICY](path) == (path, frozenset(actions.split()))


@each_row(
    ("type", "written", "path"),
    [
        (EntityType.THING, "", "/"),
        (EntityType.THING, "attributes/a", "/attributes/a"),
        (EntityType.THING, "/attributes/a/", "/attributes/a"),
        (EntityType.THING, "/attributes/~01", "/attributes/~01"),
        (EntityType.THING, "/attributes/~1", "/attributes/~01"),
        (EntityType.POLICY, "", "/"),
        (EntityType.POLICY, "entries/owner/", "/entries/owner"),
        (EntityType.POLICY, "entries/owner/resources/thing:/", "/entries/owner/resources/thing:/"),
        (EntityType.POLICY, "/entries/owner/subjects/", "/entries/owner/subjects"),
    ],
)
def test_a_path_has_one_normal_form(type: EntityType, written: str, path: str) -> None:
    assert RESOURCES[type](written).path == path
    assert RESOURCES[type](path).path == path


@each_row(
    ("type", "path"),
    [
        (EntityType.THING, "/colour"),
        (EntityType.THING, "/policyId/x"),
        (EntityType.THING, "/definition/x"),
        (EntityType.THING, "/features/lamp/colour"),
        (EntityType.THING, "/features/lamp/definition/x"),
        (EntityType.THING, "/_policy"),
        (EntityType.THING, "/_policy/entries"),
        (EntityType.THING, "/entries"),
        (EntityType.POLICY, "/attributes"),
        (EntityType.POLICY, "/policyId"),
        (EntityType.POLICY, "/entries/owner/colour"),
        (EntityType.POLICY, "/entries/owner/importable/x"),
        (EntityType.POLICY, "/imports/acme:base/colour"),
    ],
)
def test_any_other_path_is_unknown(type: EntityType, path: str) -> None:
    with pytest.raises(UnknownPath) as caught:
        RESOURCES[type](path)
    assert caught.value.fault.error == "protocoladapter:unknown.path"


@pytest.mark.parametrize(
    "path", ["//", "/attributes//a", "/features/lamp/properties/a//", "/attributes/a//b" + "c" * 999]
)
def test_two_slashes_in_a_row_are_an_invalid_pointer(path: str) -> None:
    with pytest.raises(DecodeError) as caught:
        RESOURCES[EntityType.THING](path)
    assert caught.value.fault.error == "json.pointer.invalid"
    assert len(caught.value.fault.message) < 300


def test_a_long_path_is_read_like_a_short_one() -> None:
    path = "/attributes/" + "a" * 5000
    assert RESOURCES[EntityType.THING](path).path == path


@pytest.mark.parametrize("path", ["/attributes" + "/a" * 199, "attributes" + "/a" * 199 + "/"])
def test_a_path_of_a_thing_has_at_most_200_segments(path: str) -> None:
    assert RESOURCES[EntityType.THING](path).path == "/attributes" + "/a" * 199
    with pytest.raises(DecodeError, match=r"json\.invalid") as caught:
        RESOURCES[EntityType.THING]("/a/" + path.removeprefix("/"))
    assert caught.value.fault.description == "Found 201 segments, expected at most 200."


def test_a_subject_and_a_resource_of_a_policy_have_any_number_of_slashes() -> None:
    path = "/entries/owner/resources/thing:" + "/a" * 300
    assert RESOURCES[EntityType.POLICY](path).path == path
