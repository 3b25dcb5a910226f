"""Payload mapping, with JavaScript in one sandboxed process for each connection that uses scripts.

A process of its own keeps crashes and memory of scripts away from other connections (about 20 MB). Import nothing here.
"""
