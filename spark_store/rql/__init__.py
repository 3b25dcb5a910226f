"""RQL: the filter language of histories, conditions and searches, in plain Python.

predicate = resolve_times(parse(text), now)
evaluate(predicate, document)
weight(predicate)
"""

from spark_store.rql.ast import Predicate
from spark_store.rql.bind import resolve_times
from spark_store.rql.evaluate import evaluate, weight
from spark_store.rql.parser import parse

__all__ = ["Predicate", "evaluate", "parse", "resolve_times", "weight"]
