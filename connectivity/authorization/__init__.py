"""Policies compiled to answer who may do what, and asking again when they change."""
