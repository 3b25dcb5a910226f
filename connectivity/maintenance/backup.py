"""The command `connectivity backup`: copies the data folder, and maps errors to exit codes.

The work is done by `spark_store.maintenance.backup`. Keys are not copied: a key beside the secrets that it opens protects
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from connectivity.config.settings import Settings
from connectivity.errors import CommandFailed
from connectivity.maintenance.keyring import KEY_FILE_NAME
from spark_store.errors import LakeUnfit, OutputUnusable, StoreError
from spark_store.lake.tables import Lake
from spark_store.maintenance import backup

EXIT_FAILED, EXIT_UNUSABLE, EXIT_UNFIT = 1, 2, 5


def back_up(settings: Settings, folder: Path, earlier: Path | None = None) -> Mapping[str, Any]:
    """Copy journal and lake, which may be in use, to `folder`; return what was copied, as JSON.

    Raises CommandFailed. `key_left_out` is the file of the key that the copy needs and does not contain; None if the data
    folder has none.
    """
    try:
        made = backup.back_up(Lake(settings.data_dir), folder, earlier)
    except StoreError as error:
        codes = {OutputUnusable: EXIT_UNUSABLE, LakeUnfit: EXIT_UNFIT}
        raise CommandFailed(str(error), codes.get(type(error), EXIT_FAILED)) from error
    key = Path(settings.data_dir) / KEY_FILE_NAME
    return {**msgspec.to_builtins(made), "key_left_out": str(key) if key.exists() else None}
