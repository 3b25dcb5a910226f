"""The parsers of twins: policies, permissions, things, merge patches and delete patterns.

A command is decided or refused with a TwinError. `TwinHarness` checks that each state is the replay of its events.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from connectivity.errors import TwinError
from connectivity.twins.policy_values import is_administered
from connectivity.twins.things import NOTHING, minimize
from spark_store.history.replay import (
    DeletePatternRefused,
    MatchBudget,
    is_delete_pattern,
    is_same,
    matching_keys,
    merge,
)
from tests.fuzzing.byte_reader import ByteReader
from tests.fuzzing.target import check_fault, target
from tests.support.oracles.permissions import (
    flattened,
    reference_has,
    reference_partial,
    reference_root,
    reference_unrestricted,
    segments,
)
from tests.support.replayed import fold
from tests.support.twin_harness import (
    OWNER,
    POLICY,
    VIEWER,
    TwinHarness,
    entry,
    granting,
    policy,
    revoking,
    twin_harness,
)


@contextmanager
def _decided_or_refused() -> Iterator[None]:
    try:
        yield
    except TwinError as error:
        check_fault(error.fault)


# ── policies ──────────────────────────────────────────────────────────────────────────────────────────────────────────

SHARED, NAMESPACE = "acme.shared:roles", "acme.plant"
NOWS = ("2030-01-15T07:30:00.250000Z", "2030-01-15T09:00:00.000000Z", "2031-01-01T00:00:00.000000Z")
SUBJECTS = (OWNER, VIEWER, "edge:a", "{{ request:subjectId }}")
RESOURCES = (
    *("thing:/", "thing:/attributes", "thing:/attributes/a", "thing:/attributes/a/b", "thing:/features/f/properties"),
    *(
        "policy:/",
        "policy:/entries/VIEW",
        "message:/",
        "stream:/tank",
        "thing:/thingId",
        "thing:",
        "thing:/attributes/",
    ),
)
LABELS = ("OWNERS", "VIEW", "A", "B", "imported-x", "ä/")
_MEMBERS = (
    *("policyId", "imports", "entries", "subjects", "resources", "importable", "allowedAdditions", "namespaces"),
    *(
        "references",
        "type",
        "expiry",
        "announcement",
        "beforeExpiry",
        "whenDeleted",
        "requestedAcks",
        "labels",
        "timeout",
    ),
    *("randomizationInterval", "grant", "revoke", "READ", "WRITE", "EXECUTE", "entry", "import", "transitiveImports"),
)
_VALUES = (
    "implicit",
    "explicit",
    "never",
    "1h",
    "acme.*",
    "acme.plant",
    "2030-01-15T08:00:00Z",
    "2031-01-01T00:00:00+02:00",
)
WORDS = (*_MEMBERS, *_VALUES, *SUBJECTS, *RESOURCES, *LABELS, SHARED, POLICY)
PATHS = (
    *(
        "/",
        "/entries",
        "/imports",
        f"/imports/{SHARED}",
        f"/imports/{SHARED}/entries",
        f"/imports/{SHARED}/transitiveImports",
    ),
    *(
        f"/entries/{label}{rest}"
        for label in ("VIEW", "A", "OWNERS")
        for rest in ("", "/subjects", "/resources", "/importable")
    ),
    *(
        f"/entries/VIEW/{rest}"
        for rest in ("namespaces", "allowedAdditions", "references", "subjects/edge:a", "resources/thing:/x")
    ),
)
_THING = {
    "thingId": "acme.plant:boiler",
    "attributes": {"a": {"b": [1, {"c": 2}]}, "x": None},
    "features": {"f": {"properties": {}}},
}


def write_policies(data: bytes) -> None:
    """A written policy keeps an administrator, and its permissions equal those of the reference."""
    reader = ByteReader(data)
    harness = TwinHarness()
    harness.write_policy({"A": entry([VIEWER], {"thing:/": granting("READ")})}, to=SHARED)
    harness.write_policy({"VIEW": entry([VIEWER], {"thing:/": granting("READ")})})
    for _ in range(1 + reader.below(6)):
        path = reader.choice(PATHS)
        with _decided_or_refused():
            if reader.byte() < 30:
                harness.send("delete", path, to=policy(POLICY))
            else:
                harness.send("modify", path, _part(reader, path), to=policy(POLICY))
        if reader.is_at_end:
            break
    _check_policy(harness, reader)


def _part(reader: ByteReader, path: str) -> Any:
    if reader.byte() < 60:
        return reader.json(WORDS, 5)
    if path.endswith("/subjects"):
        return _subjects(reader)
    if path.endswith("/resources"):
        return _resources(reader)
    if path == "/entries":
        return _entries(reader)
    if path == "/imports":
        return {SHARED: _import(reader)} if reader.flag() else {}
    if path.startswith("/imports/") and path.endswith(SHARED):
        return _import(reader)
    if path == "/":
        imports = {SHARED: _import(reader)} if reader.flag() else {}
        return {"policyId": POLICY, "imports": imports, "entries": _entries(reader)}
    return _entry(reader) if path.count("/") == 2 else reader.json(WORDS, 3)


def _entries(reader: ByteReader) -> dict[str, Any]:
    return {
        **({"OWNERS": entry([OWNER], {"policy:/": granting("READ", "WRITE")})} if reader.byte() < 200 else {}),
        **{label: _entry(reader) for label in reader.some(LABELS[1:])},
    }


def _entry(reader: ByteReader) -> dict[str, Any]:
    found: dict[str, Any] = {"subjects": _subjects(reader), "resources": _resources(reader)}
    options = reader.byte()
    if options & 1:
        found["importable"] = reader.choice(_VALUES)
    if options & 2:
        found["namespaces"] = reader.some(("acme.*", "acme.plant", "other", "acme", "x."))
    if options & 4:
        found["allowedAdditions"] = reader.some(("subjects", "resources", "namespaces", "x"))
    if options & 8:
        found["references"] = [
            {"entry": reader.choice(LABELS), **({"import": SHARED} if reader.flag() else {})}
            for _ in range(reader.below(3))
        ]
    if options >= 0xF0:
        found[reader.text(WORDS)] = reader.json(WORDS, 2)
    return found


def _subjects(reader: ByteReader) -> dict[str, Any]:
    return {
        reader.text(SUBJECTS): {"type": "t", **({"expiry": reader.choice(_VALUES[-2:])} if reader.byte() < 60 else {})}
        for _ in range(reader.below(4))
    }


def _resources(reader: ByteReader) -> dict[str, Any]:
    permissions = ("READ", "WRITE", "EXECUTE")
    return {
        reader.text(RESOURCES): {"grant": reader.some(permissions, 2), "revoke": reader.some(permissions, 2)}
        for _ in range(reader.below(5))
    }


def _import(reader: ByteReader) -> dict[str, Any]:
    return {
        "entries": reader.some(LABELS),
        **({"transitiveImports": reader.some((POLICY, "a:b"))} if reader.flag() else {}),
    }


def _check_policy(harness: TwinHarness, reader: ByteReader) -> None:
    entity = policy(POLICY)
    snapshot = harness.snapshots[entity]
    assert fold([event for event in harness.events if event.entity == entity]) == snapshot
    if snapshot.state is None:
        return
    assert is_administered(snapshot.state)
    harness.now = reader.choice(NOWS)
    states = {str(id): dict(found.state) for id, found in harness.snapshots.items() if found.state is not None}
    flat = flattened(POLICY, states, harness.now, NAMESPACE)
    enforcer = harness.lookup.enforcer(POLICY, NAMESPACE)
    assert enforcer is not None
    subjects = reader.some(SUBJECTS, 3)
    written = [key for each in flat["entries"].values() for key in each["resources"]]
    # The reference takes tildes and resources without a path literally.
    if any("~" in key or ":" not in key for key in written):
        return
    for resource in {*reader.some(RESOURCES), *reader.some(written or RESOURCES)}:
        for permission in ("READ", "WRITE"):
            facts = flat, subjects, permission, segments(resource)
            assert enforcer.has(subjects, permission, resource) == reference_has(*facts), (resource, permission)
            assert enforcer.unrestricted(subjects, permission, resource) == reference_unrestricted(*facts), resource
            assert enforcer.partial(subjects, permission, resource) == reference_partial(*facts), (resource, permission)
    assert enforcer.view(_THING, "thing:/", subjects) == reference_root(flat, subjects, _THING)


# ── things ────────────────────────────────────────────────────────────────────────────────────────────────────────────

_THING_PATHS = (
    *("/", "/attributes", "/attributes/a", "/attributes/a/b", "/features", "/features/f", "/features/f/properties"),
    *(
        "/features/f/properties/p",
        "/features/f/desiredProperties",
        "/features/f/definition",
        "/definition",
        "/policyId",
    ),
    *("/features/g/properties/x", "/attributes/x~0y"),
)
_THING_WORDS = (
    *(
        "thingId",
        "policyId",
        "definition",
        "attributes",
        "features",
        "properties",
        "desiredProperties",
        "a",
        "b",
        "f",
        "p",
    ),
    *("acme:lamp:1", POLICY, "acme.plant:boiler-07", "{{ ~a.*~ }}", "{{ /[ab]/ }}", "_metadata", "_policy", "x/y", "ä"),
)
_HEADERS: Mapping[str, Sequence[Any]] = {
    "if_equal": ("skip", "skip-minimizing-merge", "update"),
    "if_match": ("*", '"rev:1"', '"rev:2"'),
    "condition": ("exists(attributes/a)", "eq(attributes/a/b,1)", "ne("),
    "put_metadata": ([{"key": "*/k", "value": 1}], [{"key": "a/k", "value": {"x": None}}]),
    "merge_thing_patch_conditions": ({"a": "exists(attributes/b)", "features/f": "ne(attributes/a,1)"},),
    "get_metadata": ("*/k,a/k",),
}


def write_things(data: bytes) -> None:
    """Commands on a thing are decided or refused, and merges follow RFC 7396.

    A minimized patch must have the same effect. Values are drawn, or JSON texts from the input.
    """
    reader = ByteReader(data)
    harness = twin_harness(attributes={"a": {"b": 1}}, features={"f": {"properties": {"p": [1]}}, "n": None})
    harness.write_policy(
        {"VIEW": entry([VIEWER], {"thing:/": granting("READ", "WRITE"), "thing:/attributes/a": revoking("WRITE")})}
    )
    for _ in range(1 + reader.below(5)):
        action = reader.choice(("modify", "merge", "merge", "delete", "retrieve", "create"))
        path = (
            reader.choice(_THING_PATHS)
            if reader.byte() < 230
            else "/" + reader.text(_THING_PATHS) * (1 << reader.below(9))
        )
        headers = {name: reader.choice(_HEADERS[name]) for name in reader.some(list(_HEADERS), 2)}
        by = (VIEWER,) if reader.byte() < 60 else (OWNER,)
        value: Any = ... if action in ("delete", "retrieve") else _thing_value(reader)
        with _decided_or_refused():
            harness.send(action, path, value, by=by, **headers)
        if reader.is_at_end:
            break
    _check_merge(reader.json(_THING_WORDS), reader.json(_THING_WORDS))


def _thing_value(reader: ByteReader) -> Any:
    return reader.take() if reader.byte() < 60 else msgspec.json.encode(reader.json(_THING_WORDS))


def _check_merge(state: Any, patch: Any) -> None:
    try:
        merged = merge(state, patch)
    except DeletePatternRefused:
        return
    if not any(is_delete_pattern(key) for key in _keys(patch)):
        assert merged == _merged(state, patch)
    changes = minimize(state, patch)
    again = state if changes is NOTHING else merge(state, changes)
    # An empty patch turns a value that is not an object into an empty object.
    assert is_same(again, merged) or (changes is NOTHING and not isinstance(state, dict))


def _keys(value: Any) -> set[str]:
    if isinstance(value, list):
        return set().union(*map(_keys, value))
    return set(value).union(*map(_keys, value.values())) if isinstance(value, dict) else set()


def _merged(state: Any, patch: Any) -> Any:
    """Merge as in RFC 7396, section 2."""
    if not isinstance(patch, dict):
        return patch
    found = dict(state) if isinstance(state, dict) else {}
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = _merged(found.get(name), value)
    return found


# ── delete patterns ───────────────────────────────────────────────────────────────────────────────────────────────────


def match_patterns(data: bytes) -> None:
    """A delete pattern matches in limited time, or is refused.

    The first line is the expression, the others are keys.
    """
    text, *keys = data.decode("utf-8", "replace").split("\n")
    for key in (f"{{{{ ~{text}~ }}}}", f"{{{{/{text}/}}}}"):
        if not is_delete_pattern(key):
            assert not text
            continue
        try:
            found = matching_keys(key, [each[:256] for each in keys], MatchBudget())
        except DeletePatternRefused:
            continue
        assert set(found) <= {each[:256] for each in keys}


TARGETS = {
    "policies": target(write_policies, [bytes([5, *range(number, number + 80)]) for number in range(0, 170, 10)]),
    "things": target(
        write_things,
        [
            *(bytes([4, *range(number, number + 80)]) for number in range(0, 170, 10)),
            b'\x01\x00\x02\x00\x00\xff\x00\x16{"a":{"b":null},"c":1}',
        ],
        ['{"attributes":{', '"features":{"f":', "null", "{{ ~a.*~ }}", '"properties":{'],
    ),
    "delete-patterns": target(
        match_patterns,
        [
            "a.*\nab\nb",
            "[a-z]{2,5}x?\nabx\nx",
            "(?:a|b)c+\nacc",
            "(a+)+b\n" + "a" * 200,
            "\\d{3}-\\w+\n123-ab",
            "a{256}\n" + "a" * 256,
        ],
        (
            "(",
            ")",
            "(?:",
            "|",
            "*",
            "+",
            "?",
            "{1,256}",
            "{,}",
            "[^]]",
            "\\w",
            "\\1",
            "^",
            "$",
            "*+",
            "a",
            "\n",
            "(?=",
            "(?>",
        ),
    ),
}
