import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

def trace_statistics(
    positions: FloatArray,
    gradients: FloatArray,
    noise_stddev: FloatArray,
    reference: FloatArray,
    boundaries: IntArray,
    n_threads: int,
) -> FloatArray: ...
def gram_statistics(
    positions: FloatArray, gradients: FloatArray, weights: FloatArray, n_threads: int
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]: ...
def collapsed_posteriors(
    problems: FloatArray, n_threads: int
) -> tuple[IntArray, FloatArray, npt.NDArray[np.bool_]]: ...
def threads(requested: int) -> int: ...
def log_marginal_inflation(count: float, residual: float) -> float: ...
def mixture_quantiles(
    offsets: IntArray,
    weight: FloatArray,
    mean: FloatArray,
    variance: FloatArray,
    levels: FloatArray,
    standard: FloatArray,
) -> FloatArray: ...
