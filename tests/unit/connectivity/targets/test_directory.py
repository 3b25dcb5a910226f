"""The directory of open connections. The tests of reply targets cover diverted responses."""

from __future__ import annotations

from connectivity.targets.directory import ConnectionDirectory
from connectivity.targets.open_connection import DivertingOptions, OpenConnection
from mappings.model.signals import Response
from tests.support.in_process.service import LAMP, connection

ANSWER = Response(LAMP, "modify", "/", 204, None, {"divert-response-to-connection": "site"})


def test_members_come_and_go() -> None:
    members = ConnectionDirectory()
    for name in ("a", "b"):
        members.opened(OpenConnection(connection(id=name), ()))
    members.closed("nobody")
    assert [member.connection_id for member in members] == ["a", "b"]
    for member in members:
        members.closed(member.connection_id)
    assert list(members) == []


def test_options_are_read_as_documents_write_them() -> None:
    config = {"is-diversion-source": "True", "authorized-connections-as-sources": " a,b ,,"}
    assert DivertingOptions.of(connection(specificConfig=config)) == DivertingOptions(
        is_source=True, authorized=frozenset({"a", "b"})
    )


def test_a_connection_does_not_divert_to_itself() -> None:
    members = ConnectionDirectory()
    config = {"is-diversion-source": "true", "is-diversion-target": "true", "authorized-connections-as-sources": "site"}
    members.opened(OpenConnection(connection(specificConfig=config), ()))
    assert members.find_diversion(ANSWER.headers, "response", "site", 0) is None


def test_a_target_connection_without_targets_takes_nothing() -> None:
    members = ConnectionDirectory()
    members.opened(OpenConnection(connection(id="a", specificConfig={"is-diversion-source": "true"}), ()))
    config = {"is-diversion-target": "true", "authorized-connections-as-sources": "a"}
    members.opened(OpenConnection(connection(specificConfig=config), ()))
    diverted = members.find_diversion(ANSWER.headers, "response", "a", 0)
    assert diverted is not None
    assert diverted.target is None
    assert repr(next(iter(members))) == "<OpenConnection a, 0 targets>"
