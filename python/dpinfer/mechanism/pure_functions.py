"""Functions of Python, NumPy and SciPy whose results follow from their arguments alone.

A user's code that calls these, and itself, can be read whole: see ``questions``.  Left out is what reads memory, files,
the environment or a generator, gives an address, or looks names up by a text.
"""

import builtins
import functools
import math
import operator
from typing import Any

import numpy as np

_BUILTINS = (
    "abs all any bool complex dict divmod enumerate filter float int isinstance issubclass iter len list map max min "
    "next object pow range reversed round slice sorted sum super tuple zip ArithmeticError AssertionError "
    "AttributeError Exception FloatingPointError IndexError KeyError LookupError NotImplemented NotImplementedError "
    "OverflowError RuntimeError StopIteration TypeError ValueError ZeroDivisionError"
)
_NUMPY = (
    "all allclose amax amin any append arange argmax argmin argpartition argsort argwhere around array array_equal "
    "array_split asarray ascontiguousarray asfortranarray astype atleast_1d atleast_2d atleast_3d average bincount "
    "bool bool_ broadcast_arrays broadcast_to clip column_stack compress concatenate convolve corrcoef correlate "
    "count_nonzero cov cross cumprod cumsum cumulative_sum delete diag diagflat diagonal diff digitize dot dsplit "
    "dstack dtype ediff1d einsum errstate expand_dims extract eye fix flatnonzero flip fliplr flipud float32 float64 "
    "full full_like gradient histogram histogram2d hsplit hstack i0 identity in1d indices inner insert int16 int32 "
    "int64 int8 interp iscomplexobj isclose isin isreal isrealobj isscalar kron lexsort linspace logspace matmul max "
    "mean median meshgrid min moveaxis nan_to_num nanargmax nanargmin nanmax nanmean nanmedian nanmin nanprod nanstd "
    "nansum nanvar ndim nonzero ones ones_like outer partition percentile poly1d polyval prod ptp quantile "
    "ravel real repeat reshape roll rollaxis rot90 round searchsorted select shape sinc size sort split squeeze stack "
    "std sum swapaxes take take_along_axis tensordot tile trace transpose trapezoid trapz tri tril triu uint16 uint32 "
    "uint64 uint8 unique unwrap vander var vdot vsplit vstack where zeros zeros_like"
)
_LINALG = (
    "cholesky cond det eig eigh eigvals eigvalsh inv lstsq matrix_power matrix_rank multi_dot norm pinv qr slogdet "
    "solve svd"
)
_OPERATOR_UNREAD = ("attrgetter", "methodcaller", "call")  # look names up by a text, or call anything
SPECIAL = ("logsumexp", "softmax", "log_softmax")


def _named(module: Any, names: str) -> dict[str, Any]:
    # Looking for a name that is not there makes old versions warn.
    return {name: vars(module)[name] for name in names.split() if name in vars(module)}


BUILTINS = _named(builtins, _BUILTINS)
# By identity: a name that somebody gives to another function does not make it one of these.
PURE = {
    id(function): function
    for function in (
        *BUILTINS.values(),
        *_named(np, _NUMPY).values(),
        *_named(np.linalg, _LINALG).values(),
        *(part for part in vars(math).values() if callable(part)),
        *(part for name, part in vars(operator).items() if callable(part) and name not in _OPERATOR_UNREAD),
        *(part for name, part in vars(np).items() if isinstance(part, np.ufunc)),
        functools.reduce,
        slice,
        type(None),
    )
}
