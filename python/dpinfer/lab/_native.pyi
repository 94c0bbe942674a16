from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

class NetworkPasses:
    def __init__(
        self,
        *,
        features: FloatArray,
        response: FloatArray,
        n_hidden: int,
        own_sites: bool,
        clip_norm: float,
        site_weight: float,
        eta: FloatArray,
        precision: FloatArray,
        prior_precision: FloatArray,
        gamma: FloatArray,
        prior_gamma: FloatArray,
    ) -> None: ...
    def run(self, rows: npt.NDArray[np.int64], share: float, step: float) -> None: ...
    def set_prior(self, prior_precision: FloatArray) -> None: ...
    def add(self, eta: FloatArray, precision: FloatArray) -> None: ...
    def state(self) -> tuple[FloatArray, FloatArray, FloatArray]: ...

def simulate_glm(**arguments: Any) -> dict[str, Any]: ...
def simulate_conjugate(**arguments: Any) -> dict[str, Any]: ...
def tarp_counts(
    samples: FloatArray | npt.NDArray[np.float32],
    thetas: FloatArray,
    references: FloatArray,
    inverse_scales: FloatArray,
    n_threads: int,
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]: ...
def draw_moments(samples: FloatArray | npt.NDArray[np.float32], n_threads: int) -> tuple[FloatArray, FloatArray]: ...
def check_matrices(matrices: FloatArray, n_threads: int) -> tuple[bool, bool]: ...
def stationary_covariance(
    hessian: FloatArray,
    learning_rate: FloatArray,
    noise_stddev: FloatArray,
    sample_rate: float,
    form: int,
    discrete: bool,
    n_threads: int,
) -> tuple[FloatArray, npt.NDArray[np.uint8]]: ...
