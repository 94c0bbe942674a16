import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

def simd_variant() -> str: ...
def keystream(key: bytes, domain: int, step: int, counter: int, n_blocks: int) -> bytes: ...
def monte_carlo_normals(key: bytes, step: int, n: int) -> Floats: ...
def box_muller(words: npt.NDArray[np.uint64]) -> Floats: ...
def rounded_gaussian(key: bytes, step: int, stddev: float, n: int) -> tuple[Ints, int]: ...
def exact_rounded_gaussian(key: bytes, step: int, stddev: float, n: int) -> Ints: ...
def poisson_sample(key: bytes, step: int, sample_rate: float, n_rows: int) -> Ints: ...

class _Sampled:
    def clipped_sum(self, step: int) -> Ints: ...
    def noisy_sum(self, step: int, noise_multiplier: float) -> Floats: ...
    @property
    def effective_rate(self) -> float: ...
    @property
    def lattice_step(self) -> float: ...

class StepSession(_Sampled):
    def __init__(
        self,
        *,
        features: Floats | npt.NDArray[np.float32],
        response: Floats,
        likelihood: str,
        intercept: bool,
        aligned: bool,
        sample_rate: float,
        max_grad_norm: float,
        key: bytes,
        n_threads: int,
    ) -> None: ...
    def set_scales(self, scale: Floats, offset: Floats) -> None: ...
    def set_quadrature(
        self, loc: Floats, variance: Floats, nodes: Floats, weights: Floats, moments: Floats
    ) -> None: ...
    def set_draws(self, draws: Floats, standard: Floats, dispersion: Floats) -> None: ...
    @property
    def released_length(self) -> int: ...

class AffineSession(_Sampled):
    def __init__(
        self, *, statistics: Floats, length: int, sample_rate: float, max_grad_norm: float, key: bytes, n_threads: int
    ) -> None: ...
    def set_map(self, matrix: Floats, offset: Floats) -> None: ...
    @property
    def length(self) -> int: ...

class NetworkSession(_Sampled):
    def __init__(
        self,
        *,
        features: Floats,
        response: Floats,
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
        mean: Floats,
        variance: Floats,
        noise_variance: float,
        eta_weight: float,
        site_weight: float,
        noise_weight: float,
        site_norm: float,
        noise_limit: float,
    ) -> None: ...
    def set_gradients(
        self,
        mean: Floats,
        variance: Floats,
        noise_variance: float,
        mean_scale: Floats,
        variance_scale: Floats,
        noise_weight: float,
    ) -> None: ...
    def plain_sum(self, rows: Ints, max_norm: float) -> Floats: ...
    @property
    def length(self) -> int: ...

class SiteSession:
    def set_state(
        self, *, cavity_loc: Floats, cavity_cov: Floats, centre: Floats, neutral: Floats, block_weight: float
    ) -> None: ...
    def poisson_sum(self, step: int, sample_rate: float, noise_multiplier: float) -> Floats: ...
    def uniform_sum(self, step: int, noise_multiplier: float) -> Floats: ...
    def permuted_sum(self, step: int, noise_multiplier: float) -> Floats: ...
    def clipped_poisson_sum(self, step: int, sample_rate: float) -> Ints: ...
    def clipped_sum(self, rows: Ints) -> Ints: ...
    def plain_sum(self, max_norm: float) -> Floats: ...
    def contributions(self, rows: Ints) -> Floats: ...
    def order(self, epoch: int) -> Ints: ...
    def uniform_row(self, step: int) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def lattice_step(self) -> float: ...

def mixture_sites(
    *,
    contribution: str,
    points: Floats,
    log_weights: Floats,
    covariances: Floats,
    max_site_norm: float,
    key: bytes,
    n_threads: int,
) -> SiteSession: ...
def binary_sites(
    *,
    features: Floats,
    response: Floats,
    intercept: bool,
    likelihood: str,
    nodes: Floats,
    weights: Floats,
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
        self, contributions: Floats | npt.NDArray[np.float32], n_threads: int = 1, scale: Floats | None = None
    ) -> None: ...
    # The integers of another part of the same sum.
    def merge(self, integers: Ints) -> None: ...
    # What is released, in units of the contributions: noise of standard deviation noise_multiplier * max_norm from
    # the stream (noise, step) of the key.  The exact sum stays as it is.
    def noisy_sum(self, key: bytes, step: int, noise_multiplier: float) -> Floats: ...
    @property
    def integers(self) -> Ints: ...
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
    slope is dE[y | eta]/deta where abs(r) <= bound, else 0.  With a finite weight_bound, for "logistic" and
    "probit_score", a record's weight w is also times min(1, weight_bound / (w max abs(r) |z|)), the largest abs(r) of
    both responses.
    """

    def __init__(
        self,
        *,
        link: str,
        loc: Floats,
        bound: float = ...,
        centre: Floats = ...,
        slope: Floats = ...,
        first_node: float = 0.0,
        spacing: float = 1.0,
        weight_bound: float = ...,
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
        features: Floats | npt.NDArray[np.float32],
        response: Floats,
        intercept: bool,
        first_row: int = 0,  # where these rows begin in the whole, for sampling: a multiple of 1024
        n_threads: int = 1,  # 0: as many as OpenMP uses
        # Sparse rows: features (n_values,) stand in `columns`, those of row i from starts[i] to starts[i + 1].
        columns: npt.NDArray[np.int32] | None = None,
        starts: Ints | None = None,
        n_features: int | None = None,
        weights: Floats | None = None,  # survey weights (n,), at least 0
    ) -> None: ...
    # From here on, passes are over a Poisson sample, that of (key, step); over all rows until then.
    def sample(self, key: bytes, step: int, sample_rate: float) -> None: ...
    # w z z', m (m + 1) / 2 numbers; at most bound**2.
    def add_second_moments(self, total: PartialSum, *, transform: Floats, bound: float) -> None: ...
    # (w psi z, scale_weight (min(|r| / scale_unit, 1) - scale_centre)), m + 1 numbers; m without a scale_weight.  At
    # most hypot(bound * max|psi|, scale_weight * max(scale_centre, 1 - scale_centre)).
    def add_scores(
        self,
        total: PartialSum,
        residuals: Residuals,
        *,
        transform: Floats,
        bound: float,
        scale_weight: float = 0.0,
        scale_unit: float = 1.0,
        scale_centre: float = 0.0,
    ) -> None: ...
    # w slope z z', m (m + 1) / 2 numbers; at most bound**2 max|slope|.
    def add_curvature(self, total: PartialSum, residuals: Residuals, *, transform: Floats, bound: float) -> None: ...
    # w**2 psi**2 z z', m (m + 1) / 2 numbers; at most bound**2 max psi**2.
    def add_score_products(
        self, total: PartialSum, residuals: Residuals, *, transform: Floats, bound: float
    ) -> None: ...
    # The indicator of the interval of `edges` in which |w psi z| lies, len(edges) + 1 numbers; at most 1.
    def add_score_sizes(
        self, total: PartialSum, residuals: Residuals, *, transform: Floats, bound: float, edges: Floats
    ) -> None: ...
    # The same of the root of |w slope z z'|.
    def add_curvature_sizes(
        self, total: PartialSum, residuals: Residuals, *, transform: Floats, bound: float, edges: Floats
    ) -> None: ...
    @property
    def n_coef(self) -> int: ...

class PersonModel:
    def __init__(
        self, *, family: str, max_rows: int, n_columns: int, slope: int, nodes: list[float], weights: list[float]
    ) -> None: ...
    def scores(
        self,
        *,
        point: Floats,
        truth: Floats,
        transform: Floats,
        features: Floats,
        responses: Floats | None,
        seeds: npt.NDArray[np.uint64],
        stream: int,
        n_draws: int,
        n_threads: int = 1,
    ) -> Floats: ...
