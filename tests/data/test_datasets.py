"""`protofed.datasets`: the same data by every door, and in every way of naming them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

from protofed.datasets import from_arrays, from_torch
from protofed.errors import ProtofedError
from protofed.spec.experiment_spec import ArrayData, Data, Experiment
from protofed.spec.spec_parser import parse_experiment, read_spec
from tests.data.tables import Arrays, images, vectors

KINDS = [vectors(), images()]


@pytest.fixture(autouse=True)
def _empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PROTOFED_CACHE", str(tmp_path / "cache"))


class Pairs(Dataset[Any]):
    """Pairs as a careless user makes them: lists of anything."""

    def __init__(self, examples: list[Any], labels: list[Any]):
        self.examples, self.labels = examples, labels

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.examples[index], self.labels[index]


@pytest.mark.parametrize("given", KINDS, ids=["vectors", "images"])
def test_arrays_tensors_and_datasets_are_the_same_data(given: Arrays) -> None:
    tensors = {name: (torch.tensor(x), torch.tensor(y)) for name, (x, y) in given.items()}
    doors = [
        from_arrays(given),
        from_arrays(dict(reversed(given.items()))),
        from_arrays(tensors),
        from_torch({name: TensorDataset(*pair) for name, pair in tensors.items()}),
        from_torch({name: Pairs(list(x), y.tolist()) for name, (x, y) in given.items()}),
    ]
    assert len({Experiment(data=door).digest for door in doors}) == 1


@pytest.mark.parametrize("given", KINDS, ids=["vectors", "images"])
def test_the_path_means_the_same_in_python_toml_and_flags(given: Arrays, tmp_path: Path) -> None:
    data = from_arrays(given, folder=tmp_path / "mine")
    made = Experiment(data=data, rounds=3)
    (tmp_path / "spec.toml").write_text(f'data = "{tmp_path}/mine"\nrounds = 3\n')
    assert parse_experiment(read_spec(tmp_path / "spec.toml")) == made
    assert parse_experiment({"data": {"name": str(tmp_path / "mine")}, "rounds": 3}) == made
    assert parse_experiment(made.to_dict()) == made
    assert made.to_dict()["data"]["name"] == str(tmp_path / "mine")


def test_a_spec_on_record_stands_when_the_arrays_are_gone(tmp_path: Path) -> None:
    made = Experiment(data=from_arrays(vectors(), folder=tmp_path / "mine"))
    plain, digest = made.to_dict(), made.digest
    (tmp_path / "mine").rename(tmp_path / "away")
    again = parse_experiment(plain)
    assert isinstance(again.data, ArrayData)
    assert again.digest == digest


def test_vectors_and_images_take_their_own_sections() -> None:
    rows, pictures = from_arrays(vectors()), from_arrays(images(), name="bands")
    assert isinstance(rows, ArrayData)
    assert (rows.shape, rows.label, Experiment(data=rows).net) == ((6,), "arrays", "mlp")
    assert isinstance(pictures, Data)
    assert (pictures.side, pictures.channels, pictures.pad) == (16, 1, 2)
    assert (pictures.label, Experiment(data=pictures).net) == ("bands", "lsa-cnn")


def test_faults_of_the_section_are_told(tmp_path: Path) -> None:
    data = from_arrays(vectors(), folder=tmp_path / "mine")
    with pytest.raises(ProtofedError, match=r"data.side: is for images, and these data are rows"):
        parse_experiment({"data": {"name": data.name, "side": 32}})
    with pytest.raises(ProtofedError, match=r"^data.shap: no such field \(known: name, domains"):
        parse_experiment({"data": {"name": data.name, "shap": 32}})
    with pytest.raises(ProtofedError, match="unknown name 'east'"):
        parse_experiment({"data": {"name": data.name, "domains": ["east"]}})
    with pytest.raises(ProtofedError, match="rows there have shape"):
        parse_experiment({"data": {"name": data.name, "shape": [5]}})
    with pytest.raises(ValueError, match="ArrayData describes them"):
        Data(name=data.name)
    with pytest.raises(ProtofedError, match="data in a folder of yours bear its name"):
        from_arrays(vectors(), folder=tmp_path / "b", name="b")
    with pytest.raises(ProtofedError, match="name: 'a/b' must consist of"):
        from_arrays(vectors(), name="a/b")


def test_pil_images_of_a_dataset(tmp_path: Path) -> None:
    x, y = images()["day"]
    pictures = [Image.fromarray(image) for image in x]
    data = from_torch({"day": Pairs(pictures, y.tolist())})
    assert data == from_arrays({"day": (x, y)})
    mixed = [picture.convert("RGB") if n % 2 else picture for n, picture in enumerate(pictures)]
    colour = from_torch({"day": Pairs(mixed, y.tolist())})
    assert colour == from_arrays({"day": (np.stack([x] * 3, -1), y)})
    pictures[3] = pictures[3].resize((20, 30))
    with pytest.raises(ProtofedError, match=r"example 3 is uint8 \[30, 20\], the first is uint8"):
        from_torch({"day": Pairs(pictures, y.tolist())})
    small = from_torch({"day": Pairs(pictures, y.tolist())}, side=12)
    assert isinstance(small, Data)
    assert small.side == 12


def test_items_that_are_no_pairs_are_told() -> None:
    with pytest.raises(ProtofedError, match="a: item 0 is no pair"):
        from_torch({"a": TensorDataset(torch.zeros(4, 2))})
    with pytest.raises(ProtofedError, match="a: holds no example"):
        from_torch({"a": Pairs([], [])})
