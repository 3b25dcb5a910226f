"""What is remembered and how it is found: journal, history, query language; later the lake.

Importing it starts no Spark.
"""
