from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

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
