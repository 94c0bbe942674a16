"""The private calls that a record-and-replay audit runs: of mechanisms, tables, estimators, fits and the command line.

**Privacy.** Made-up records only.
"""
