"""Coverage studies: many simulated runs of the mechanism, their posteriors, and whether those are calibrated.

**Privacy.** Simulated records only.
"""
