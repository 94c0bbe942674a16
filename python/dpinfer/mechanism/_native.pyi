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
