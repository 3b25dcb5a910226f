"""`connectivity backup`: a copy of the data folder that a service can go on from, and how its errors end a command.

The work is `spark_store.maintenance.backup`. What seals the secrets of stored connections is not copied: a key that lies
beside what it opens protects nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from connectivity.config.settings import Settings
from connectivity.errors import ConnectivityError
from connectivity.maintenance.keyring import OWN_FILE
from spark_store.errors import LakeUnfit, OutputUnusable, StoreError
from spark_store.lake.tables import Lake
from spark_store.maintenance import backup

EXIT_FAILED, EXIT_UNUSABLE, EXIT_UNFIT = 1, 2, 5


class BackupFailed(ConnectivityError):
    """There is no copy; `exit_code` is what the command ends with."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def back_up(settings: Settings, folder: Path, earlier: Path | None = None) -> Mapping[str, Any]:
    """Copy journal and lake, which may be in use, to `folder`; what was copied, as JSON. Raises BackupFailed.

    `key_left_out` is the file of the key that the copy needs and does not have, None where none lies in the data folder.
    """
    try:
        made = backup.back_up(Lake(settings.data_dir), folder, earlier)
    except OutputUnusable as error:
        raise BackupFailed(str(error), EXIT_UNUSABLE) from error
    except LakeUnfit as error:
        raise BackupFailed(str(error), EXIT_UNFIT) from error
    except StoreError as error:
        raise BackupFailed(str(error), EXIT_FAILED) from error
    key = Path(settings.data_dir) / OWN_FILE
    return {**msgspec.to_builtins(made), "key_left_out": str(key) if key.exists() else None}
