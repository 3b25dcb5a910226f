"""A query of the lake from SQL text with the names of tables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from spark_store.lake.tables import TABLES
from spark_store.queries.spark_query import SparkQuery, Tables


def sql(text: str, versions: Mapping[str, int] = MappingProxyType({})) -> SparkQuery:
    """Return the query, of these versions of tables or of the newest."""

    def query(tables: Tables) -> Any:
        for table in TABLES:
            if re.search(rf"\b{table.name}\b", text):
                tables.read(table, versions.get(table.name)).createOrReplaceTempView(table.name)
        return tables.session.sql(text)

    return query
