"""The one object that crosses the privacy boundary: what a private mechanism has published.

**Privacy.** A :class:`Release` holds noisy quantities and public settings only; everything computed from it is
post-processing and costs nothing.
"""

from dpinfer.release.external import release_from_arrays
from dpinfer.release.files import load_release, save_release
from dpinfer.release.trace import Release

__all__ = ["Release", "load_release", "release_from_arrays", "save_release"]
