"""A service whose pipeline has normal priority, fault points and further options."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import psutil

from tests.support.lake.pipeline_process import AT_ONCE, MAIN, WITHIN
from tests.support.service_process import ServiceProcess
from tests.support.wait import wait_until_sync

_PROGRAM = """
from connectivity.maintenance import pipeline_process

plain = pipeline_process.command

def command(*given):
    python, _, _, *arguments = plain(*given)
    return [python, "-c", {main!r}, *arguments, *{options!r}]

pipeline_process.command = command
from connectivity.cli.main import main
main()
"""


class PipelineService(ServiceProcess):
    """A service; `options` are added to the command line of its pipeline."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], options: Sequence[str] = ()) -> None:
        super().__init__(folder, {"spark": {"mode": "embedded", "master": "local[2]"}, **settings})
        self.program = (sys.executable, "-c", _PROGRAM.format(main=MAIN, options=[*AT_ONCE, *options]))

    @classmethod
    def begin(cls, folder: Path, *options: str) -> Self:
        """Start a service without connections; its pipeline is still starting."""
        (folder / "connections").mkdir(parents=True, exist_ok=True)
        service = cls(folder, {}, options)
        service.start_again()
        return service

    def pipelines(self) -> list[psutil.Process]:
        children = psutil.Process(self.pid).children()
        return [it for it in children if "spark_store.pipeline" in " ".join(it.cmdline())]

    def wait_for_pipeline(self) -> None:
        """Wait until the pipeline follows the journal."""
        self._wait_for(lambda: b'"lake":"following"' in self.get("/health/ready")[1])

    @staticmethod
    def _wait_for(condition: Callable[[], bool]) -> None:
        """Poll five times a second, because each request takes time from the pipeline."""

        def is_met() -> bool:
            time.sleep(0.2)
            return condition()

        wait_until_sync(is_met, WITHIN)
