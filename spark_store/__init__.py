"""The journal, the lake, search, and the Spark pipeline between them. Importing it starts no Spark."""
