"""A hostile tenant beside a good one: the attacks, the good tenant's load, and the verdict."""
