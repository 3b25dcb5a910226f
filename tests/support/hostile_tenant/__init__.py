"""A tenant that does its worst beside another one that works: its attacks, the other's load, and the decision."""
