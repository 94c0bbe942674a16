"""Pictures of posteriors, traces and calibration, drawn with matplotlib (imported when first needed).

**Privacy.** Every function draws a release, a posterior or a result it is given; none reads records.  Each takes
``ax=None`` and returns the matplotlib ``Axes`` it has drawn on; without `ax` it makes a figure with pyplot.
"""

from dpinfer.plots.calibration_curves import calibration, calibration_error
from dpinfer.plots.intervals import posterior
from dpinfer.plots.traces import gradient_fit, trace

__all__ = ["calibration", "calibration_error", "gradient_fit", "posterior", "trace"]
