"""RQL: the filter language of histories, conditions, targets and searches, in plain Python.

predicate = resolve_times(parse(text), now)
evaluate(predicate, document)
"""

from spark_store.rql.ast import Predicate
from spark_store.rql.binding import resolve_times
from spark_store.rql.evaluator import MOST_BYTES, compile_predicate, evaluate, require_quick, weight
from spark_store.rql.parser import parse
from spark_store.rql.partial_evaluator import fields, names_times, partial_evaluate

__all__ = [
    "MOST_BYTES",
    "Predicate",
    "compile_predicate",
    "evaluate",
    "fields",
    "names_times",
    "parse",
    "partial_evaluate",
    "require_quick",
    "resolve_times",
    "weight",
]
