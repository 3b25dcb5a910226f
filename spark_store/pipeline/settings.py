"""The settings of a pipeline process: one JSON document. The service knows them without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import msgspec

from spark_store.pipeline.retention_rules import RetentionRules
from spark_store.records import JAVA_MEMORY


class PipelineSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where Spark runs, what the pipeline does, and when its maintenance is due.

    `master` and `memory` are in Spark's form; `spark` overrides Spark's own settings. `jars`: the folder of Delta's jars;
    `mirror`: the Maven repository that has them. A batch of at most `max_batch_rows` begins every `interval` seconds (0: at
    once); `once`: end when all events are in the lake. States are merged every `merge_every`. Tables are compacted after
    `optimize_batches`, or so many new files, or `optimize_every` if there was a batch. A full snapshot is kept after
    `full_snapshot_events`, or twice the number of entities.
    """

    master: str = "local[*]"
    memory: str = JAVA_MEMORY
    jars: str | None = None
    mirror: str | None = None
    answers_queries: bool = True
    spark: Mapping[str, str] = {}
    max_batch_rows: int = 500_000
    interval: float = 5.0
    once: bool = False
    merge_every: timedelta = timedelta(minutes=2)
    optimize_batches: int = 64
    optimize_files: int = 256
    optimize_every: timedelta = timedelta(minutes=10)
    full_snapshot_events: int = 200_000
    vacuum_every: timedelta = timedelta(minutes=10)
    retention_every: timedelta = timedelta(hours=1)
    retention: RetentionRules = RetentionRules()


def decode_settings(*documents: str) -> PipelineSettings:
    """Return the settings of these JSON objects, of which later ones override. Raises MsgspecError."""
    given: dict[str, object] = {}
    for document in documents:
        given |= msgspec.json.decode(document, type=dict[str, object])
    # Durations may be numbers of seconds.
    return msgspec.convert(given, PipelineSettings, strict=False)
