"""Whether a known weakness is in what gets installed: pip-audit on constraints.txt, hashes and all.

Ends with 0 only if every package was audited and has no known weakness. If pip-audit cannot reach its database, does not end
in time, or knows nothing of a package, this says "not audited" and ends with 1. What passed as a whole is not asked for
again on the same day.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PINS = ROOT / "constraints.txt"
STAMP = ROOT / "build" / "audited"

SOCKET_SECONDS = 5
SECONDS = 60.0
"""For the whole audit, which asks for one package after the other."""

NAMED = 10
"""So many packages that could not be audited are named, if others could: it is read by people."""


class Verdict(NamedTuple):
    """The text to print, and whether everything is known to be fine."""

    text: str
    passed: bool = False


def judge(said: str, complained: str) -> Verdict:
    """What pip-audit's answer means. Its exit code does not tell a weakness from a broken network."""
    try:
        packages = json.loads(said)["dependencies"]
        skipped = [package["name"] for package in packages if "skip_reason" in package]
        weak = [(package, found) for package in packages for found in package.get("vulns", ())]
    except (ValueError, KeyError, TypeError):
        reason = complained.strip().splitlines()
        return Verdict(f"not audited: {reason[-1] if reason else 'pip-audit had no output'}")
    if weak:
        lines = (
            f"{package['name']} {package['version']}: {found['id']}, "
            + (f"fixed in {', '.join(found['fix_versions'])}" if found["fix_versions"] else "not fixed yet")
            for package, found in weak
        )
        return Verdict("\n".join(["known weaknesses:", *lines, *unaudited(skipped)]))
    if len(skipped) == len(packages):
        return Verdict(f"not audited: nothing is known there of any of {len(packages)} packages")
    audited = f"audited: no known weakness in {len(packages) - len(skipped)} packages"
    return Verdict("\n".join([audited, *unaudited(skipped)]), passed=not skipped)


def unaudited(names: list[str]) -> Iterator[str]:
    """The line that names the packages of which nothing is known, if there are any."""
    if names:
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        yield f"not audited, since nothing is known there of them: {', '.join(names[:NAMED])}{more}"


def stamp() -> str:
    """What an audit of this day and these pins leaves behind."""
    return f"{datetime.now(UTC):%Y-%m-%d} {hashlib.sha256(PINS.read_bytes()).hexdigest()}\n"


def ask(command: list[str], seconds: float) -> Verdict:
    """Run pip-audit."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return Verdict(f"not audited: no end after {seconds:g} s")
    except OSError as error:
        return Verdict(f"not audited: {error}")
    return judge(done.stdout, done.stderr)


def main() -> int:
    if STAMP.exists() and STAMP.read_text(encoding="ascii") == stamp():
        print("audited earlier today: no known weakness")
        return 0
    program = str(Path(sys.executable).with_name("pip-audit"))
    # Not --strict, which gives up at the first package that cannot be audited: `judge` sees which those are.
    options = ["--require-hashes", "--disable-pip", "--progress-spinner", "off", "--format", "json"]
    command = [program, *options, "--timeout", str(SOCKET_SECONDS), "--requirement", str(PINS)]
    decision = ask(command, SECONDS)
    print(decision.text)
    if decision.passed:
        STAMP.parent.mkdir(exist_ok=True)
        STAMP.write_text(stamp(), encoding="ascii")
    return 0 if decision.passed else 1


if __name__ == "__main__":
    sys.exit(main())
