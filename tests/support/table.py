"""A test with a table: one test checks every row, and its failure names each failed row.

    @each_row(("text", "expected"), [("1", 1), ("x", None)])
    def test_a_number_is_read(text: str, expected: int | None) -> None: ...

It is for large tables of quick rows, for which separate tests would cost more than the checks. It takes the arguments of
`pytest.mark.parametrize`. All rows share the fixtures: rows that need their own stay separate tests.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from traceback import format_exception
from typing import Any, Self

import pytest

LONGEST_NAME = 100
SHOWN = 20
"""The maximum number of tracebacks in a failure message, which names all failed rows."""


class Table:
    """The rows of a test. At its exit, it fails with the name and traceback of each failed row."""

    def __init__(self) -> None:
        self._checked = 0
        self._failures: list[tuple[str, str]] = []

    @contextmanager
    def row(self, name: str) -> Iterator[None]:
        self._checked += 1
        try:
            yield
        except (Exception, pytest.fail.Exception) as error:
            self._failures.append((name, _failure_text(error)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        __tracebackhide__ = True
        if kind is not None:
            return
        assert self._checked, "the table has no rows"
        if self._failures:
            names = "".join(f"\n  {name}" for name, _ in self._failures)
            shown = "\n\n".join(f"row {name}\n{text}" for name, text in self._failures[:SHOWN])
            pytest.fail(f"{len(self._failures)} of {self._checked} rows failed:{names}\n\n{shown}", pytrace=False)


def _failure_text(error: BaseException) -> str:
    """Return the traceback from the test on; for a nested table, its message."""
    if isinstance(error, pytest.fail.Exception) and not error.pytrace:
        return str(error)
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    return "".join(format_exception(type(error), error, traceback)).rstrip()


def each_row(
    names: str | Sequence[str],
    rows: Iterable[Any],
    *,
    ids: Callable[[Any], object] | Iterable[object] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Call the test with each row, within one test."""
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = list(_named(keys, list(rows), ids))

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(test):

            @functools.wraps(test)
            async def run_all_async(*instance: Any, **fixtures: Any) -> None:
                with Table() as checked:
                    for name, values in table:
                        with checked.row(name):
                            await test(*instance, **fixtures, **values)

            return _without(run_all_async, test, keys)

        @functools.wraps(test)
        def run_all(*instance: Any, **fixtures: Any) -> None:
            with Table() as checked:
                for name, values in table:
                    with checked.row(name):
                        test(*instance, **fixtures, **values)

        return _without(run_all, test, keys)

    return decorate


def _named(
    keys: Sequence[str], rows: Sequence[Any], ids: Callable[[Any], object] | Iterable[object] | None
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    given = None if ids is None or callable(ids) else [*ids]
    assert given is None or len(given) == len(rows), "as many names as rows"
    say = ids if callable(ids) else _short
    for number, row in enumerate(rows):
        name = None if given is None else given[number]
        if isinstance(row, type(pytest.param(0))):
            assert not row.marks, "a row with a mark is a test of its own"
            name, values = row.id or name, row.values
        else:
            values = (row,) if len(keys) == 1 else tuple(row)
        assert len(values) == len(keys), f"row {number}: {len(values)} values, expected {len(keys)}"
        yield str(name or "-".join(str(say(value)) for value in values)), dict(zip(keys, values, strict=True))


def _short(value: object) -> str:
    text = str(value) if isinstance(value, str | int | float | type) else repr(value)
    return text if len(text) <= LONGEST_NAME else f"{text[:LONGEST_NAME]}…"


def _without(made: Callable[..., Any], test: Callable[..., Any], keys: Sequence[str]) -> Callable[..., Any]:
    """Remove the columns from the signature, because pytest takes the remaining parameters as fixtures."""
    signature = inspect.signature(test)
    kept = [each for name, each in signature.parameters.items() if name not in keys]
    assert len(kept) == len(signature.parameters) - len(keys), f"{test.__name__} does not take {', '.join(keys)}"
    made.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    return made
