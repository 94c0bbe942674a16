"""Test vectors of certificates: an honest one with its release and ledger, and others that contradict themselves.

python -m tests.golden.certificates      # writes them anew: only for a new version of the format
"""

import json
import shutil
import tempfile
from pathlib import Path

from dpinfer.verify_release import canonical
from tests.reference.release_certificates import charged_bundle, tampered

FOLDER = Path(__file__).with_name("certificates")
# What was done to the first, whose digests and hashes were made anew.
FORGED = {
    "lower-epsilon": "epsilon lowered by two per cent",
    "more-noise": "more noise",
    "part-left-out": "a part left out",
    "charged-less": "an entry that charged less",
    "somebody-else": "somebody else's signature",
    "digest": "another digest",
    "not-canonical": "spaces",
}


def main():
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        bundle = charged_bundle(Path(folder))
        shutil.copy(bundle.ledger, FOLDER / "honest.ledger")
    (FOLDER / "honest.release").write_bytes(bundle.release)
    (FOLDER / "honest.json").write_bytes(canonical(bundle.document) + b"\n")
    for name, tampering in FORGED.items():
        changed = tampered(bundle, tampering)
        text = canonical(changed.document) if changed.text is None else changed.text
        (FOLDER / f"{name}.json").write_bytes(text + b"\n")
    (FOLDER / "events.json").write_text(json.dumps(EVENTS, indent=1) + "\n", encoding="utf-8")


GAUSSIAN = {"type": "gaussian", "noise_multiplier": 2.0}
SAMPLED = {"type": "poisson_sampled", "sample_rate": 0.1, "event": GAUSSIAN}
WEAK = {"type": "gaussian", "noise_multiplier": 3.0}
PURE = {"type": "pure", "epsilon": 0.1, "adjacency": "add_remove"}
# The least epsilon at delta, by 40 digits: a verifier accepts one per cent more, and nothing less.
EVENTS = [
    {"events": [GAUSSIAN], "adjacency": "add_remove", "delta": 1e-6, "epsilon": 2.25408465021974},
    {"events": [GAUSSIAN], "adjacency": "replace_one", "delta": 1e-6, "epsilon": 4.88655411746220},
    {"events": [PURE, PURE], "adjacency": "add_remove", "delta": 0.0, "epsilon": 0.2},
    {"events": [SAMPLED], "adjacency": "add_remove", "delta": 1e-6, "epsilon": 0.490919853677147},
    {"events": [SAMPLED, WEAK], "adjacency": "zero_out", "delta": 1e-6, "epsilon": 1.47771809589741},
]

if __name__ == "__main__":
    main()
