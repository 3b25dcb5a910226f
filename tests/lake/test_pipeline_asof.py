"""Past states of things from a real Spark: the same as a replay up to that moment, for every subject."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import msgspec
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from connectivity.subscriptions.as_of_feed import AsOfSearches, PastOptions
from connectivity.twins.decider import Decider
from mappings.ids import EntityId, EntityType
from mappings.model.signals import Event
from spark_store.errors import StoreUnavailable
from spark_store.journal import erasure
from spark_store.journal.journal import Journal
from spark_store.journal.reader import JournalReader
from spark_store.lake import reader
from spark_store.lake.tables import FULL_SNAPSHOTS, SNAPSHOTS, TABLES, Lake
from spark_store.lake.watermark import read_watermark
from spark_store.pipeline import snapshots, table_maintenance
from spark_store.pipeline.erasure import clean
from spark_store.pipeline.retention import delete_expired
from spark_store.pipeline.retention_rules import RetentionRule, RetentionRules
from spark_store.pipeline.tables import LakeWriter
from spark_store.pipeline.warm_up import warm_up
from spark_store.queries.as_of import (
    candidates,
    matching,
    query,
    result_files,
    visible_parts,
    with_guards,
)
from spark_store.queries.as_of_fold import Candidate, FoldOutput
from spark_store.queries.spark_query import QueryLimits, SparkQueries, SparkQuery
from spark_store.queries.spool import SpoolLimits
from spark_store.records import Change, Snapshot, StateGuard
from spark_store.rql.options import read_options
from spark_store.rql.order import key_of, sort_key
from spark_store.rql.query import Access, Thing, ThingQuery
from spark_store.rql.search_evaluator import holds, read
from tests.support.dice import dice
from tests.support.in_process.search_client import Searcher, has_thing
from tests.support.in_process.service import ConnectionHarness, command, searching, source
from tests.support.journal_entries import timestamp
from tests.support.lake.pipeline_process import WITHIN, DataFolder, lamp, take_all
from tests.support.lake.pipeline_tables import add_events, add_states, write_all_tables, write_full_snapshot
from tests.support.random_histories import RandomChange, history_of
from tests.support.replayed import fold
from tests.support.wait import wait_until

pytestmark = pytest.mark.spark

THINGS = 40
NOW = datetime(2030, 6, 1, tzinfo=UTC)


class Subject:
    """Reads all of the things of one policy, one attribute of those of another, and nothing else."""

    def __init__(self, *, is_whole: bool) -> None:
        self.is_whole = is_whole

    def may(self, path: Sequence[str]) -> bool:
        return self.is_whole or tuple(path[:2]) == ("attributes", "a")

    def view(self, thing: Thing) -> Thing | None:
        if self.is_whole:
            return thing
        attributes = thing.get("attributes")
        if not isinstance(attributes, Mapping) or "a" not in attributes:
            return None
        beside = {name: thing[name] for name in ("thingId", "_revision", "_created", "_modified")}
        return {**beside, "attributes": {"a": attributes["a"]}}


ACCESS: Mapping[str, Access | None] = {
    "acme.site:open": Subject(is_whole=True),
    "acme.site:half": Subject(is_whole=False),
    "acme.site:shut": None,
}

QUESTIONS = [
    (None, None, ()),
    ("exists(attributes/a)", "sort(-attributes/a,+_modified)", ()),
    ("not(gt(attributes/n,2))", "sort(+attributes/n)", ("acme.lab",)),
    ("or(eq(features/*/properties/on,true),not(exists(attributes/a)))", None, ("acme.site", "acme.lab")),
    ('not(like(attributes/a,"x*?*"))', "sort(-thingId)", ()),
    ('and(gt(attributes/n,1),lt(_modified,"2030-01-15T00:01:20Z"))', "sort(+attributes/a)", ()),
]


def by_chance(random: Random) -> list[RandomChange]:
    """Return random changes of one thing."""

    def thing() -> dict[str, Any]:
        policy = random.choice(list(ACCESS))
        return {"policyId": policy, "attributes": {"a": random.choice([1, "x", [3, 1]]), "n": random.randrange(5)}}

    def change() -> RandomChange:
        return random.choice(
            [
                RandomChange("modified", "/attributes/n", random.randrange(5)),
                RandomChange("modified", "/attributes/n", random.randrange(5)),
                RandomChange("modified", "/features/lamp/properties/on", random.random() < 0.5),
                RandomChange("merged", "/attributes", {"a": None, "ü": {"b": 2**60}}),
                RandomChange("modified", "/attributes/a", [1], b'{"_metadata":[["/attributes/a/unit","W"]]}'),
                RandomChange("deleted", "/attributes/a", None),
                RandomChange("modified", "/", thing()),
                RandomChange("deleted", "/", None),
            ]
        )

    return [RandomChange("created", "/", thing()), *(change() for _ in range(random.randrange(14)))]


def permissions_of(policy: str) -> bytes:
    """Return the permissions that a deletion stores; expected results are not computed from them."""
    return msgspec.json.encode({"policies": [policy], "entries": {}})


class Replays:
    """Random histories of all things, and their states at any moment."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.lives: dict[EntityId, list[tuple[Event, Snapshot]]] = {}
        for number in range(THINGS):
            entity = EntityId(EntityType.THING, random.choice(["acme.site", "acme.lab"]), f"lamp-{number}")
            happenings = by_chance(random)
            seconds = sorted(random.sample(range(1, 300), len(happenings)))
            self.lives[entity] = history_of(entity, happenings, seconds)

    def changes(self, since: int, until: int) -> list[Change]:
        """Return the changes within these seconds, ordered by time."""
        found = [pair for life in self.lives.values() for pair in life]
        within = [it for it in found if timestamp(since) <= it[0].timestamp < timestamp(until)]
        return [
            Change((event,), (state,), permissions=permissions_of(state.policy or "") if event.is_deletion else None)
            for event, state in sorted(within, key=lambda it: it[0].timestamp)
        ]

    def before(self, moment: str) -> dict[EntityId, Snapshot]:
        """Return every existing thing at that moment, by replay."""
        states = {
            entity: next((state for event, state in reversed(life) if event.timestamp < moment), None)
            for entity, life in self.lives.items()
        }
        return {entity: state for entity, state in states.items() if state is not None and state.state is not None}

    def answer(self, question: ThingQuery, moment: str) -> list[Thing]:
        """Return the expected result for a subject, computed the slow and obvious way.

        The policy that a thing names now decides, or the last one before the next deletion.
        """
        found = []
        for entity, state in self.before(moment).items():
            later = [(event, after) for event, after in self.lives[entity] if event.revision > state.revision]
            last = next((after for event, after in later if event.is_deletion), self.lives[entity][-1][1])
            access = ACCESS[last.policy or ""]
            assert state.state is not None
            thing = {
                **state.state, "thingId": str(entity), "_revision": state.revision, "_created": state.created,
                "_modified": state.modified,
            }  # fmt: skip
            if question.namespaces and entity.namespace not in question.namespaces:
                continue
            if access is None or (view := access.view(thing)) is None:
                continue
            if question.predicate is None or holds(question.predicate, thing, access.may):
                found.append((sort_key(thing, question.order, access.may), view))
        by = key_of(question.order)
        return [view for _, view in sorted(found, key=lambda it: by(it[0]))]


def search_at(data_folder: DataFolder, address: str, question: ThingQuery, moment: str) -> list[Candidate]:
    return answer_of(data_folder, address, made(data_folder, question, moment))


def made(data_folder: DataFolder, question: ThingQuery, moment: str) -> SparkQuery:
    data_folder.lake.results.mkdir(parents=True, exist_ok=True)
    output = FoldOutput(str(data_folder.lake.results), SpoolLimits().bytes)
    return query(data_folder.lake, question, datetime.fromisoformat(moment), output)


def answer_of(data_folder: DataFolder, address: str, ask: SparkQuery) -> list[Candidate]:
    rows = SparkQueries(data_folder.lake, address).run(ask, QueryLimits(WITHIN))
    return [it for file in result_files(rows) for part in candidates(file) for it in part]


def found(data_folder: DataFolder, address: str, question: ThingQuery, moment: str) -> list[Thing]:
    """Return Spark's answer, filtered by permissions and sorted."""
    by = key_of(question.order)
    accesses: dict[StateGuard, Access | None] = {
        guard: access
        for policy, access in ACCESS.items()
        for namespace in ("acme.site", "acme.lab")
        for guard in (StateGuard(policy, namespace), StateGuard("", namespace, permissions_of(policy)))
    }
    with JournalReader.open(data_folder.lake.journal) as follower:
        judgement = matching(
            with_guards(follower, search_at(data_folder, address, question, moment)), accesses, question
        )
        kept = [it for _, it in sorted(judgement, key=lambda it: by(it[0]))]
        return [hit.thing for hit in visible_parts(with_guards(follower, kept), accesses)]


def questions() -> list[ThingQuery]:
    return [
        ThingQuery(None if text is None else read(text, NOW), read_options(options).order, frozenset(names))
        for text, options, names in QUESTIONS
    ]


@pytest.mark.soak(shard="lake")
def test_a_past_state_query_equals_a_replay_of_every_thing(
    spark: SparkSession, data_folder: DataFolder, address: str
) -> None:
    """At snapshots, events and times between them, at the microsecond of an event, and after retention."""
    past, target = Replays(dice("replays")), LakeWriter.of(spark, data_folder.folder)
    newest = [0]
    for since, end, keeps in ((0, 100, 1), (100, 170, 10**9), (170, 250, 1), (250, 301, 10**9)):
        changes = past.changes(since, end)
        newest.append(newest[-1] + len(changes))
        data_folder.append(changes)
        take_all(spark, data_folder, full_snapshot_events=keeps)
        if end == 170:
            assert snapshots.take(target, 4) > 3
            table_maintenance.optimize(target)
    # The third run may write a snapshot before it has moved any event.
    assert {newest[1], newest[3]} <= {row["as_of"] for row in data_folder.table(FULL_SNAPSHOTS)} <= set(newest[1:4])
    at = past.lives[min(past.lives, key=str)][-1][0].timestamp
    whole, *others = questions()
    for moment, question in (
        (timestamp(0), whole), (timestamp(60), others[0]), (at, whole), (timestamp(120), others[1]), (timestamp(249), whole),
        (timestamp(120), others[3]), (timestamp(120), others[4]), (timestamp(299), others[2]), (timestamp(900), whole),
    ):  # fmt: skip
        expected = past.answer(question, moment)
        assert found(data_folder, address, question, moment) == expected, (moment, question)
        assert expected or moment == timestamp(0)
    # Some things changed after the snapshot that both queries read, and some did not.
    changed = {
        entity
        for entity in past.lives
        if past.before(timestamp(120)).get(entity) != past.before(timestamp(100)).get(entity)
    }
    assert 0 < len(changed) < len(past.before(timestamp(120)))
    ask = made(data_folder, whole, timestamp(120))
    # The states before the retention boundary of each thing are unknown, those after it known.
    assert delete_expired(target, RetentionRules(RetentionRule(revisions=2)), NOW) > 100
    for moment, question in ((timestamp(250), whole), (timestamp(299), others[1])):
        known = {str(entity) for entity, state in past.before(moment).items() if is_known(past, entity, state)}
        expected = [thing for thing in past.answer(question, moment) if thing["thingId"] in known]
        assert found(data_folder, address, question, moment) == expected, (moment, question)
        assert expected
    # An earlier query still reads the files of its time.
    pinned = sorted((it.entity, it.revision) for it in answer_of(data_folder, address, ask))
    assert pinned == sorted((str(entity), state.revision) for entity, state in past.before(timestamp(120)).items())


@pytest.mark.slow(reason="a query over Spark Connect, the first of a session")
def test_a_result_may_be_larger_than_what_the_pipeline_returns_from_its_memory(
    spark: SparkSession, data_folder: DataFolder, address: str
) -> None:
    """Spark refuses results of more than 32 MiB in these tests."""
    state = msgspec.json.encode({"policyId": "acme.site:open", "attributes": {"text": "x" * (64 << 10)}}).decode()
    row = {
        "entity_type": "thing", "namespace": "acme.lab", "revision": 1, "action": "created", "path": "/", "headers": "{}",
        "value": state, "ts": datetime.fromisoformat(timestamp(1)),
    }  # fmt: skip
    names = [f"acme.lab:thing-{number:03}" for number in range(600)]
    add_events(data_folder.folder, [{**row, "entity": name, "seq": seq} for seq, name in enumerate(names, 1)], 600)
    for table in (SNAPSHOTS, FULL_SNAPSHOTS):
        add_states(data_folder.folder, table, [])
    answer = search_at(data_folder, address, questions()[0], timestamp(2))
    assert sorted(it.entity for it in answer) == names
    assert {it.state for it in answer} == {state}


@pytest.mark.soak(shard="lake")
def test_moments_of_things_that_are_idle_go_with_the_events_and_no_answer_changes(
    spark: SparkSession, data_folder: DataFolder, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each full snapshot has a row for every thing; retention deletes it even without expired events."""
    target, whole = LakeWriter.of(spark, data_folder.folder), questions()[0]
    created = RandomChange("created", "/", {"policyId": "acme.site:open", "attributes": {"a": 1}})
    changed = [RandomChange("modified", "/attributes/n", number) for number in range(4)]
    lives = [history_of(EntityId(EntityType.THING, "acme.lab", f"idle-{it}"), [created], [it + 1]) for it in range(5)]
    lives.append(
        history_of(EntityId(EntityType.THING, "acme.lab", "busy"), [created, *changed], [10, 100, 200, 300, 310])
    )
    for since, end in ((0, 50), (50, 250), (250, 400)):
        happened = [(event, state) for life in lives for event, state in life]
        within = [it for it in happened if timestamp(since) <= it[0].timestamp < timestamp(end)]
        data_folder.append([Change((event,), (state,)) for event, state in within])
        take_all(spark, data_folder)
        snapshots.take_full_snapshot(target, read_watermark(data_folder.lake.watermark).seq)
    rules, now = RetentionRules(RetentionRule(timedelta(seconds=100))), datetime.fromisoformat(timestamp(310))

    def answers() -> list[list[Candidate]]:
        return [sorted(search_at(data_folder, address, whole, timestamp(at))) for at in (211, 305, 311)]

    thin = snapshots.thin
    monkeypatch.setattr(snapshots, "thin", lambda _: 0)
    assert delete_expired(target, rules, now) == 8
    before = answers()
    assert [len(answer) for answer in before] == [6, 6, 6]
    assert [max(it.revision for it in answer) for answer in before] == [3, 4, 5]
    assert list(reader.full_snapshot_times(data_folder.lake)) == [6, 8, 10]
    monkeypatch.setattr(snapshots, "thin", thin)
    assert delete_expired(target, rules, now) == 0
    assert list(reader.full_snapshot_times(data_folder.lake)) == [8, 10]
    assert answers() == before
    version = DeltaTable(data_folder.lake.path(FULL_SNAPSHOTS)).version()
    assert delete_expired(target, rules, now) == 0
    assert DeltaTable(data_folder.lake.path(FULL_SNAPSHOTS)).version() == version, "nothing to do is no version"


@pytest.mark.soak(shard="lake")
def test_erased_history_is_not_found_after_the_thing_is_created_again(
    spark: SparkSession, data_folder: DataFolder, address: str
) -> None:
    """In events, snapshots and moments."""
    target, whole = LakeWriter.of(spark, data_folder.folder), questions()[0]
    created = RandomChange("created", "/", {"policyId": "acme.site:open", "attributes": {"a": 1}})
    changed = [RandomChange("modified", "/attributes/n", number) for number in range(3)]
    erased, other = (EntityId(EntityType.THING, "acme.lab", name) for name in ("erased", "other"))
    lives = {entity: history_of(entity, [created, *changed], [1, 2, 3, 4]) for entity in (erased, other)}
    for revision in range(4):
        data_folder.append([Change((event,), (state,)) for event, state in (life[revision] for life in lives.values())])
        take_all(spark, data_folder)
        if revision == 1:
            snapshots.take_full_snapshot(target, read_watermark(data_folder.lake.watermark).seq)
        if revision == 2:
            assert snapshots.take(target, 1) == 2

    def answer(second: int) -> list[tuple[str, int]]:
        return sorted((it.entity, it.revision) for it in search_at(data_folder, address, whole, timestamp(second)))

    assert [answer(at) for at in (2, 3, 4, 5)] == [[(str(erased), n), (str(other), n)] for n in (1, 2, 3, 4)]
    journal = Journal.open(data_folder.lake.journal)
    journal.within(lambda it: erasure.begin(it, "thing", erased.id, timestamp(5), "anna"))
    journal.commit()
    recreated = Event(erased, 5, timestamp(6), "created", "/", b'{"policyId":"acme.site:open"}', b"{}")
    journal.append([Change((recreated,), (fold([recreated]),))])
    journal.close()
    take_all(spark, data_folder)
    assert [answer(at) for at in (2, 3, 4, 5)] == [[(str(other), n)] for n in (1, 2, 3, 4)]
    assert answer(7) == [(str(erased), 5), (str(other), 4)]
    (found,) = (it for it in search_at(data_folder, address, whole, timestamp(7)) if it.revision == 5)
    assert (found.created, found.state) == (found.modified, '{"policyId":"acme.site:open"}')


@pytest.mark.slow(reason="two searches over Spark Connect, the first of a session")
async def test_a_search_of_the_past_is_answered_over_the_lake(data_folder: DataFolder, address: str) -> None:
    """By commands and responses of the protocol: past states under today's policy.

    The search reads a snapshot and the events after it, and waits until the lake has these events. The attribute's name
    is not ASCII.
    """
    clock = NOW
    journal = Journal.open(data_folder.lake.journal)
    service = ConnectionHarness(
        source(),
        source("guests", "acme:guest"),
        journal=journal,
        decider=lambda store: Decider(store, now=lambda: clock),
    )
    spark_queries = SparkQueries(data_folder.lake, address)
    past = AsOfSearches(service.store, service.decider.world, spark_queries, lambda: clock, PastOptions(WITHIN, WITHIN))
    service.searching.as_of = past.open
    try:
        for name, celsius in (("a", 31), ("b", 29), ("c", 40)):
            await has_thing(service, name, {"attributes": {"градусы": celsius}})
        write_full_snapshot(data_folder.folder)
        clock += timedelta(seconds=5)
        service.deliver(command("modify", "/attributes/градусы", 32, name="a"))
        await wait_until(lambda: len(service.answers()) == 4, WITHIN)
        clock += timedelta(seconds=5)
        service.deliver(command("modify", "/attributes/градусы", 35, name="b"))
        service.deliver(command("delete", name="c"))
        service.deliver(command("modify", "/attributes/градусы", 0, name="a"))
        await wait_until(lambda: len(service.answers()) == 7, WITHIN)
        clock += timedelta(seconds=10)
        service.forget()
        at = (clock - timedelta(seconds=10)).isoformat().replace("+00:00", "Z")
        query = {"filter": "gt(attributes/градусы,30)", "options": "sort(-attributes/градусы),size(1)"}
        for number in range(2):
            service.deliver(searching("subscribe", query, at_historical_timestamp=at), source=number)
        await wait_until(lambda: len(service.answers()) == 2, WITHIN)
        keys = [each["value"]["subscriptionId"] for each in service.answers()]
        owner, guest = Searcher(service), Searcher(service, 1)
        owner.ask(keys[0], 3)
        guest.ask(keys[1], 3)
        await asyncio.to_thread(write_all_tables, data_folder.folder)
        await wait_until(lambda: owner.end(keys[0]) is not None and guest.end(keys[1]) is not None, WITHIN)
        assert [[it["attributes"]["градусы"] for it in page] for page in owner.pages(keys[0])] == [[40], [32]]
        assert guest.messages(keys[1]) == ["created", "complete"], "what he may not read is not there for him"
    finally:
        past.close()
        await service.close()


def erase_without_spark(lake: Lake, entity: EntityId) -> None:
    """Delete the rows of an entity from all tables, and then every file and version before, as an erasure does."""
    versions = {}
    for table in TABLES:
        DeltaTable(lake.path(table)).delete(f"entity = '{entity}'")
        changed = DeltaTable(lake.path(table))
        changed.create_checkpoint()
        versions[table.name] = changed.version()
    clean(lake, versions)


@pytest.mark.slow(reason="two searches, the first of a session")
def test_a_search_whose_files_an_erasure_removes_may_be_repeated(data_folder: DataFolder, address: str) -> None:
    data_folder.write(20)
    write_all_tables(data_folder.folder)
    ask = made(data_folder, questions()[0], "2040-01-01T00:00:00Z")
    erase_without_spark(data_folder.lake, lamp(3))
    with pytest.raises(StoreUnavailable, match="if an erasure has removed them, repeat the query"):
        answer_of(data_folder, address, ask)
    again = answer_of(data_folder, address, made(data_folder, questions()[0], "2040-01-01T00:00:00Z"))
    assert sorted(it.entity for it in again) == [str(lamp(number)) for number in (0, 1, 2, 4, 5, 6)]


@pytest.mark.slow(reason="two queries, the first of a session")
def test_a_warm_up_folds_one_thing_in_a_worker_and_leaves_nothing(spark: SparkSession, data_folder: DataFolder) -> None:
    data_folder.write(20)
    write_all_tables(data_folder.folder)
    target = LakeWriter.of(spark, data_folder.folder)
    assert warm_up(target, lambda: False) == 1
    assert warm_up(target, lambda: True) == 0
    assert list(data_folder.lake.scratch.iterdir()) == []


def is_known(past: Replays, entity: EntityId, state: Snapshot) -> bool:
    """Return whether a retention of two revisions keeps the state."""
    return state.revision >= past.lives[entity][-1][1].revision - 2
