"""A writer of a lake as a process without a lock.

    python -m tests.support.lake.writer_process FOLDER

For each line of its input it moves all events of the journal, and prints the result, so that one Spark serves many
rounds. The line can name a point at which the writer stops itself. `LakeWriterProcess` starts, stops and continues it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from spark_store.errors import StoreError
from spark_store.pipeline.loop import PipelineLoop
from spark_store.pipeline.session import start_session
from spark_store.pipeline.settings import PipelineSettings
from spark_store.pipeline.tables import LakeWriter
from tests.support.lake.fault_injection import VARIABLE, FaultPoint, plant
from tests.support.lake.pipeline_process import CHEAP, QUICK_JAVA, WITHIN, DataFolder
from tests.support.wait import wait_until_sync

_TRIGGER = "pause"


def _serve(folder: Path) -> None:
    os.environ[VARIABLE] = ""
    plant()
    writer = LakeWriter.of(start_session(PipelineSettings(master="local[1]", spark=CHEAP)), folder)
    print("ready", flush=True)
    for line in sys.stdin:
        os.environ[VARIABLE] = f"{line.strip()}:pause:{folder / _TRIGGER}"
        try:
            PipelineLoop(writer, _say, PipelineSettings(once=True), threading.Event()).run()
            print("done", flush=True)
        except StoreError as error:
            print(f"{type(error).__name__}: {error}", flush=True)


def _say(event: str, **_: Any) -> None:
    print(event, flush=True)


class LakeWriterProcess:
    """A test's handle of the process."""

    def __init__(self, data_folder: DataFolder) -> None:
        self._trigger = data_folder.folder / _TRIGGER
        self._output = tempfile.NamedTemporaryFile(dir=data_folder.folder, suffix=".log", delete=False)  # noqa: SIM115
        # Java's messages do not always end their line.
        self._errors = tempfile.NamedTemporaryFile(dir=data_folder.folder, suffix=".log", delete=False)  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.lake.writer_process", str(data_folder.folder)],
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=self._errors,
            env={**os.environ, "JDK_JAVA_OPTIONS": QUICK_JAVA},
        )
        self._read = 0
        self._wait_for("ready")

    def _lines(self) -> list[str]:
        return Path(self._output.name).read_text(encoding="utf-8", errors="replace").splitlines()

    def _wait_for(self, *ends: str) -> str:
        """Return the first new line that begins with one of these."""

        def found() -> int | None:
            lines = self._lines()
            return next((it for it in range(self._read, len(lines)) if lines[it].startswith(ends)), None)

        wait_until_sync(lambda: found() is not None or self._process.poll() is not None, WITHIN)
        line = found()
        assert line is not None, Path(self._errors.name).read_text(encoding="utf-8", errors="replace")
        self._read = line + 1
        return self._lines()[line]

    def begin(self, pause: FaultPoint | None = None) -> None:
        """Start to move events; return when it is stopped at `pause`, or follows the journal."""
        if pause is not None:
            self._trigger.touch()
        assert self._process.stdin is not None
        self._process.stdin.write(f"{'' if pause is None else pause.value}\n".encode())
        self._process.stdin.flush()
        if pause is not None:
            wait_until_sync(lambda: psutil.Process(self._process.pid).status() == psutil.STATUS_STOPPED, WITHIN)
        else:
            self._wait_for("following")

    def pause(self) -> None:
        """Stop the process and its Java process immediately."""
        for process in self._all():
            process.suspend()

    def resume(self) -> str:
        """Continue, and return the result."""
        for process in self._all():
            process.resume()
        return self._wait_for("done", "LakeBusy", "LakeUnfit", "Store")

    def _all(self) -> list[psutil.Process]:
        own = psutil.Process(self._process.pid)
        return [own, *own.children(recursive=True)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._all():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait(WITHIN)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._output.close()
        self._errors.close()


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
