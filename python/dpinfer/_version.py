"""The version, in the one place from which the build and the package read it."""

__version__ = "0.2.0"
