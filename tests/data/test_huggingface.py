"""`from_huggingface`: a local table is the same data as its arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from protofed.datasets import from_arrays, from_huggingface
from protofed.errors import ProtofedError
from tests.data.tables import Arrays, images, vectors

datasets = pytest.importorskip("datasets", reason="needs the extra huggingface")


@pytest.fixture(autouse=True)
def _empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PROTOFED_CACHE", str(tmp_path / "cache"))


def hub_table(given: Arrays, as_images: bool) -> Any:
    """A local table with the columns image, label and domain."""
    rows = [(x, y, name) for name, (xs, ys) in given.items() for x, y in zip(xs, ys, strict=True)]
    table = {
        "image": [Image.fromarray(x) if as_images else x.tolist() for x, _, _ in rows],
        "label": [int(y) for _, y, _ in rows],
        "domain": [name for _, _, name in rows],
    }
    kind = datasets.Image() if as_images else datasets.List(datasets.Value("float64"))
    labels = datasets.ClassLabel(names=["high", "mid", "low"])
    columns = {"image": kind, "label": labels, "domain": datasets.Value("string")}
    return datasets.Dataset.from_dict(table, features=datasets.Features(columns))


@pytest.mark.parametrize(("given", "as_images"), [(vectors(), False), (images(), True)])
def test_a_table_is_the_same_data(given: Arrays, as_images: bool) -> None:
    named = from_arrays(given, classes=["high", "mid", "low"])
    table = hub_table(given, as_images)
    assert from_huggingface(table) == named
    split = datasets.DatasetDict(train=table, test=hub_table(given, as_images))
    assert from_huggingface(split) == from_arrays(given, given, classes=["high", "mid", "low"])


def test_faults_of_a_table_are_told() -> None:
    table = hub_table(vectors(), False)
    with pytest.raises(ProtofedError, match=r"no column 'site' \(known: image, label, domain\)"):
        from_huggingface(table, domain="site")
    with pytest.raises(ProtofedError, match="has the splits train, extra"):
        from_huggingface(datasets.DatasetDict(train=table, extra=table))
