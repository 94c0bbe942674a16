"""Tools for studies and tests, which must never touch data that need protection.

Examples
--------
>>> from dpinfer.testing import InsecureRNG
>>> InsecureRNG(7).secure
False
"""

from dpinfer.mechanism.noise_keys import InsecureRNG

__all__ = ["InsecureRNG"]
