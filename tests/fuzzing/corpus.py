"""The corpus of each target: an archive of small inputs that reach the same code as all.

`minimize` chooses them, the smallest first: each executes a step from line to line that no seed and no earlier input
executes, or executes it twice, four times, eight times … as often.
"""

from __future__ import annotations

import io
import lzma
import sys
import tarfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from tests.fuzzing.target import Target
from tests.support.paths import ROOT

FOLDER = Path(__file__).with_name("corpora")
LARGEST_ARCHIVE = 10_000
"""The maximum size of an archive, in bytes. All archives together have some 200 KB."""

Step = tuple[str, int, int]
"""A file, and two lines that were executed one after the other; line 0 is the beginning of a function."""

Feature = tuple[Step, int]
"""A step, and the number of binary digits of its count."""


def read(name: str) -> list[bytes]:
    """Return the inputs of a target's corpus, the smallest first."""
    archive = FOLDER / f"{name}.tar.xz"
    if not archive.exists():
        return []
    with tarfile.open(archive) as members:
        return [found.read() for member in members if (found := members.extractfile(member)) is not None]


def write(name: str, inputs: Sequence[bytes]) -> int:
    """Write the corpus from the first inputs that fit, and return their number."""
    number = len(inputs)
    while len(packed := _pack(inputs[:number])) > LARGEST_ARCHIVE:
        number -= max(1, number // 20)
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.tar.xz").write_bytes(packed)
    return number


def _pack(inputs: Iterable[bytes]) -> bytes:
    """Return an archive of inputs, which is the same for the same inputs."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as members:
        for number, each in enumerate(inputs):
            member = tarfile.TarInfo(f"{number:04}")
            member.size = len(each)
            members.addfile(member, io.BytesIO(each))
    return lzma.compress(packed.getvalue())


def minimize(target: Target, followed: Sequence[str], inputs: Iterable[bytes]) -> list[bytes]:
    """Return the smallest inputs that, together with the seeds, reach all features of the followed code."""
    reached: set[Feature] = set()
    for seed in target.seeds:
        reached |= _features_of(target, followed, seed)
    kept = []
    for data in sorted({*inputs}.difference(target.seeds), key=lambda each: (len(each), each)):
        features = _features_of(target, followed, data)
        if not features <= reached:
            reached |= features
            kept.append(data)
    return kept


def _features_of(target: Target, followed: Sequence[str], data: bytes) -> set[Feature]:
    places = tuple(f"{name.replace('.', '/')}{end}" for name in followed for end in (".py", "/"))
    steps: Counter[Step] = Counter()

    def trace(frame: FrameType, _event: str, _argument: Any) -> Any:
        file = frame.f_code.co_filename
        if not any(place in file for place in places):
            return None
        last = 0

        def step(frame: FrameType, event: str, _argument: Any) -> Any:
            nonlocal last
            if event == "line":
                steps[file, last, frame.f_lineno] += 1
                last = frame.f_lineno
            return step

        return step

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        target.run(data)
    finally:
        sys.settrace(before)
    return {(step, count.bit_length()) for step, count in steps.items()}


def found_inputs(name: str) -> Path:
    """Return the folder of inputs that the fuzzer has found on this machine."""
    folder = ROOT / ".run" / "fuzzing" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder
