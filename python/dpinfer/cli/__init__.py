"""The ``dpinfer`` command: demo, fit, posterior, account.

**Privacy.** ``fit`` and ``demo`` read records, through :func:`dpinfer.run_dpvi` only; what they write is the release
and what follows from it.  No error message, log line or file shows a record.
"""
