"""The same small experiments as for whole runs."""

from tests.experiment.conftest import tiny as tiny
