from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

from protofed.core.site import ArrayDataset
from protofed.data import digits_mini
from protofed.data.digits_mini import DOMAINS, digits_mini_domain, synthetic_digits
from protofed.errors import ProtofedError

CHANNELS = {"optical": 1, "print": 1, "syn": 3, "street": 3}


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of these tests' own, so that no file kept by an older renderer is tested."""
    path = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROTOFED_CACHE", str(path))
        for name in DOMAINS:
            digits_mini_domain(name)
    return path


@pytest.fixture(autouse=True)
def use_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROTOFED_CACHE", str(folder))


def hashes(data: ArrayDataset) -> set[bytes]:
    return {image.numpy().tobytes() for image in data.images}


@pytest.mark.parametrize("name", DOMAINS)
def test_sizes_types_and_balance(name: str) -> None:
    made = digits_mini_domain(name)
    assert made.name == name
    for part, each in ((made.train, 120), (made.test, 30)):
        assert part.images.shape == (10 * each, 32, 32, CHANNELS[name])
        assert part.images.dtype == torch.uint8
        assert part.labels.dtype == torch.int64
        assert torch.bincount(part.labels, minlength=10).tolist() == [each] * 10
        assert len(part.labels[:20].unique()) > 4  # in random order, not class by class


@pytest.mark.parametrize("name", DOMAINS)
def test_no_image_is_in_both_parts_or_twice_in_one(name: str) -> None:
    made = digits_mini_domain(name)
    train, test = hashes(made.train), hashes(made.test)
    assert len(train) == 1200
    assert len(test) == 300
    assert not train & test


@pytest.mark.parametrize("name", DOMAINS)
def test_made_again_without_a_cache_it_is_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = digits_mini_domain(name)
    monkeypatch.setenv("PROTOFED_CACHE", str(tmp_path))
    made = digits_mini_domain(name)
    for one, other in ((kept.train, made.train), (kept.test, made.test)):
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.labels, other.labels)


def test_kept_files_carry_the_version(folder: Path) -> None:
    kept = [path.name for path in folder.iterdir()]
    for name in DOMAINS:
        begin = f"digits-mini-v{digits_mini.VERSION}-{name}-pillow{version('pillow')}-"
        assert [file for file in kept if file.startswith(begin)]


def test_optical_images_are_real_digits_with_their_own_labels() -> None:
    rows, labels = load_digits(return_X_y=True)
    small = torch.from_numpy(rows).reshape(-1, 1, 8, 8) * 255 / 16
    # Torch's bicubic curve is not quite Pillow's, so the source of an image is only the nearest.
    large = F.interpolate(small, size=(32, 32), mode="bicubic").clamp(0, 255).flatten(1)
    made = digits_mini_domain("optical")
    for part in (made.train, made.test):
        distance, nearest = torch.cdist(part.images.double().flatten(1), large).min(dim=1)
        assert distance.max() / 32 < 10  # root mean square, in grey levels
        assert len(nearest.unique()) == len(part)
        np.testing.assert_array_equal(labels[nearest.numpy()], part.labels.numpy())


def test_optical_is_light_on_dark() -> None:
    images = digits_mini_domain("optical").train.images
    assert images.max() == 255
    assert images.flatten(1).median(dim=1).values.double().mean() < 100
    assert images[:, :, 0].double().mean() < images[:, :, 16].double().mean() / 3


def test_domains_differ_in_look() -> None:
    brightness = {
        name: digits_mini_domain(name).train.images.double().mean().item() for name in DOMAINS
    }
    assert brightness["optical"] < 100 < 200 < brightness["print"]


def test_synthetic_digits_at_full_size(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (digits_mini.SYN_TRAIN, digits_mini.SYN_TEST) == (10_000, 2_000)
    monkeypatch.setattr(digits_mini, "SYN_TRAIN", 1500)  # the full size takes many seconds
    monkeypatch.setattr(digits_mini, "SYN_TEST", 100)
    made = synthetic_digits()
    assert made.name == "syn"
    assert made.train.images.shape == (1500, 32, 32, 3)
    assert torch.bincount(made.test.labels).tolist() == [10] * 10
    train, test = hashes(made.train), hashes(made.test)
    mini = digits_mini_domain("syn")
    assert len(train | test | hashes(mini.train) | hashes(mini.test)) == 1500 + 100 + 1500


def test_unknown_domain_is_told() -> None:
    with pytest.raises(ProtofedError, match="did you mean 'optical'"):
        digits_mini_domain("optcal")
