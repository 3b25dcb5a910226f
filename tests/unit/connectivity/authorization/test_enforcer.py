"""Permissions: the rule by examples, and against a second, slow and obvious way to work it out."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import permutations
from typing import Any

import pytest

from connectivity.authorization.enforcer import DROP, Enforcer
from tests.support.dice import dice, examples
from tests.support.oracles.permissions import (
    Policy,
    a_value,
    reference_has,
    reference_partial,
    reference_unrestricted,
    reference_view,
    segments,
)
from tests.support.small_policies import A, B, C, a_policy

KEYS = ("attributes", "x", "y", "thingId")


def a_random_policy(dice: random.Random) -> Policy:
    rules = []
    for _ in range(dice.randint(1, 6)):
        path = "/".join(dice.choices(KEYS, k=dice.randint(0, 3)))
        permissions = dice.choice(((["READ"], []), ([], ["READ"]), (["WRITE"], ["READ"]), (["READ"], ["READ"])))
        type = dice.choice(("thing", "thing", "thing", "policy"))
        rules.append((dice.sample((A, B, C), dice.randint(1, 2)), f"{type}:/{path}", *permissions))
    return a_policy(*rules)


def test_the_enforcer_agrees_with_the_obvious_rule_on_random_policies() -> None:
    """Four questions over thousands of policies."""
    random_source = dice("enforcer")
    for _ in range(examples(3_000)):
        policy = a_random_policy(random_source)
        enforcer = Enforcer(policy)
        subjects = random_source.sample((A, B, C), random_source.randint(0, 3))
        for _ in range(3):
            deep = random_source.choice(([], [], ["x"] * 30))
            path = "thing:/" + "/".join(random_source.choices(KEYS, k=random_source.randint(0, 4)) + deep)
            place = segments(path)
            for permission in ("READ", "WRITE"):
                question = (subjects, permission, path)
                facts = (policy, subjects, permission, place)
                assert enforcer.has(*question) == reference_has(*facts), (policy, question)
                assert enforcer.unrestricted(*question) == reference_unrestricted(*facts), (policy, question)
                assert enforcer.partial(*question) == reference_partial(*facts), (policy, question)
            if path != "thing:/":
                value = a_value(random_source, KEYS)
                expected = reference_view(policy, subjects, value, place)
                assert enforcer.view(value, path, subjects) == expected, (policy, path, value)


def test_the_nearest_statement_wins_and_a_revoke_wins_on_its_node() -> None:
    enforcer = Enforcer(
        a_policy(([A], "thing:/", ["READ"], []), ([A], "thing:/x", [], ["READ"]), ([A], "thing:/x/y", ["READ"], []))
    )
    assert [enforcer.has([A], "READ", path) for path in ("thing:/", "thing:/x", "thing:/x/y/z")] == [True, False, True]
    assert not enforcer.unrestricted([A], "READ", "thing:/")
    assert enforcer.unrestricted([A], "READ", "thing:/x/y")
    assert enforcer.partial([A], "READ", "thing:/x")


def test_segments_match_as_wholes_and_types_stay_apart() -> None:
    enforcer = Enforcer(a_policy(([A], "thing:/features/burn", ["READ"], [])))
    assert not enforcer.has([A], "READ", "thing:/features/burner")
    assert not enforcer.has([A], "READ", "policy:/features/burn")
    assert not enforcer.has([A], "WRITE", "thing:/features/burn")
    assert not enforcer.has([], "READ", "thing:/features/burn")


def test_a_tilde_in_a_path_is_written_as_in_pointers() -> None:
    enforcer = Enforcer(a_policy(([A], "thing:/attributes/a~0b", ["READ"], [])))
    assert enforcer.has([A], "READ", "thing:/attributes/a~0b")
    assert enforcer.view({"a~b": 1, "a~0b": 2}, "thing:/attributes", [A]) == {"a~b": 1}


@pytest.mark.parametrize(
    "resources", list(permutations(["thing:/attributes", "thing:/attributes/~00", "thing:/attributes/~0"]))
)
def test_permissions_on_names_with_tildes_do_not_move_to_each_other(resources: Sequence[str]) -> None:
    """`~00` is the name `~0`, whose text is the path of the name `~`."""
    revoked = "thing:/attributes/~00"
    policy = a_policy(
        *(([A], it, [] if it == revoked else ["READ"], ["READ"] if it == revoked else []) for it in resources)
    )
    assert Enforcer(policy).view({"~": 1, "~0": 2}, "thing:/attributes", [A]) == {"~": 1}


def test_the_id_of_a_stream_is_in_its_resource_to_the_letter() -> None:
    """Two ids that an unescaped tilde would make one are two."""
    enforcer = Enforcer(a_policy(([A], "stream:/site/a~0b", ["READ"], []), ([B], "stream:/site/a~b", ["READ"], [])))
    assert [enforcer.has([A], "READ", f"stream:/site/{id}") for id in ("a~0b", "a~b", "a~1b")] == [True, False, False]
    assert [enforcer.has([B], "READ", f"stream:/site/{id}") for id in ("a~0b", "a~b", "a~00b")] == [False, True, False]


def test_the_root_shows_its_identity_to_every_reader_of_a_part() -> None:
    enforcer = Enforcer(a_policy(([A], "thing:/attributes/x", ["READ"], [])))
    thing = {"thingId": "a:b", "policyId": "a:p", "_revision": 3, "attributes": {"x": 1, "y": 2}}
    assert enforcer.view(thing, "thing:/", [A]) == {"thingId": "a:b", "_revision": 3, "attributes": {"x": 1}}
    assert enforcer.view(thing, "thing:/", [B]) is DROP


def test_a_view_of_a_fully_readable_value_is_not_copied() -> None:
    thing = {"attributes": {"x": {"y": 1}}}
    assert Enforcer(a_policy(([A], "thing:/", ["READ"], []))).view(thing, "thing:/", [A]) is thing


def test_expired_subjects_are_left_out_and_the_next_expiry_is_reported() -> None:
    policy = a_policy(([A, B, C], "thing:/", ["READ"], []))
    subjects = policy["entries"]["E0"]["subjects"]
    subjects[A]["expiry"] = "2030-01-01T00:00:00Z"
    subjects[B]["expiry"] = "2030-01-01T03:00:00+02:00"
    early = Enforcer(policy, "2029-12-31T23:59:59.999999Z")
    assert early.expires == "2030-01-01T00:00:00.000000Z"
    assert early.has([A], "READ", "thing:/")
    late = Enforcer(policy, "2030-01-01T00:00:00.000000Z")
    assert late.expires == "2030-01-01T01:00:00.000000Z"
    assert not late.has([A], "READ", "thing:/")
    assert late.has([B], "READ", "thing:/")
    assert Enforcer(policy, "2031").expires is None


def test_metadata_is_visible_with_the_readable_parts_of_a_thing() -> None:
    enforcer = Enforcer(
        {
            "entries": {
                "A": {
                    "subjects": {"a:reader": {}, "a:part": {}},
                    "resources": {"thing:/attributes/b": {"grant": [], "revoke": ["READ"]}},
                },
                "B": {"subjects": {"a:reader": {}}, "resources": {"thing:/": {"grant": ["READ"], "revoke": []}}},
                "C": {
                    "subjects": {"a:part": {}},
                    "resources": {"thing:/features": {"grant": ["READ"], "revoke": []}},
                },
            }
        },
        "2030-01-01T00:00:00.000000Z",
    )
    metadata = {"attributes": {"a": {"k": 1}, "b": {"k": 2}}, "features": {"f": {"k": 3}}}
    thing = {"attributes": {"a": 1, "b": 2}, "features": {"f": {}}, "_metadata": metadata}
    assert enforcer.view(thing, "thing:/", ["a:reader"])["_metadata"] == {
        "attributes": {"a": {"k": 1}},
        "features": {"f": {"k": 3}},
    }
    assert enforcer.view(thing, "thing:/", ["a:part"]) == {
        "features": {"f": {}},
        "_metadata": {"features": {"f": {"k": 3}}},
    }
    only = {"attributes": {"b": 2}, "_metadata": {"attributes": {"b": {"k": 2}}}}
    assert enforcer.view(only, "thing:/", ["a:part"]) is DROP


GRANT_AND_REVOKE = [
    pytest.param([([A], "thing:/attributes", ["READ"], ["READ"])], id="one resource"),
    pytest.param(
        [([A], "thing:/attributes", ["READ"], []), ([A], "thing:/attributes", [], ["READ"])], id="two entries"
    ),
    pytest.param([([A], "thing:/", ["READ"], []), ([A], "thing:/", [], ["READ"])], id="the whole thing"),
    pytest.param(
        [([A], "thing:/attributes", ["READ"], []), ([C], "thing:/attributes", [], ["READ"])], id="two subjects"
    ),
]


@pytest.mark.parametrize("rules", GRANT_AND_REVOKE)
def test_a_grant_that_is_revoked_at_the_same_path_shows_nothing_not_even_the_id(rules: Any) -> None:
    enforcer = Enforcer(a_policy(*rules, ([B], "thing:/features", ["READ"], [])))
    assert not enforcer.partial([A, C], "READ", "thing:/")
    assert not enforcer.is_known_to([A, C], "thing", "message")
    assert enforcer.view({"thingId": "a:b", "attributes": {"x": 1}}, "thing:/", [A, C]) is DROP
    assert enforcer.partial([A, B, C], "READ", "thing:/")


def test_a_grant_below_a_revoked_one_is_found_also_for_several_subjects() -> None:
    rules: Any = [
        ([A], "thing:/attributes", ["READ"], []),
        ([B], "thing:/attributes", [], ["READ"]),
        ([A], "thing:/attributes/x/y", ["READ"], []),
    ]
    assert Enforcer(a_policy(*rules)).partial([A, B], "READ", "thing:/")
    hidden: Any = ([B], "thing:/attributes/x/y", [], ["READ"])
    assert not Enforcer(a_policy(*rules, hidden)).partial([A, B], "READ", "thing:/")


def test_an_answer_that_is_kept_is_that_of_its_subjects_permission_and_path() -> None:
    enforcer = Enforcer(a_policy(([A], "thing:/attributes", ["READ"], []), ([B], "thing:/", ["WRITE"], [])))
    asked = [
        ([A], "READ", "thing:/attributes/a", True),
        ([A], "WRITE", "thing:/attributes/a", False),
        ([A], "READ", "thing:/features", False),
        ([A, B], "WRITE", "thing:/features", True),
        ([B], "READ", "thing:/attributes/a", False),
    ]
    for subjects, permission, path, is_allowed in asked * 2:
        assert enforcer.unrestricted(subjects, permission, path) is is_allowed


def test_notations_of_a_path_in_a_policy_are_equal() -> None:
    rules: Any = [([A], "thing:/attributes/", ["READ"], []), ([A], "thing://attributes", [], ["READ"])]
    enforcer = Enforcer(a_policy(*rules, ([B], "thing:/attributes//x/", ["READ"], [])))
    assert not enforcer.has([A], "READ", "thing:/attributes")
    assert enforcer.unrestricted([B], "READ", "thing:/attributes/x")
    assert enforcer.named_below([A, B], "READ", "thing:/attributes/") == {"x"}
    assert enforcer.named_below([A], "READ", "thing:/attributes") == set()


def test_the_number_of_kept_answers_is_bounded() -> None:
    enforcer = Enforcer(a_policy(([A], "thing:/", ["READ"], [])))
    for number in range(1_000):
        assert enforcer.unrestricted([A], "READ", f"thing:/attributes/{number}")
    assert len(enforcer._known) <= 128
