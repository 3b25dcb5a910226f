"""The file of an export: Parquet, CSV or JSON lines, by the ending of its name."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq

from spark_store.errors import FULL_ERRORS, OutputUnusable, StoreUnavailable
from spark_store.files import sync_path
from spark_store.lake.table_scan import values

_SLICE_ROWS = 4096
"""How many rows are Python objects at a time."""

_JSON_TEXTS = {"value", "headers"}
"""The columns whose texts are JSON already."""


class TableWriter(Protocol):
    """A writer of pyarrow, or one like it."""

    def write_table(self, table: pa.Table) -> None: ...

    def close(self) -> None: ...


class _JsonLines:
    """Writes each row as a JSON object on a line of its own."""

    def __init__(self, sink: pa.NativeFile) -> None:
        self._sink = sink
        self._encoder = msgspec.json.Encoder()

    def write_table(self, table: pa.Table) -> None:
        names = table.schema.names
        for begin in range(0, table.num_rows, _SLICE_ROWS):
            columns = [_json(name, table[name].slice(begin, _SLICE_ROWS)) for name in names]
            self._sink.write(self._encoder.encode_lines([dict(zip(names, row)) for row in zip(*columns)]))  # noqa: B905

    def close(self) -> None:
        """Nothing is left to write."""


def _json(name: str, column: pa.ChunkedArray) -> Iterable[Any]:
    """Return a column's values as they are encoded."""
    if name not in _JSON_TEXTS:
        return values(column)
    # A line break in JSON is white space: texts have it as an escape.
    texts = values(pc.replace_substring_regex(column, "[\r\n]", " "), is_json=True)
    return (None if text is None else msgspec.Raw(text) for text in texts)


_FORMATS: Final[dict[str, Callable[[pa.NativeFile, pa.Schema], TableWriter]]] = {
    ".parquet": lambda sink, schema: pq.ParquetWriter(sink, schema, compression="zstd"),
    ".csv": csv.CSVWriter,
    ".jsonl": lambda sink, _: _JsonLines(sink),
}


def _check(out: Path, *, force: bool) -> None:
    """Check that a file may be written there. Raises OutputUnusable."""
    if out.is_dir():
        raise OutputUnusable(f"{out}: expected the name of a file, found a folder")
    if out.suffix not in _FORMATS:
        raise OutputUnusable(f"{out}: expected a name that ends with one of {', '.join(_FORMATS)}")
    if out.exists() and not force:
        raise OutputUnusable(f"{out}: this file already exists; choose another name, or replace the file with --force")
    if not out.parent.is_dir():
        raise OutputUnusable(f"{out}: the folder {out.parent} does not exist; create it, or choose another one")


@contextlib.contextmanager
def output_file(out: Path, schema: pa.Schema, *, force: bool) -> Iterator[TableWriter]:
    """Yield a writer of tables; the file is there after all of it was written, or not at all.

    Raises OutputUnusable, StoreUnavailable where the disk is full.
    """
    with _translate_errors(out), contextlib.ExitStack() as undo:
        _check(out, force=force)
        part = out.with_name(f".{out.name}.{os.getpid()}.part")
        undo.callback(part.unlink, missing_ok=True)
        with pa.OSFile(str(part), "wb") as sink, contextlib.closing(_FORMATS[out.suffix](sink, schema)) as writer:
            yield writer
        sync_path(part)
        # Another process may have created it.
        _check(out, force=force)
        part.replace(out)
        sync_path(out.parent)


@contextlib.contextmanager
def _translate_errors(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in FULL_ERRORS:
            raise StoreUnavailable(
                f"{out}: the disk is full; free space, or write to another disk ({error})"
            ) from error
        raise OutputUnusable(f"{out}: expected a file that can be written, found: {error}") from error
