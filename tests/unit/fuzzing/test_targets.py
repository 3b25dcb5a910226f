"""The fuzzer's targets hold for their seeds and kept inputs, and what surrounds them finds faults."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.fuzzing import corpus
from tests.fuzzing import target as module
from tests.fuzzing.byte_reader import ByteReader
from tests.fuzzing.target import Target, target
from tests.fuzzing.targets import TARGETS, load
from tests.support.table import Table

LARGEST_CORPUS = 250_000


@pytest.mark.parametrize("name", TARGETS)
def test_all_seeds_and_kept_inputs_have_the_properties_of_their_target(name: str) -> None:
    found = load(name)
    with Table() as inputs:
        for data in (*found.seeds, *corpus.read(name)):
            with inputs.row(repr(data)[:200]):
                found.check(data)


def test_each_target_of_a_module_is_listed_and_has_a_corpus() -> None:
    defined = {
        name: place.module
        for place in TARGETS.values()
        for name in importlib.import_module(f"tests.fuzzing.{place.module}").TARGETS
    }
    assert defined == {name: place.module for name, place in TARGETS.items()}
    assert {file.name.partition(".")[0] for file in corpus.FOLDER.iterdir()} == TARGETS.keys()


def test_the_kept_inputs_are_small_together() -> None:
    assert sum(file.stat().st_size for file in corpus.FOLDER.iterdir()) <= LARGEST_CORPUS


def test_an_input_that_takes_long_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS", 0.02)
    monkeypatch.setattr(module, "SECONDS_OF_A_BYTE", 0.0)
    slow = target(lambda data: sum(range(len(data) * 100_000)), [b""])
    slow.check(b"x")
    with pytest.raises(AssertionError, match="400 bytes exceed the bounds"):
        slow.check(b"x" * 400)


def test_an_input_that_takes_much_memory_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    held = [1 << 30]
    monkeypatch.setattr(module, "peak_memory", lambda: held[0])

    def run(data: bytes) -> None:
        held[0] += len(data) << 30

    greedy = target(run, [b""])
    greedy.check(b"")
    with pytest.raises(AssertionError, match="1 bytes exceed the bounds"):
        greedy.check(b"x")


def test_kept_inputs_come_back_as_many_as_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "FOLDER", tmp_path / "corpus")
    inputs = [b"", b"\xff\0", *(number.to_bytes(4, "big") for number in range(200))]
    assert corpus.read("x") == []
    assert corpus.write("x", inputs) == len(inputs)
    assert corpus.read("x") == inputs
    monkeypatch.setattr(corpus, "LARGEST_ARCHIVE", 700)
    number = corpus.write("x", inputs)
    assert 2 < number < len(inputs)
    assert corpus.read("x") == inputs[:number]


def test_the_smallest_inputs_that_reach_all_features_are_kept() -> None:
    reader = Target(lambda data: ByteReader(data).json(("a",)), (b"",))
    inputs = [bytes([kind, 1, 1, 1]) for kind in range(24)]
    kept = corpus.minimize(reader, ["tests.fuzzing.byte_reader"], inputs)
    assert set(kept) < set(inputs)
    assert {each[:1] for each in kept} >= {b"\x02", b"\x07", b"\x09"}
    assert corpus.minimize(reader, ["tests.fuzzing.byte_reader"], kept) == kept


def test_a_reader_draws_a_structure_from_any_bytes_and_zeros_from_its_end_on() -> None:
    reader = ByteReader(b"\x09\x01\x00\x07\x01\x02\x01")
    assert reader.json(("key",)) == {"key": [True]}
    assert (reader.is_at_end, reader.byte(), reader.rest()) == (True, 0, b"")
    assert ByteReader(b"").json(("key",)) is None
    assert ByteReader(b"\xff\x02ab").text(("key",)) == "ab"
