"""Your own arrays, torch datasets and Hugging Face tables as data of an experiment.

Each function writes the data to a folder, once, and returns the data section of a spec::

    data = from_arrays({"north": (x, y), "south": (x2, y2)})
    run(Experiment(data=data), "runs/first")

The folder's path, ``data.name``, means the same data on the command line and in TOML.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from protofed.data.array_checks import LabelledArrays, check_arrays
from protofed.data.array_folder import cache_arrays, store_arrays
from protofed.data.array_sources import FeatureTable, MapDataset, dataset_arrays, table_arrays
from protofed.data.folder_images import folder_label
from protofed.errors import ProtofedError
from protofed.spec.experiment_spec import ArrayData, Data

__all__ = ["from_arrays", "from_huggingface", "from_torch"]


def from_arrays(
    arrays: Mapping[str, LabelledArrays],
    test: Mapping[str, LabelledArrays] | None = None,
    classes: Sequence[str] | None = None,
    folder: str | Path | None = None,
    name: str | None = None,
    *,
    channels_first: bool = False,
    standardize: bool = True,
) -> Data | ArrayData:
    """Data from NumPy arrays or torch tensors ``(x, y)`` by domain, for ``Experiment(data=...)``.

    uint8 [N, H, W] and [N, H, W, 1 or 3] are images (with `channels_first`, [N, 1 or 3, H, W]);
    everything else is rows of floats [N, ...]. Labels are numbers or texts; `classes` names them.
    Domains without `test` are split. The data are stored in `folder`, or in the cache under `name`;
    files there that are not of these data are never changed.
    """
    bundle = check_arrays(
        arrays, test, classes, channels_first=channels_first, standardize=standardize
    )
    if folder is not None:
        if name is not None:
            raise ProtofedError(
                "name: data in a folder of yours bear its name", hint="leave out <name>"
            )
        pack = store_arrays(bundle, Path(folder))
    else:
        if name is not None and folder_label(name) != name:
            raise ProtofedError(f"name: {name!r} must consist of letters, digits and - _ .")
        pack = cache_arrays(bundle, name or "arrays")
    place = str(pack.place)
    return Data(name=place) if bundle.kind == "images" else ArrayData(name=place)


def from_torch(
    datasets: Mapping[str, MapDataset],
    test: Mapping[str, MapDataset] | None = None,
    classes: Sequence[str] | None = None,
    folder: str | Path | None = None,
    name: str | None = None,
    *,
    channels_first: bool = False,
    standardize: bool = True,
    side: int | None = None,
) -> Data | ArrayData:
    """Data from a map-style torch dataset of pairs (example, label) per domain.

    Every item is read once and stored, so give datasets without random transforms. Examples are
    tensors, arrays or PIL images of one shape; `side` resizes PIL images. The other arguments are
    those of `from_arrays`.
    """
    arrays = {domain: dataset_arrays(domain, each, side) for domain, each in datasets.items()}
    tests = {domain: dataset_arrays(domain, each, side) for domain, each in (test or {}).items()}
    return from_arrays(
        arrays,
        tests,
        classes,
        folder,
        name,
        channels_first=channels_first,
        standardize=standardize,
    )


def from_huggingface(
    table: FeatureTable | Mapping[str, FeatureTable],
    image: str = "image",
    label: str = "label",
    domain: str = "domain",
    folder: str | Path | None = None,
    name: str | None = None,
    *,
    standardize: bool = True,
    side: int | None = None,
) -> Data | ArrayData:
    """Data from a local `datasets.Dataset` or `DatasetDict` with a column that names the domain.

    The column `image` holds pictures, or lists of numbers (rows). Of a `DatasetDict`, the split
    "test" is the test part. `side` resizes pictures; all need one size otherwise. Nothing is
    downloaded.
    """
    train, test, classes = table_arrays(table, image, label, domain, side)
    return from_arrays(train, test, classes, folder, name, standardize=standardize)
