"""Distribution of tests over workers."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict

from tests.support.paths import ROOT

MODULES = ("tests/unit/mappings/test_ids.py", "tests/unit/mappings/model/test_topic_path.py")


def test_the_tests_of_a_module_run_on_one_worker() -> None:
    """A module's fixtures start once, and tests with shared names do not run at the same time."""
    command = [sys.executable, "-m", "pytest", "-v", "-n", "2", "--dist", "loadgroup", *MODULES]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150, check=True).stdout
    workers: defaultdict[str, set[str]] = defaultdict(set)
    for worker, module in re.findall(r"^\[(gw\d)\] \[ *\d+%\] PASSED ([\w/]+\.py)::", shown, re.MULTILINE):
        workers[module].add(worker)
    assert set(workers) == set(MODULES)
    assert all(len(of_one) == 1 for of_one in workers.values()), dict(workers)
