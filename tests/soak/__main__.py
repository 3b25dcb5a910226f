"""The long series: `python -m tests.soak [SHARD …]` runs these shards, or all, and prints their times.

`SEED=…` draws the same values again; it is printed at the beginning of each shard. The kill series of `kills-…` print their
figures. `MINUTES=5` limits the time of each target of `fuzzing`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import NamedTuple

from tests.fuzzing.targets import MINUTES, TARGETS
from tests.support.dice import SEED
from tests.support.paths import ROOT

LONGEST_TEST = 4 * 3600
"""Seconds after which a test of a long series hangs."""


class Shard(NamedTuple):
    """A part of the long series that can run alone."""

    minutes: int
    """Its duration on two cores."""
    about: str
    arguments: tuple[str, ...] = ()
    """For pytest; by default the tests marked with the shard's name, one after the other."""


SHARDS = {
    "kills-mqtt": Shard(21, "530 kills of service and Mosquitto under load, 80 cuts, 100 edits, faults"),
    "kills-amqp": Shard(15, "290 kills of service and RabbitMQ under load, 40 cuts, 50 edits, faults"),
    "kills-kafka": Shard(16, "285 kills of service and brokers under load, 40 cuts, 50 edits, faults"),
    "kills-streams": Shard(22, "writers and readers of streams through kills and cuts"),
    "kills-operators": Shard(10, "connections changed, closed and opened under load; trimming and indexing killed"),
    "brokers": Shard(12, "the whole service's cases on every broker, and brokers that stop and start"),
    "tenants": Shard(5, "a tenant beside a hostile one: seven resources, p99 at most three times that alone"),
    "demo": Shard(6, "the demo and the examples in all their forms"),
    "public-clients": Shard(10, "Streamr's public clients"),
    "properties": Shard(
        120,
        "all random examples of every property and oracle, on two workers",
        (
            *("-m", "not broker and not spark and not node and not soak or soak(shard='properties')"),
            *("-n", "2", "--dist", "loadgroup"),
        ),
    ),
    "permissions": Shard(
        20,
        "10,000 scenarios without access to unreadable content, on two workers",
        # Not by modules: all of these tests are in one.
        ("-m", "soak(shard='permissions')", "-n", "2", "--dist", "load"),
    ),
    "api": Shard(10, "the HTTP API's description asked at random"),
    "fuzzing": Shard(
        round(MINUTES * len(TARGETS)),
        f"fuzzing by coverage, {MINUTES:g} min (MINUTES) of each of {len(TARGETS)} targets",
    ),
    "lake": Shard(27, "the pipeline's cases on a real Spark"),
    "debian": Shard(4, "the package with a lake in an empty Debian; needs root and debootstrap"),
    "fencing": Shard(8, "a writer of the lake stopped 100 times anywhere in a batch while another one writes"),
    "lake-processes": Shard(17, "pipelines as processes: clusters, backups, replays while the lake is written"),
    "lake-scale": Shard(
        90, "figures of a lake of 100 M events, of random changes, large states and long IDs; 40 GB of disk"
    ),
    "lake-kills": Shard(100, "driver, Java and service killed at every point of a batch"),
}


def run(name: str, shard: Shard) -> bool:
    """Whether the shard passed."""
    print(f"── {name}: {shard.about}; about {shard.minutes} min, seed {SEED}", flush=True)
    # A test of the kill series prints a line of figures, and so does a benchmark.
    shown = ("-v", "-s") if name.startswith(("kills-", "lake-scale")) else ("-q",)
    arguments = shard.arguments or ("-m", f"soak(shard='{name}')", "-n", "0")
    begun = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *shown, "-o", f"hang_seconds={LONGEST_TEST}", *arguments],
        cwd=ROOT,
        env={**os.environ, "THOROUGH": "1"},
        check=False,
    )
    minutes = (time.monotonic() - begun) / 60
    print(f"── {name}: {'passed' if ended.returncode == 0 else 'FAILED'} in {minutes:.1f} min", flush=True)
    return ended.returncode == 0


def main(names: list[str]) -> int:
    if unknown := [name for name in names if name not in SHARDS]:
        print(f"shard: found {', '.join(unknown)}, expected some of: {', '.join(SHARDS)}", file=sys.stderr)
        return 2
    failed = [name for name in names or SHARDS if not run(name, SHARDS[name])]
    print(f"failed: {', '.join(failed)}" if failed else "all shards passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
