"""Fuzz one target: `python -m tests.fuzzing TARGET [OPTION…]`, where options are those of libFuzzer.

    python -m tests.fuzzing ditto -max_total_time=600
    python -m tests.fuzzing ditto crash-…              (runs an input again)
    python -m tests.fuzzing --keep ditto               (writes the corpus from the found inputs)

Without options, a run ends only when an input fails, which it writes to a file. An input that exceeds the limits of
time or memory fails too. Inputs that reach new code are kept in `.run/fuzzing`, where the next run continues.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path

import structlog

from tests.fuzzing import corpus
from tests.fuzzing.target import Target, peak_memory
from tests.fuzzing.targets import TARGETS, load

BOUNDS = ("-timeout=20", "-max_len=4096", "-len_control=0")
"""The limits of an input: 20 seconds, and 4096 bytes, which even the first inputs may have."""

MOST_MIB = 1024
"""The maximum memory of the process, without that of its parent, in MiB."""


def fuzz(name: str, *options: str) -> None:
    """Run the fuzzer, which ends the process."""
    import atheris

    # The peak memory includes that of the parent process.
    limit = f"-rss_limit_mb={(peak_memory() >> 20) + MOST_MIB}"
    with atheris.instrument_imports(include=list(TARGETS[name].followed)):
        target = load(name)
    with tempfile.TemporaryDirectory(prefix="fuzzing-") as folder:
        beginnings = Path(folder, "beginnings")
        beginnings.mkdir()
        for number, data in enumerate((*target.seeds, *corpus.read(name))):
            (beginnings / str(number)).write_bytes(data)
        given = any(not option.startswith("-") for option in options)
        folders = [] if given else [str(corpus.found_inputs(name)), str(beginnings)]
        words = _dictionary(target, Path(folder, "words"))
        atheris.Setup([sys.argv[0], *BOUNDS, limit, *words, *options, *folders], target.check)
        atheris.Fuzz()


def _dictionary(target: Target, file: Path) -> list[str]:
    if not target.words:
        return []
    written = ("".join(f"\\x{byte:02x}" for byte in word) for word in target.words)
    file.write_text("".join(f'"{word}"\n' for word in written))
    return [f"-dict={file}"]


def keep(name: str) -> None:
    """Write the corpus: the smallest of the kept and found inputs that reach the same code as all."""
    target = load(name)
    inputs = [*corpus.read(name), *(file.read_bytes() for file in corpus.found_inputs(name).iterdir())]
    needed = corpus.minimize(target, TARGETS[name].followed, inputs)
    print(f"{name}: of {len(inputs)} inputs {len(needed)} are needed, {corpus.write(name, needed)} kept")


def main(arguments: list[str]) -> int:
    names = [argument for argument in arguments if argument != "--keep"]
    if not names or names[0] not in TARGETS:
        found = names[0] if names else "nothing"
        print(f"target: found {found}, expected one of: {', '.join(TARGETS)}", file=sys.stderr)
        return 2
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    if arguments[0] == "--keep":
        keep(names[0])
    else:
        fuzz(*names)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
