"""Answers to deliveries that do not come again are deleted by the beginning of their names."""

from __future__ import annotations

import sqlite3
from functools import partial

from spark_store.journal import answers
from spark_store.records import DeliveryName, StoredAnswer
from tests.support.journal_entries import LAMP, change
from tests.support.temporary_journal import TemporaryJournal


def test_answers_are_forgotten_by_connection_source_and_beginning_of_the_name() -> None:
    journal = TemporaryJournal()
    names = [
        DeliveryName(connection, source, name, b"digest")
        for connection, source, name in (
            ("site", 0, "mqtt:1:1"),
            ("site", 0, "mqtt:1:2#1"),
            ("site", 1, "mqtt:1:1"),
            ("site", 0, "mqtt:2:1"),
            ("site", 0, "key:mqtt:1:"),
            ("desk", 0, "mqtt:1:1"),
        )
    ]
    journal.append([change(LAMP, number, answer=StoredAnswer(name, b"done")) for number, name in enumerate(names, 1)])
    forget = partial(answers.forget, owner="site", source=0, prefix="mqtt:1:", limit=1)
    assert [journal.within(forget) for _ in range(3)] == [True, True, False]
    journal.commit()
    assert [journal.answer(name) for name in names] == [None, None, *[b"done"] * 4]


def test_only_answers_that_are_forgotten_are_read() -> None:
    """Others may be very many, and this runs on the event loop."""
    journal = TemporaryJournal()
    steps: list[int] = []

    def forget(connection: sqlite3.Connection) -> None:
        connection.set_progress_handler(lambda: steps.append(1), 100)
        answers.forget(connection, "site", 0, "mqtt:", 100)
        connection.set_progress_handler(None, 0)

    names = [DeliveryName("site", 0, f"key:{number}", b"digest") for number in range(1000)]
    journal.append([change(LAMP, number, answer=StoredAnswer(name, b"done")) for number, name in enumerate(names, 1)])
    journal.within(forget)
    assert len(steps) < 10
