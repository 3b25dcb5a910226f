"""Kill tests: a load with an fsynced log of its responses, and a checker for log and history.

Both are separate processes, so that a kill of the service cannot hide a loss.
"""
