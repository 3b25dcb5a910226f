"""Queries that Spark answers: search of the past, export."""
