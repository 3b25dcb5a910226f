"""Bytes ⇄ signals: wire protocols, header mapping, placeholders.

Pure functions; nothing here does input or output.
"""
