"""What tests of a federation share: three sites' images."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import _plain_surroundings as _plain_surroundings
from tests.cli.conftest import cli as cli
from tests.data.pictures import make
from tests.fleet.desks import SITES


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one folder of images for each site."""
    return make(tmp_path_factory.mktemp("sites"), SITES, each=9)
