"""Runs connections, and carries out what operators ask of them."""
