"""The local master: every decision about the pool, pure and synchronous.

Nothing in this package waits, logs, reads a clock, draws a random number or touches a file. Time comes in as an
argument (integer nanoseconds, monotonic). What takes time is told to the shell; what others wait for is answered
through the outbox.
"""
