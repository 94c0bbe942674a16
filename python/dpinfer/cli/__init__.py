"""The ``dpinfer`` command: demo, fit, posterior, account.

**Privacy.** ``fit`` and ``demo`` read records, through the library's mechanisms only; they write the release
and results computed from it. No error message, log line or file shows a record.
"""
