"""Random numbers for tests from one printed seed, and the number of examples of property tests.

`SEED=… make test` draws the same values again. `THOROUGH=1` (set by `make soak`) draws all examples, not a fifth of them.
"""

from __future__ import annotations

import os
import random
import secrets

SEED = os.environ.setdefault("SEED", str(secrets.randbelow(2**32)))
"""Set in the environment, so that every worker and child process draws from the same one."""

THOROUGH = os.environ.get("THOROUGH", "") == "1"
FEWEST = 20


def dice(*names: object) -> random.Random:
    """A generator of its own for whatever `names` say, the same in each run with the same `SEED`."""
    return random.Random("/".join([SEED, *(str(name) for name in names)]))


def examples(number: int) -> int:
    """How many of `number` examples to draw: a fifth in `make test`, all of them in `make soak`."""
    return number if THOROUGH else max(min(number, FEWEST), number // 5)
