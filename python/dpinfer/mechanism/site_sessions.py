"""Models whose sites the engine computes: their records as the kernels read them, behind one interface.

**Privacy.** Sessions hold the records.  Only sums with noise leave the mechanism; the others are for audits and for the
methods that are not private.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dpinfer._records import as_record_array
from dpinfer.errors import RecordError
from dpinfer.mechanism import _native
from dpinfer.mechanism.records import check_records
from dpinfer.mechanism.site_state import Cavity, SitePrior
from dpinfer.models import GaussianMixture, LogisticRegression, ProbitRegression

__all__ = [
    "SiteModel",
    "SiteRecords",
    "block_shape",
    "check_site_model",
    "check_site_records",
    "open_session",
    "set_cavity",
    "site_prior",
]

FloatArray = npt.NDArray[np.float64]
SiteModel: TypeAlias = GaussianMixture | ProbitRegression | LogisticRegression

_MODELS = (GaussianMixture, ProbitRegression, LogisticRegression)
_MAX_RECORDS = 2**31


@dataclass(frozen=True, eq=False)
class SiteRecords:
    """Checked records: features (N, p), and responses (N,) for a regression.

    **Privacy.** Holds the records.
    """

    features: FloatArray
    response: FloatArray | None

    @property
    def arrays(self) -> tuple[FloatArray, ...]:
        """Everything that the kernels read."""
        return (self.features,) if self.response is None else (self.features, self.response)


def check_site_model(model: Any) -> SiteModel:
    """Return the model if the engine has its sites."""
    if not isinstance(model, _MODELS):
        names = ", ".join(kind.__name__ for kind in _MODELS)
        raise TypeError(f"model must be one of {names}, got {type(model).__name__}")
    return model


def block_shape(model: SiteModel) -> tuple[int, int]:
    """Return (J, d): how many independent Gaussian blocks q has, and of what dimension."""
    if isinstance(model, GaussianMixture):
        return model.n_components, model.n_features
    return 1, model.n_coef


def site_prior(model: SiteModel) -> SitePrior:
    """Return the prior as Gaussian blocks."""
    if isinstance(model, GaussianMixture):
        return SitePrior(model.prior_means, model.prior_scale)
    return SitePrior(np.zeros((1, model.n_coef)), model.prior_scale)


def check_site_records(model: SiteModel, X: Any, y: Any) -> SiteRecords:
    """Return the records as the kernels read them.

    **Privacy.** Reads the records.  Raises, if at all, before the mechanism starts, and names no value and no row.

    Raises
    ------
    TypeError
        If an array does not hold real numbers, or `y` is missing or superfluous.
    RecordError
        If shapes disagree, there is no record, a value is not finite, or a response is not 0 or 1.
    """
    if not isinstance(model, GaussianMixture):
        if y is None:
            raise TypeError(f"y must be given for {type(model).__name__}")
        features, response = check_records(model, X, y)
        return SiteRecords(np.ascontiguousarray(features, dtype=np.float64), response)
    if y is not None:
        raise TypeError("y must be None for GaussianMixture, whose records are X")
    records = as_record_array("X", X)
    if records.dtype.kind not in "fiub":
        raise TypeError(f"X must be an array of real numbers, got dtype {records.dtype}")
    if records.ndim != 2 or records.shape[1] != model.n_features:
        # Not the number of rows: it is private under add/remove adjacency.
        columns = f"{records.shape[1]} columns" if records.ndim == 2 else f"{records.ndim} dimensions"
        raise RecordError(f"X must be two-dimensional with {model.n_features} columns, got {columns}")
    if records.shape[0] == 0:
        raise RecordError("X must have at least one row, got none")
    if records.shape[0] > _MAX_RECORDS:
        raise RecordError(f"X must have at most {_MAX_RECORDS} rows")
    points = np.ascontiguousarray(records, dtype=np.float64)
    if not np.all(np.isfinite(points)):
        raise RecordError("X must be finite: it holds a NaN or an infinity")
    return SiteRecords(points, None)


def open_session(
    model: SiteModel,
    records: SiteRecords,
    *,
    max_site_norm: float,
    key: bytes,
    n_threads: int,
    n_nodes: int,
    temperature: float = 1.0,
) -> _native.SiteSession:
    """Return a compiled session over checked records.

    Parameters
    ----------
    model, records
    max_site_norm : float
        Clipping norm C of a contribution.
    key : bytes
    n_threads : int
        0: all cores.
    n_nodes : int
        Gauss-Hermite nodes of the logistic evidence.
    temperature : float
        What the covariances of a mixture are multiplied by.
    """
    if isinstance(model, GaussianMixture):
        return _native.mixture_sites(
            contribution="site",
            points=records.features,
            log_weights=model.log_weights,
            covariances=np.ascontiguousarray(model.covariances * temperature),
            max_site_norm=max_site_norm,
            key=key,
            n_threads=n_threads,
        )
    nodes, weights = np.polynomial.hermite_e.hermegauss(n_nodes)
    return _native.binary_sites(
        features=records.features,
        response=np.asarray(records.response),
        intercept=model.fit_intercept,
        likelihood=model.likelihood,
        nodes=nodes,
        weights=weights / np.sqrt(2.0 * np.pi),
        max_site_norm=max_site_norm,
        key=key,
        n_threads=n_threads,
    )


def set_cavity(session: _native.SiteSession, cavity: Cavity, block_weight: float) -> None:
    """Give the session the public state of a step."""
    session.set_state(
        cavity_loc=np.ascontiguousarray(cavity.loc),
        cavity_cov=np.ascontiguousarray(cavity.cov),
        centre=cavity.centre,
        neutral=cavity.neutral,
        block_weight=block_weight,
    )


def open_moment_session(
    model: GaussianMixture, records: SiteRecords, *, max_site_norm: float, key: bytes, n_threads: int
) -> _native.SiteSession:
    """Return a session whose contributions are a mixture's expected sufficient statistics, for EM."""
    return _native.mixture_sites(
        contribution="moments",
        points=records.features,
        log_weights=model.log_weights,
        covariances=model.covariances,
        max_site_norm=max_site_norm,
        key=key,
        n_threads=n_threads,
    )


def public_normals(key: bytes, stream: int, size: int) -> FloatArray:
    """Return standard normals of a stream of their own, for starts: knowing them gives no noise away."""
    return _native.monte_carlo_normals(key, stream, size)
