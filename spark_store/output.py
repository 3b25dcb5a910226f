"""A Parquet file that is there as a whole or not at all.

It is written beside its place under another name, made durable, and put there by a rename. Whatever fails, and whoever asks
meanwhile, nothing that is half a file ever has the name that was wanted; what was begun is removed.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

from spark_store.errors import OutputUnusable, StoreUnavailable

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def check_output(out: Path, *, force: bool) -> None:
    """Whether a file may be written there. Raises OutputUnusable."""
    if out.is_dir():
        raise OutputUnusable(f"{out}: expected the name of a file, found a folder")
    if out.exists() and not force:
        raise OutputUnusable(f"{out}: expected no such file, found one; name another one, or say --force to replace it")
    if not out.parent.is_dir():
        raise OutputUnusable(f"{out}: expected a folder to write into, found no {out.parent}; make it")


class Output:
    """One file that is being written; a context manager that removes what was not finished."""

    def __init__(self, out: Path, part: Path, writer: pq.ParquetWriter, sink: pa.NativeFile, *, force: bool) -> None:
        """Use `open`."""
        self._out, self._part, self._writer, self._sink, self._force = out, part, writer, sink, force

    def __repr__(self) -> str:
        return f"<Output {self._out}>"

    @classmethod
    def open(cls, out: Path, schema: pa.Schema, *, force: bool) -> Self:
        """Raises OutputUnusable, StoreUnavailable where the disk is full."""
        part = out.with_name(f".{out.name}.{os.getpid()}.part")
        with _translated(out), contextlib.ExitStack() as undo:
            check_output(out, force=force)
            undo.callback(part.unlink, missing_ok=True)
            sink = undo.enter_context(pa.OSFile(str(part), "wb"))
            writer = pq.ParquetWriter(sink, schema, compression="zstd")
            undo.pop_all()
        return cls(out, part, writer, sink, force=force)

    def write(self, table: pa.Table) -> None:
        """Add a row group. Raises as `open`."""
        with _translated(self._out):
            self._writer.write_table(table)

    def finish(self) -> int:
        """Put the file in its place; its size. Raises as `open`: then it is not there."""
        with _translated(self._out):
            self._writer.close()
            self._sink.close()
            _sync(self._part)
            # Somebody else may have been faster.
            check_output(self._out, force=self._force)
            size = self._part.stat().st_size
            self._part.replace(self._out)
            _sync(self._out.parent)
        return size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of everything. A full disk refuses the end of a file that nobody wants any more."""
        for close in (self._writer.close, self._sink.close):
            with contextlib.suppress(OSError):
                close()
        self._part.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _translated(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StoreUnavailable(f"{out}: the disk is full; make room, or write elsewhere ({error})") from error
        raise OutputUnusable(f"{out}: expected a file that can be written, found: {error}") from error
