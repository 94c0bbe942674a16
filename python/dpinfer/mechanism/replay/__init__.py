"""A tape of a private run's queries of its records, and replays on other records with the answers of the tape.

Every compiled session and every function through which noised sums of records leave is wrapped while a
:class:`TapeRecorder` is in use.  The first run writes the tape: public inputs in full, private ones by type and
width only, noised sums with their exact sums.  A replay on a neighbour computes its own sums, notes how far they are
from the tape's, and returns the tape's: everything after that must then be equal bit for bit
(docs/derivations/audit.md, "Record and replay").

**Privacy.** For made-up records: a tape holds exact sums.  Nothing in this package is used by a private run.
"""

from dpinfer.mechanism.replay.native import NATIVE_NAMES
from dpinfer.mechanism.replay.recorder import TapeRecorder, replace_everywhere
from dpinfer.mechanism.replay.tape import NoisedSum, Tape, show

__all__ = ["NATIVE_NAMES", "NoisedSum", "Tape", "TapeRecorder", "replace_everywhere", "show"]
