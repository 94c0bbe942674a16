"""The private Newton method: a few full-batch passes with unequal shares of one budget.

**Privacy.** Records go in, a :class:`dpinfer.NewtonRelease` comes out.  Proof: docs/derivations/private-newton.md.
"""

from dpinfer.mechanism.newton.plan import NewtonPlan, plan_newton
from dpinfer.mechanism.newton.run import run_newton

__all__ = ["NewtonPlan", "plan_newton", "run_newton"]
