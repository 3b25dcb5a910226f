"""Random numbers for tests from one printed seed, and the number of examples of property tests.

`SEED=… make test` draws the same values again. `THOROUGH=1` (set by `make soak`) draws all examples, not a fifth of them.
"""

from __future__ import annotations

import os
import random
import secrets

SEED = os.environ.setdefault("SEED", str(secrets.randbelow(2**32)))
"""Set in the environment, so that all workers and child processes have the same seed."""

THOROUGH = os.environ.get("THOROUGH", "") == "1"
FEWEST = 20


def dice(*names: object) -> random.Random:
    """Return a random generator for these names; with the same `SEED`, it draws the same in each run."""
    return random.Random("/".join([SEED, *(str(name) for name in names)]))


def examples(number: int) -> int:
    """Return how many of `number` examples to draw: a fifth in `make test`, all of them in `make soak`."""
    return number if THOROUGH else max(min(number, FEWEST), number // 5)
