"""Payload mapping, with JavaScript in one sandboxed process for each connection that uses scripts.

    mapper.py           a payload mapper with its options and conditions
    script_host.py      starts, uses and ends the script process
    script_calls.py     the queue of calls to the script process (no I/O)
    script_protocol.py  the messages between the service and the script process
    worker.py           the script process, with limits by the operating system
    sandbox.py          runs one script with limits of time, memory, stack and output
    script_check.py     checks that the scripts of a document can be loaded

A process of its own keeps crashes and memory of scripts away from other connections (about 20 MB). Import nothing here.
"""
