"""Interface of a model to runs of (DP-)SEP: Gaussian blocks, and expectations of its records' sites."""

from typing import Any, Protocol, runtime_checkable

import numpy as np

from dpinfer._arrays import FloatArray


@runtime_checkable
class SiteModel(Protocol):
    """A model whose posterior is approximated by J independent Gaussian blocks, and whose records have sites."""

    @property
    def n_features(self) -> int:
        """Number of columns of X."""

    @property
    def prior_scale(self) -> float:
        """Prior standard deviation of every coordinate of the blocks."""

    @property
    def site_sum(self) -> str | None:
        """Code that sums the records' sites; None without sites."""

    @property
    def exchangeable_blocks(self) -> bool:
        """Whether blocks are interchangeable, so that runs must start apart and may be annealed."""

    @property
    def record_form(self) -> str:
        """Form of a record: see :class:`dpinfer.models.Model`."""

    @property
    def isotropic(self) -> bool:
        """Whether the blocks' precisions are multiples of the identity."""

    @property
    def block_scale(self) -> float:
        """Spread of a record about its block, by which starts of exchangeable blocks are kept apart."""

    @property
    def site_prior_loc(self) -> FloatArray:
        """Prior mean of the blocks, (J, d); the prior's standard deviation is `prior_scale`."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters."""

    def expected_site_precision(self, n_records: int) -> FloatArray:
        """Return the posterior precision that the model expects before any record is seen, (J, d, d)."""

    def typical_site_norm(self, block_weight: float, quantile: float, size: int, rng: np.random.Generator) -> float:
        """Return a quantile of the norm of centred contributions of `size` records that the model expects."""

    def to_dict(self) -> dict[str, Any]:
        """Return the model as JSON values."""
