"""Types of arrays, and what keeps arithmetic on them finite."""

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
TINY = 1e-300  # a normal double, with room for products: keeps divisions and logarithms finite
NEGLIGIBLE = 1e-12  # of numbers of usual size: far above their rounding, far below any printed digit
