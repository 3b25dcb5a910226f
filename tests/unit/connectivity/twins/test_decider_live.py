"""Permissions to send and to receive live signals, by the policy of the thing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from connectivity.authorization.enforcer import Enforcer
from connectivity.twins.access import may_receive, may_send
from connectivity.twins.incarnations import WithoutPast
from mappings.ids import EntityId, EntityType
from mappings.model.signals import Live, LiveCommand, LiveEvent, Message
from spark_store.records import Snapshot
from tests.support.table import each_row

LAMP = EntityId(EntityType.THING, "acme.site", "lamp-7")
AT = "2030-01-15T07:30:00.000000Z"
BLINK = Message(LAMP, "to", "blink", "/inbox/messages/blink", None, {})
TELL = Message(LAMP, "from", "tell", "/features/bulb/outbox/messages/tell", None, {})


def live(action: str, path: str = "/attributes/on", value: bytes | None = b"true") -> LiveCommand:
    return LiveCommand(LAMP, action, path, value, {})


class OneLamp(WithoutPast):
    """A state lookup with one lamp, whose policy has these permissions of `a:user`."""

    def __init__(self, resources: Mapping[str, Any] | None, *, is_deleted: bool = False) -> None:
        self._enforcer = None
        if resources is not None:
            entry = {"subjects": {"a:user": {"type": "test"}}, "resources": resources}
            self._enforcer = Enforcer({"entries": {"E": entry}})
        self._lamp = Snapshot(LAMP, 1, AT, AT, None if is_deleted else {}, "acme.site:lamp-7")

    def snapshot(self, entity: EntityId) -> Snapshot | None:
        return self._lamp if entity == LAMP else None

    def enforcer(self, policy_id: str, namespace: str | None = None) -> Enforcer | None:
        return self._enforcer


def grant(*permissions: str, revoke: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"grant": list(permissions), "revoke": list(revoke)}


@each_row(
    ("signal", "resources", "error"),
    [
        (BLINK, {"message:/": grant("WRITE")}, None),
        (BLINK, {"message:/inbox/messages/blink": grant("WRITE")}, None),
        (BLINK, {"message:/outbox": grant("WRITE"), "thing:/": grant("WRITE")}, "messages:send.notallowed"),
        (BLINK, {"message:/": grant("WRITE"), "message:/inbox": grant(revoke=("WRITE",))}, "messages:send.notallowed"),
        (BLINK, {"message:/": grant("READ")}, "messages:send.notallowed"),
        (BLINK, {"thing:/attributes/on": grant("READ")}, "messages:send.notallowed"),
        (BLINK, {}, "things:thing.notfound"),
        (BLINK, None, "things:thing.notfound"),
        (TELL, {"message:/features/bulb": grant("WRITE")}, None),
        (TELL, {"message:/features/other": grant("WRITE")}, "messages:send.notallowed"),
        (live("modify"), {"thing:/attributes": grant("WRITE")}, None),
        (live("modify"), {"thing:/features": grant("WRITE")}, "things:attribute.notmodifiable"),
        (live("merge"), {"message:/": grant("READ")}, "things:thing.notmodifiable"),
        (live("merge", "/attributes", b'{"on":1}'), {"thing:/attributes/on": grant("WRITE")}, None),
        (live("merge", "/", b'{"attributes":{"on":null}}'), {"thing:/attributes/on": grant("WRITE")}, None),
        (
            live("merge", "/attributes", b'{"on":1,"off":2}'),
            {"thing:/attributes/on": grant("WRITE")},
            "things:thing.notmodifiable",
        ),
        (live("merge", "/attributes", b"{}"), {"thing:/attributes/on": grant("WRITE")}, "things:thing.notmodifiable"),
        (
            live("modify", "/attributes", b'{"on":1}'),
            {"thing:/attributes/on": grant("WRITE")},
            "things:attributes.notmodifiable",
        ),
        (live("delete", "/", None), {"message:/": grant("READ")}, "things:thing.notdeletable"),
        (live("delete", "/features", None), {"message:/": grant("READ")}, "things:features.notmodifiable"),
        (live("merge"), {}, "things:thing.notfound"),
        (live("merge"), {"thing:/": {"grant": ["WRITE"], "revoke": ["WRITE"]}}, "things:thing.notfound"),
        (live("retrieve", value=None), {"thing:/attributes/on": grant("READ")}, None),
        (live("retrieve", "/attributes", None), {"thing:/attributes/on": grant("READ")}, None),
        (live("retrieve", value=None), {"thing:/attributes/on": grant("WRITE")}, "things:attribute.notfound"),
        (live("retrieve", value=None), None, "things:thing.notfound"),
        (live("modify", "/attributes/" + "x" * 300), {}, "things:thing.notfound"),
        (live("modify", "/attributes/" + "x" * 300), {"thing:/": grant("WRITE")}, "json.key.invalid"),
        (LiveEvent(LAMP, "modified", "/attributes/on", b"1", {}), {"thing:/": grant("WRITE")}, None),
        (
            LiveEvent(LAMP, "modified", "/attributes/on", b"1", {}),
            {"thing:/": grant("READ")},
            "things:event.notallowed",
        ),
    ],
)
def test_sending_a_live_signal_requires_write_permission(
    signal: Live, resources: Mapping[str, Any] | None, error: str | None
) -> None:
    fault = may_send(signal, ("a:user",), OneLamp(resources))
    assert (fault.error if fault is not None else None) == error


@pytest.mark.parametrize("lookup", [OneLamp({"message:/": grant("WRITE")}, is_deleted=True)])
def test_a_deleted_thing_is_sent_nothing(lookup: OneLamp) -> None:
    fault = may_send(BLINK, ("a:user",), lookup)
    assert fault is not None
    assert (fault.status, fault.error) == (404, "things:thing.notfound")


@each_row(
    ("signal", "resources", "may"),
    [
        (BLINK, {"message:/": grant("READ")}, True),
        (BLINK, {"message:/": grant("READ"), "message:/inbox": grant(revoke=("READ",))}, False),
        (BLINK, {"thing:/": grant("READ")}, False),
        (BLINK, {"message:/": grant("WRITE")}, False),
        (BLINK, None, False),
        (live("modify"), {"thing:/": grant("READ")}, True),
        (live("modify"), {"message:/": grant("READ")}, False),
        (live("modify", "/attributes", b"{}"), {"thing:/attributes/on": grant("READ")}, False),
        (live("modify", "/", b"{}"), {"thing:/": grant("READ"), "thing:/attributes": grant(revoke=("READ",))}, False),
        (live("retrieve", "/attributes", None), {"thing:/attributes/on": grant("READ")}, True),
        (LiveEvent(LAMP, "modified", "/attributes/on", b"1", {}), {"thing:/": grant("READ")}, True),
    ],
)
def test_receiving_a_live_signal_requires_read_permission(
    signal: Live, resources: Mapping[str, Any] | None, may: bool
) -> None:
    assert may_receive(signal, ("a:user",), OneLamp(resources)) is may
