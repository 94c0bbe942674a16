import numpy as np
import numpy.typing as npt

from dpinfer.mechanism import _native

def device_count() -> int: ...
def free_bytes() -> int: ...

class DeviceRows(_native.RegressionRows):
    """Dense rows in the memory of a GPU, with the passes of RegressionRows over all of them, and the same integers."""

    def __init__(
        self,
        *,
        features: npt.NDArray[np.float64] | npt.NDArray[np.float32],
        response: npt.NDArray[np.float64],
        intercept: bool,
    ) -> None: ...
