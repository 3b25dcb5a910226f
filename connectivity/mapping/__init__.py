"""JavaScript of operators, run where it can hurt nobody: one process for each connection that maps with scripts.

    protocol.py   what the service and a script process say to each other, and how it is cut into frames
    sandbox.py    one run of a script in an engine of its own, with bounds for time, memory, stack and output
    worker.py     the script process: gives up what it does not need, then answers calls one by one
    calls.py      sans-IO: which calls wait, which are with the process, who is to blame when it dies
    host.py       starts the process, talks to it, ends it
    hosted.py     the scripts of a payload mapper: envelopes in, envelopes out
    checking.py   whether the scripts of a document can be loaded

A process for each connection, since whatever a script does to its own process (a native function that no engine can
interrupt, a crash) costs the other calls of that process at most a fresh start; and since memory that is never shared
cannot tell one connection the messages of another. It is started by the first message and takes about 20 MB.

This file imports nothing: the script process starts with it.
"""
