"""Counters: one call for the metric, the windows and the log entry."""

from __future__ import annotations

from connectivity.monitoring.meter import Meter
from connectivity.monitoring.windows import SecondClock
from connectivity.transports.mqtt.topics import matches
from mappings.ids import EntityId, EntityType
from mappings.model.signals import Command
from tests.support.clock import Clock as Hands

LAMP = EntityId(EntityType.THING, "acme.site", "lamp-7")


def meter() -> Meter:
    hands = Hands(10_000)
    return Meter("site", SecondClock(hands.now), hands.now)


def test_one_call_applies_to_prometheus_and_for_the_windows_and_writes_the_entry() -> None:
    made = meter()
    made.log.enable()
    command = Command(LAMP, "modify", "/attributes/on", b"true", {"correlation-id": "c-1"})
    made.target("out").not_published.note(command, words="timeout")
    assert made.deliveries() == {("out", "failed"): 1}
    assert made.report([], ["out"])["connectionMetrics"]["outbound"]["published"]["failure"]["PT1M"] == 1
    (entry,) = made.log.read()["connectionLogs"]
    found = [entry[name] for name in ("correlationId", "category", "type", "level", "message", "address", "entityId")]
    assert found == ["c-1", "target", "published", "failure", "timeout", "out", "acme.site:lamp-7"]


def test_nothing_is_written_while_the_log_is_off() -> None:
    made = meter()
    made.replies.published.note(None)
    made.log.enable()
    assert made.log.read()["connectionLogs"] == []


def command(correlation_id: str) -> Command:
    return Command(LAMP, "modify", "/attributes/on", b"true", {"correlation-id": correlation_id})


def test_a_counter_group_notes_a_signal_in_each_of_its_counters() -> None:
    made = meter()
    made.log.enable()
    made.target("out").written.note(command("c-1"))
    entries = made.log.read()["connectionLogs"]
    assert [entry["type"] for entry in entries] == ["dispatched", "filtered", "mapped"]
    assert {entry["correlationId"] for entry in entries} == {"c-1"}
    assert len({entry["message"] for entry in entries}) == 3
    metrics = made.report([], ["out"])["connectionMetrics"]["outbound"]
    assert [metrics[step]["success"]["PT1M"] for step in ("dispatched", "filtered", "mapped")] == [1, 1, 1]


def test_all_messages_of_a_batch_are_counted_and_the_last_ten_logged() -> None:
    made = meter()
    made.log.enable()
    facts = made.source(["in"])["in"]
    facts.read.note_each([command(f"c-{number}") for number in range(25)])
    facts.read.note_each([command("c-last")])
    consumed = [entry for entry in made.log.read()["connectionLogs"] if entry["type"] == "consumed"]
    assert [entry["correlationId"] for entry in consumed] == [*(f"c-{number}" for number in range(16, 25)), "c-last"]
    found = made.report(["in"], [])["connectionMetrics"]["inbound"]
    assert (found["consumed"]["success"]["PT1H"], found["mapped"]["success"]["PT1H"]) == (26, 26)


def test_reasons_that_share_a_ring_have_separate_messages() -> None:
    made = meter()
    made.log.enable()
    for fact in (made.replies.not_expected, made.replies.unresolved, made.replies.not_expected):
        fact.note(None)
    words = [entry["message"] for entry in made.log.read()["connectionLogs"]]
    assert words[1] == "Signal dropped, target address unresolved"
    assert words[0] == words[2] != words[1]


def test_a_response_has_no_address_in_the_log() -> None:
    made = meter()
    made.log.enable()
    made.replies.published.note(None)
    (entry,) = made.log.read()["connectionLogs"]
    assert (entry["category"], entry.get("address")) == ("response", None)


def test_a_message_is_counted_at_the_pattern_that_matches_its_address() -> None:
    made = meter()
    addresses = made.source(["fleet/+/cmd", "desk/#"], matches)
    for address in ("fleet/7/cmd", "desk/1", "desk/1/2"):
        addresses[address].consumed.note(None)
    report = made.report(["fleet/+/cmd", "desk/#"], [])["sourceMetrics"]["addressMetrics"]
    assert [report[name]["consumed"]["success"]["PT1M"] for name in ("fleet/+/cmd", "desk/#")] == [1, 2]


def test_an_address_without_matching_pattern_is_counted_at_the_first() -> None:
    addresses = meter().source(["a", "b"])
    assert addresses["c"] is addresses["a"]


def test_the_cache_of_addresses_is_bounded() -> None:
    addresses = meter().source(["#"], matches)
    for number in range(3_000):
        addresses[f"device/{number}"]
    assert len(addresses) <= 1_000
