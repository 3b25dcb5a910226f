"""Dependencies: a change finds the affected subscribers, and all of them get a turn."""

from __future__ import annotations

from connectivity.authorization.dependencies import DependencyIndex
from mappings.ids import EntityId
from tests.support.dice import dice
from tests.support.twin_harness import policy

A, B, C = (policy(f"acme:{name}") for name in "abc")


def test_a_change_leads_to_those_that_depend_on_it() -> None:
    dependents: DependencyIndex[str] = DependencyIndex()
    assert not dependents.of([A])
    dependents.note("tank", frozenset({A, B}))
    dependents.note("lamp", frozenset({B}))
    assert dependents.of([A]) == {"tank"}
    assert dependents.of([A, B, C]) == {"tank", "lamp"}
    assert not dependents.of([C])


def test_new_dependencies_replace_the_former_ones() -> None:
    dependents: DependencyIndex[str] = DependencyIndex()
    dependents.note("tank", frozenset({A, B}))
    dependents.note("tank", frozenset({B, C}))
    assert [set(dependents.of([entity])) for entity in (A, B, C)] == [set(), {"tank"}, {"tank"}]


def test_a_forgotten_dependent_leaves_no_entries() -> None:
    dependents: DependencyIndex[str] = DependencyIndex()
    dependents.note("tank", frozenset({A, B}))
    dependents.forget("tank")
    dependents.forget("tank")
    assert (len(dependents), dependents._of) == (0, {})
    assert not dependents.of([A, B])


def test_every_dependent_has_exactly_one_turn_per_round() -> None:
    dependents: DependencyIndex[int] = DependencyIndex()
    for number in range(1000):
        dependents.note(number, frozenset({A}))
    turns = [list(dependents.turn(60)) for _ in range(60)]
    assert max(map(len, turns)) == 17
    assert sorted([number for turn in turns for number in turn][:1000]) == list(range(1000))


def test_dependents_added_or_removed_between_turns_do_not_disturb_the_rounds() -> None:
    random_source = dice("dependents")
    dependents: DependencyIndex[int] = DependencyIndex()
    present: set[int] = set()
    for _ in range(500):
        number = random_source.randrange(40)
        if random_source.random() < 0.5:
            dependents.note(number, frozenset(random_source.sample((A, B, C), random_source.randint(0, 3))))
            present.add(number)
        else:
            dependents.forget(number)
            present.discard(number)
        assert set(dependents.turn(3)) <= present
        assert len(dependents) == len(present)
    found: set[int] = set()
    for _ in range(8):
        found.update(dependents.turn(3))
    assert found == present


def test_a_few_have_a_turn_no_more_often_than_many() -> None:
    dependents: DependencyIndex[str] = DependencyIndex()
    dependents.note("tank", frozenset({A}))
    turns = [len(dependents.turn(60)) for _ in range(180)]
    assert sum(turns) == 3


def test_an_empty_index_gives_no_turns() -> None:
    dependents: DependencyIndex[EntityId] = DependencyIndex()
    assert not dependents.turn(60)
