"""Runs as small as those of the tests of experiments."""

from tests.experiment.conftest import tiny

__all__ = ["tiny"]
