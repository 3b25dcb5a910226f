"""Checks the packages in constraints.txt for known vulnerabilities, with pip-audit.

The exit code is 0 only if every package was audited and has no known vulnerability. If pip-audit cannot reach its database,
takes too long or does not know a package, the output is "not audited" and the exit code 1. After a success, the audit does
not run again on the same day.
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

SOCKET_TIMEOUT = 5
AUDIT_TIMEOUT = 60.0
"""For the whole audit, with a request for each package."""

MAX_NAMES = 10
"""The most unknown packages in the output."""


class Verdict(NamedTuple):
    """The text to print, and whether the audit passed."""

    text: str
    passed: bool = False


def judge(output: str, errors: str) -> Verdict:
    """The verdict from pip-audit's output.

    Its exit code is the same for a vulnerability and for a network error.
    """
    try:
        packages = json.loads(output)["dependencies"]
        skipped = [package["name"] for package in packages if "skip_reason" in package]
        vulnerable = [(package, found) for package in packages for found in package.get("vulns", ())]
    except (ValueError, KeyError, TypeError):
        reason = errors.strip().splitlines()
        return Verdict(f"not audited: {reason[-1] if reason else 'pip-audit had no output'}")
    if vulnerable:
        lines = (
            f"{package['name']} {package['version']}: {found['id']}, "
            + (f"fixed in {', '.join(found['fix_versions'])}" if found["fix_versions"] else "not fixed yet")
            for package, found in vulnerable
        )
        return Verdict("\n".join(["known vulnerabilities:", *lines, *unaudited(skipped)]))
    if len(skipped) == len(packages):
        return Verdict(f"not audited: the database knows none of {len(packages)} packages")
    audited = f"audited: no known vulnerability in {len(packages) - len(skipped)} packages"
    return Verdict("\n".join([audited, *unaudited(skipped)]), passed=not skipped)


def unaudited(names: list[str]) -> Iterator[str]:
    """A line with the packages that the database does not know, if there are any."""
    if names:
        more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
        yield f"not audited, because the database does not know them: {', '.join(names[:MAX_NAMES])}{more}"


def stamp() -> str:
    """The content of the file after a passed audit: the day, and a hash of constraints.txt."""
    return f"{datetime.now(UTC):%Y-%m-%d} {hashlib.sha256(PINS.read_bytes()).hexdigest()}\n"


def run_audit(command: list[str], seconds: float) -> Verdict:
    """Run pip-audit."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return Verdict(f"not audited: no result after {seconds:g} s")
    except OSError as error:
        return Verdict(f"not audited: {error}")
    return judge(done.stdout, done.stderr)


def main() -> int:
    if STAMP.exists() and STAMP.read_text(encoding="ascii") == stamp():
        print("audited earlier today: no known vulnerability")
        return 0
    program = str(Path(sys.executable).with_name("pip-audit"))
    # Not --strict, which stops at the first unknown package: `judge` reports all of them.
    options = ["--require-hashes", "--disable-pip", "--progress-spinner", "off", "--format", "json"]
    command = [program, *options, "--timeout", str(SOCKET_TIMEOUT), "--requirement", str(PINS)]
    verdict = run_audit(command, AUDIT_TIMEOUT)
    print(verdict.text)
    if verdict.passed:
        STAMP.parent.mkdir(exist_ok=True)
        STAMP.write_text(stamp(), encoding="ascii")
    return 0 if verdict.passed else 1


if __name__ == "__main__":
    sys.exit(main())
