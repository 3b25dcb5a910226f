"""Kill tests: a load that keeps an fsynced log of what it was answered, and a checker that compares log and history.

Both are processes of their own, so that nothing that dies with the service can hide what it lost.
"""
