"""The file of an export: Parquet, CSV or JSON lines, by the ending of its name."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq

from spark_store.errors import FULL_ERRORS, OutputUnusable, StoreUnavailable
from spark_store.files import sync_path
from spark_store.lake.table_scan import TIME_FORMAT, naive, values

_SLICE_ROWS = 4096
"""How many rows are Python objects at a time."""

_JSON_TEXTS = {"value", "headers"}
"""The columns whose texts are JSON already."""


class _Writer(Protocol):
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
    if name == "ts":
        return values(pc.strftime(naive(column), format=TIME_FORMAT))
    if name not in _JSON_TEXTS:
        return values(column)
    # A line break in JSON is white space: texts have it as an escape.
    texts = pc.replace_substring_regex(column, "[\r\n]", " ").cast(pa.binary())
    return (None if text is None else msgspec.Raw(text) for text in values(texts))


_FORMATS: Final[dict[str, Callable[[pa.NativeFile, pa.Schema], _Writer]]] = {
    ".parquet": lambda sink, schema: pq.ParquetWriter(sink, schema, compression="zstd"),
    ".csv": csv.CSVWriter,
    ".jsonl": lambda sink, _: _JsonLines(sink),
}


def check_output(out: Path, *, force: bool) -> None:
    """Check that a file may be written there. Raises OutputUnusable."""
    if out.is_dir():
        raise OutputUnusable(f"{out}: expected the name of a file, found a folder")
    if out.suffix not in _FORMATS:
        raise OutputUnusable(f"{out}: expected a name that ends with one of {', '.join(_FORMATS)}")
    if out.exists() and not force:
        raise OutputUnusable(f"{out}: expected no such file, found one; name another one, or use --force to replace it")
    if not out.parent.is_dir():
        raise OutputUnusable(f"{out}: expected an existing folder, found no {out.parent}; create it")


class ExportFile:
    """One output file; a context manager that removes an unfinished one."""

    def __init__(self, out: Path, part: Path, writer: _Writer, sink: pa.NativeFile, *, force: bool) -> None:
        """Use `open`."""
        self._out, self._part, self._writer, self._sink, self._force = out, part, writer, sink, force

    @classmethod
    def open(cls, out: Path, schema: pa.Schema, *, force: bool) -> Self:
        """Raises OutputUnusable, StoreUnavailable where the disk is full."""
        part = out.with_name(f".{out.name}.{os.getpid()}.part")
        with _translate_errors(out), contextlib.ExitStack() as undo:
            check_output(out, force=force)
            undo.callback(part.unlink, missing_ok=True)
            sink = undo.enter_context(pa.OSFile(str(part), "wb"))
            writer = _FORMATS[out.suffix](sink, schema)
            undo.pop_all()
        return cls(out, part, writer, sink, force=force)

    def write(self, table: pa.Table) -> None:
        """Add rows, as one row group. Raises as `open`."""
        with _translate_errors(self._out):
            self._writer.write_table(table)

    def finish(self) -> int:
        """Put the file in its place; its size. Raises as `open`: then it is not there."""
        with _translate_errors(self._out):
            self._writer.close()
            self._sink.close()
            sync_path(self._part)
            # Another process may have created it.
            check_output(self._out, force=self._force)
            size = self._part.stat().st_size
            self._part.replace(self._out)
            sync_path(self._out.parent)
        return size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close everything. A full disk may prevent closing a file that is removed anyway."""
        for close in (self._writer.close, self._sink.close):
            with contextlib.suppress(OSError):
                close()
        self._part.unlink(missing_ok=True)


@contextlib.contextmanager
def _translate_errors(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in FULL_ERRORS:
            raise StoreUnavailable(f"{out}: the disk is full; make room, or write elsewhere ({error})") from error
        raise OutputUnusable(f"{out}: expected a file that can be written, found: {error}") from error
