import numpy as np
import numpy.typing as npt

def simd_variant() -> str: ...
def keystream(key: bytes, domain: int, step: int, counter: int, n_blocks: int) -> bytes: ...
def monte_carlo_normals(key: bytes, step: int, n: int) -> npt.NDArray[np.float64]: ...
def box_muller(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]: ...
def rounded_gaussian(key: bytes, step: int, stddev: float, n: int) -> tuple[npt.NDArray[np.int64], int]: ...
def exact_rounded_gaussian(key: bytes, step: int, stddev: float, n: int) -> npt.NDArray[np.int64]: ...
def poisson_sample(key: bytes, step: int, sample_rate: float, n_rows: int) -> npt.NDArray[np.int64]: ...

class StepSession:
    def __init__(
        self,
        *,
        features: npt.NDArray[np.float64] | npt.NDArray[np.float32],
        response: npt.NDArray[np.float64],
        likelihood: str,
        intercept: bool,
        aligned: bool,
        sample_rate: float,
        max_grad_norm: float,
        key: bytes,
        n_threads: int,
    ) -> None: ...
    def set_scales(self, scale: npt.NDArray[np.float64], offset: npt.NDArray[np.float64]) -> None: ...
    def set_quadrature(
        self,
        loc: npt.NDArray[np.float64],
        variance: npt.NDArray[np.float64],
        nodes: npt.NDArray[np.float64],
        weights: npt.NDArray[np.float64],
        moments: npt.NDArray[np.float64],
    ) -> None: ...
    def set_draws(
        self,
        draws: npt.NDArray[np.float64],
        standard: npt.NDArray[np.float64],
        dispersion: npt.NDArray[np.float64],
    ) -> None: ...
    def clipped_sum(self, step: int) -> npt.NDArray[np.int64]: ...
    def noisy_sum(self, step: int, noise_multiplier: float) -> npt.NDArray[np.float64]: ...
    @property
    def released_length(self) -> int: ...
    @property
    def effective_rate(self) -> float: ...
    @property
    def lattice_step(self) -> float: ...

class AffineSession:
    def __init__(
        self,
        *,
        statistics: npt.NDArray[np.float64],
        length: int,
        sample_rate: float,
        max_grad_norm: float,
        key: bytes,
        n_threads: int,
    ) -> None: ...
    def set_map(self, matrix: npt.NDArray[np.float64], offset: npt.NDArray[np.float64]) -> None: ...
    def clipped_sum(self, step: int) -> npt.NDArray[np.int64]: ...
    def noisy_sum(self, step: int, noise_multiplier: float) -> npt.NDArray[np.float64]: ...
    @property
    def length(self) -> int: ...
    @property
    def effective_rate(self) -> float: ...
    @property
    def lattice_step(self) -> float: ...

class NetworkSession:
    def __init__(
        self,
        *,
        features: npt.NDArray[np.float64],
        response: npt.NDArray[np.float64],
        n_hidden: int,
        hidden_scale: float,
        output_scale: float,
        sample_rate: float,
        max_norm: float,
        key: bytes,
        n_threads: int,
    ) -> None: ...
    def set_sites(
        self,
        mean: npt.NDArray[np.float64],
        variance: npt.NDArray[np.float64],
        noise_variance: float,
        eta_weight: float,
        site_weight: float,
        noise_weight: float,
        site_norm: float,
        noise_limit: float,
    ) -> None: ...
    def set_gradients(
        self,
        mean: npt.NDArray[np.float64],
        variance: npt.NDArray[np.float64],
        noise_variance: float,
        mean_scale: npt.NDArray[np.float64],
        variance_scale: npt.NDArray[np.float64],
        noise_weight: float,
    ) -> None: ...
    def clipped_sum(self, step: int) -> npt.NDArray[np.int64]: ...
    def noisy_sum(self, step: int, noise_multiplier: float) -> npt.NDArray[np.float64]: ...
    def plain_sum(self, rows: npt.NDArray[np.int64], max_norm: float) -> npt.NDArray[np.float64]: ...
    @property
    def length(self) -> int: ...
    @property
    def effective_rate(self) -> float: ...
    @property
    def lattice_step(self) -> float: ...

class NetworkPasses:
    def __init__(
        self,
        *,
        features: npt.NDArray[np.float64],
        response: npt.NDArray[np.float64],
        n_hidden: int,
        own_sites: bool,
        clip_norm: float,
        site_weight: float,
        eta: npt.NDArray[np.float64],
        precision: npt.NDArray[np.float64],
        prior_precision: npt.NDArray[np.float64],
        gamma: npt.NDArray[np.float64],
        prior_gamma: npt.NDArray[np.float64],
    ) -> None: ...
    def run(self, rows: npt.NDArray[np.int64], share: float, step: float) -> None: ...
    def set_prior(self, prior_precision: npt.NDArray[np.float64]) -> None: ...
    def state(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]: ...

class SiteSession:
    def set_state(
        self,
        *,
        cavity_loc: npt.NDArray[np.float64],
        cavity_cov: npt.NDArray[np.float64],
        centre: npt.NDArray[np.float64],
        neutral: npt.NDArray[np.float64],
        block_weight: float,
    ) -> None: ...
    def poisson_sum(self, step: int, sample_rate: float, noise_multiplier: float) -> npt.NDArray[np.float64]: ...
    def uniform_sum(self, step: int, noise_multiplier: float) -> npt.NDArray[np.float64]: ...
    def permuted_sum(self, step: int, noise_multiplier: float) -> npt.NDArray[np.float64]: ...
    def clipped_poisson_sum(self, step: int, sample_rate: float) -> npt.NDArray[np.int64]: ...
    def clipped_sum(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]: ...
    def plain_sum(self, max_norm: float) -> npt.NDArray[np.float64]: ...
    def contributions(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]: ...
    def order(self, epoch: int) -> npt.NDArray[np.int64]: ...
    def uniform_row(self, step: int) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def lattice_step(self) -> float: ...

def mixture_sites(
    *,
    contribution: str,
    points: npt.NDArray[np.float64],
    log_weights: npt.NDArray[np.float64],
    covariances: npt.NDArray[np.float64],
    max_site_norm: float,
    key: bytes,
    n_threads: int,
) -> SiteSession: ...
def binary_sites(
    *,
    features: npt.NDArray[np.float64],
    response: npt.NDArray[np.float64],
    intercept: bool,
    likelihood: str,
    nodes: npt.NDArray[np.float64],
    weights: npt.NDArray[np.float64],
    max_site_norm: float,
    key: bytes,
    n_threads: int,
) -> SiteSession: ...

class PartialSum:
    """An exact lattice sum made in parts, in any order; noise is drawn once, for the whole.

    A record's contribution is clipped to max_norm and rounded to integers k, multiples of lattice_step, with
    ``|k| <= max_norm / lattice_step`` exactly; one that is not finite adds zero.  `integers` is private.
    """

    def __init__(self, *, length: int, max_norm: float) -> None: ...
    # A block (n, length) of contributions computed elsewhere, a record a row; with a scale (length,), each times that.
    def add_contributions(
        self,
        contributions: npt.NDArray[np.float64] | npt.NDArray[np.float32],
        n_threads: int = 1,
        scale: npt.NDArray[np.float64] | None = None,
    ) -> None: ...
    # The integers of another part of the same sum.
    def merge(self, integers: npt.NDArray[np.int64]) -> None: ...
    # What is released, in units of the contributions: noise of standard deviation noise_multiplier * max_norm from
    # the stream (noise, step) of the key.  The exact sum stays as it is.
    def noisy_sum(self, key: bytes, step: int, noise_multiplier: float) -> npt.NDArray[np.float64]: ...
    @property
    def integers(self) -> npt.NDArray[np.int64]: ...
    @property
    def length(self) -> int: ...
    @property
    def max_norm(self) -> float: ...
    @property
    def lattice_step(self) -> float: ...

class Residuals:
    """How the residual r = y - E[y | eta] of a record enters: psi = clip(r, -bound, bound) - centre(eta).

    eta = loc'x with loc (n_coef,); bound may be inf.  E[y | eta] is sigmoid(eta), Phi(eta), eta or exp(eta) for the
    link "logistic", "probit", "gaussian" or "poisson"; with "probit_score" r is the derivative of the probit log-
    likelihood in eta, and the slope minus its second one.  centre and slope are public functions of eta, tabulated at
    first_node + spacing * (0, 1, ...), linear in between and constant beyond; empty arrays: the centre is 0, and the
    slope is dE[y | eta]/deta where abs(r) <= bound, else 0.
    """

    def __init__(
        self,
        *,
        link: str,
        loc: npt.NDArray[np.float64],
        bound: float,
        centre: npt.NDArray[np.float64],
        slope: npt.NDArray[np.float64],
        first_node: float,
        spacing: float,
    ) -> None: ...

class RegressionRows:
    """Passes over the records of a regression in coordinates z = transform x, (m, n_coef) times (n_coef,).

    Every record has the weight w = min(1, bound**2 / |z|**2) times its survey weight. Each method adds to a
    PartialSum of the stated length, whose max_norm a record never exceeds, whatever the other arguments are: they
    say what is computed, the sum what it may cost. Matrices are added as their upper triangles, row by row, off-
    diagonal entries times sqrt(2), so that a record's norm is the Frobenius norm. An intercept is a constant 1
    behind the features.
    """

    def __init__(
        self,
        *,
        features: npt.NDArray[np.float64] | npt.NDArray[np.float32],
        response: npt.NDArray[np.float64],
        intercept: bool,
        first_row: int = 0,  # where these rows begin in the whole, for sampling: a multiple of 1024
        n_threads: int = 1,  # 0: as many as OpenMP uses
        # Sparse rows: features (n_values,) stand in `columns`, those of row i from starts[i] to starts[i + 1].
        columns: npt.NDArray[np.int32] | None = None,
        starts: npt.NDArray[np.int64] | None = None,
        n_features: int | None = None,
        weights: npt.NDArray[np.float64] | None = None,  # survey weights (n,), at least 0
    ) -> None: ...
    # From here on, passes are over a Poisson sample, that of (key, step); over all rows until then.
    def sample(self, key: bytes, step: int, sample_rate: float) -> None: ...
    # w z z', m (m + 1) / 2 numbers; at most bound**2.
    def add_second_moments(self, total: PartialSum, *, transform: npt.NDArray[np.float64], bound: float) -> None: ...
    # (w psi z, scale_weight (min(|r| / scale_unit, 1) - scale_centre)), m + 1 numbers; m without a scale_weight.  At
    # most hypot(bound * max|psi|, scale_weight * max(scale_centre, 1 - scale_centre)).
    def add_scores(
        self,
        total: PartialSum,
        residuals: Residuals,
        *,
        transform: npt.NDArray[np.float64],
        bound: float,
        scale_weight: float = 0.0,
        scale_unit: float = 1.0,
        scale_centre: float = 0.0,
    ) -> None: ...
    # w slope z z', m (m + 1) / 2 numbers; at most bound**2 max|slope|.
    def add_curvature(
        self, total: PartialSum, residuals: Residuals, *, transform: npt.NDArray[np.float64], bound: float
    ) -> None: ...
    # w**2 psi**2 z z', m (m + 1) / 2 numbers; at most bound**2 max psi**2.
    def add_score_products(
        self, total: PartialSum, residuals: Residuals, *, transform: npt.NDArray[np.float64], bound: float
    ) -> None: ...
    # The indicator of the interval of `edges` in which |w psi z| lies, len(edges) + 1 numbers; at most 1.
    def add_score_sizes(
        self,
        total: PartialSum,
        residuals: Residuals,
        *,
        transform: npt.NDArray[np.float64],
        bound: float,
        edges: npt.NDArray[np.float64],
    ) -> None: ...
    # The same of the root of |w slope z z'|.
    def add_curvature_sizes(
        self,
        total: PartialSum,
        residuals: Residuals,
        *,
        transform: npt.NDArray[np.float64],
        bound: float,
        edges: npt.NDArray[np.float64],
    ) -> None: ...
    @property
    def n_coef(self) -> int: ...

class PersonModel:
    def __init__(
        self,
        *,
        family: str,
        max_rows: int,
        n_columns: int,
        slope: int,
        nodes: list[float],
        weights: list[float],
    ) -> None: ...
    def scores(
        self,
        *,
        point: npt.NDArray[np.float64],
        truth: npt.NDArray[np.float64],
        transform: npt.NDArray[np.float64],
        features: npt.NDArray[np.float64],
        responses: npt.NDArray[np.float64] | None,
        seeds: npt.NDArray[np.uint64],
        stream: int,
        n_draws: int,
        n_threads: int = 1,
    ) -> npt.NDArray[np.float64]: ...
