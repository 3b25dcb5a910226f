"""A hostile tenant next to a good one: the attacks, the good tenant's load, and the verdict."""
