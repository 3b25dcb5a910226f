"""Actions of the pipeline process in an installation without some of the extras."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_LAKE, _SPARK = ("deltalake", "pyarrow"), ("py4j", "pyspark")


def run(action: str, folder: Path, without: tuple[str, ...]) -> tuple[int, dict[str, Any]]:
    """Run an action where these packages cannot be imported; its exit code and last event."""
    script = (
        f"import sys; sys.modules.update(dict.fromkeys({without}))\n"
        "from spark_store.pipeline.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", script, action, "--data-dir", str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    return ended.returncode, json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.extra("lake")
def test_verify_needs_no_spark(tmp_path: Path) -> None:
    code, event = run("verify", tmp_path, _SPARK)
    assert (code, event["kind"]) == (1, "StoreUnavailable")
    assert "found no journal" in event["reason"]


@pytest.mark.parametrize(("action", "extra"), [("verify", "lake"), ("optimize", "spark"), ("run", "spark")])
def test_an_action_without_its_packages_names_the_extra_that_brings_them(
    action: str, extra: str, tmp_path: Path
) -> None:
    code, event = run(action, tmp_path, (*_LAKE, *_SPARK))
    assert code == 4
    assert event["reason"].startswith(f"expected the extra '{extra}', found ")
    assert event["reason"].endswith(f"; install it with: pip install 'broker-connectivity[{extra}]'")
