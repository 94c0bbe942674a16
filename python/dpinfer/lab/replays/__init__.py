"""The record-and-replay audit, and every private call that it runs, from mechanisms to the command line.

While a :class:`TapeRecorder` is in use, every compiled session and every function through which noised sums of records
leave is wrapped.  The first run writes the tape: public inputs in full, private ones by type and width only, noised
sums with their exact sums.  A replay on a neighbour computes its own sums, notes how far they are from the tape's, and
returns the tape's: everything after that must be equal bit for bit (docs/derivations/audit.md, "Record and replay").

**Privacy.** Made-up records only: a tape holds exact sums.
"""

from dpinfer.lab.replays.audit import ReplayCheck, ReplayResult, replay_audit
from dpinfer.lab.replays.native import NATIVE_NAMES
from dpinfer.lab.replays.recorder import TapeRecorder, replace_everywhere
from dpinfer.lab.replays.scenario import Scenario
from dpinfer.lab.replays.tape import NoisedSum, Tape, show

__all__ = [
    "NATIVE_NAMES",
    "NoisedSum",
    "ReplayCheck",
    "ReplayResult",
    "Scenario",
    "Tape",
    "TapeRecorder",
    "replace_everywhere",
    "replay_audit",
    "show",
]
