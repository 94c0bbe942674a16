"""Models of the user's own, from code for one record: NumPy, JAX, PyTorch, NumPyro.

**Privacy.** A model holds no records; its code gets them from the mechanism, which clips and rounds the results.
"""

from dpinfer.models.adapters.frameworks import FRAMEWORK_BLOCK
from dpinfer.models.adapters.gradients import from_gradient
from dpinfer.models.adapters.jax_models import from_jax
from dpinfer.models.adapters.numpyro_models import from_numpyro
from dpinfer.models.adapters.own_model import OwnModel
from dpinfer.models.adapters.torch_models import from_torch

__all__ = ["FRAMEWORK_BLOCK", "OwnModel", "from_gradient", "from_jax", "from_numpyro", "from_torch"]
