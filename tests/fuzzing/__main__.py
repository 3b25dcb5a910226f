"""Fuzz one target: `python -m tests.fuzzing TARGET [OPTION…]`, where options are those of libFuzzer.

python -m tests.fuzzing talk -max_total_time=600
python -m tests.fuzzing octets crash-…            (what was found, once more)

Without options it goes on until something is found, which it writes to a file and ends with. An input that takes long, or
with which the process grows beyond bounds, is found too.
"""

from __future__ import annotations

import resource
import sys
import tempfile
from pathlib import Path

import atheris

FOLLOWED = ["mappings.reactive_streams_io", "connectivity.sessions"]
"""The code whose coverage leads the fuzzer."""

BOUNDS = ("-timeout=20", "-max_len=4096", "-len_control=0")
"""Seconds for one input, octets of an input; long ones come from the start."""

MOST_MIB = 1024
"""Memory that the process may take."""


def main(target: str, *options: str) -> None:
    # The most that is counted begins with what whoever started this process had taken.
    limit = f"-rss_limit_mb={(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10) + MOST_MIB}"
    with atheris.instrument_imports(include=FOLLOWED):
        from tests.fuzzing.targets import SEEDS, TARGETS
    with tempfile.TemporaryDirectory(prefix="fuzzing-") as folder:
        for number, seed in enumerate(SEEDS.get(target, ())):
            Path(folder, str(number)).write_bytes(seed)
        begun = [] if any(not option.startswith("-") for option in options) else [folder]
        atheris.Setup([sys.argv[0], *BOUNDS, limit, *options, *begun], TARGETS[target])
        atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
