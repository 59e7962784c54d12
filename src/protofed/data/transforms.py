"""From stored images to the input of a net: resize once when loading, augment every batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.data.augmentation import Augmentation, luminance
from protofed.errors import ProtofedError

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CIFAR_MEAN = (125.3 / 255, 123.0 / 255, 113.9 / 255)
CIFAR_STD = (63.0 / 255, 62.1 / 255, 66.7 / 255)
RESIZE_VALUES = 2**22  # floats held at a time while resizing, 16 MB


def resize_images(images: Tensor, side: int) -> Tensor:
    """Resize images [N, H, W, C] uint8 to [N, side, side, C] uint8.

    Images of the right size are returned as they are. Bilinear with antialiasing; works in chunks
    to limit memory.
    """
    count, height, width, channels = images.shape
    if (height, width) == (side, side):
        return images
    resized = torch.empty(count, side, side, channels, dtype=torch.uint8)
    chunk = max(1, RESIZE_VALUES // (max(height, side) * max(width, side) * channels))
    for source, target in zip(images.split(chunk), resized.split(chunk), strict=True):
        if len(source):
            target.copy_(_interpolate(source, side))
    return resized


def _interpolate(images: Tensor, side: int) -> Tensor:
    """Bilinear with antialiasing, [B, H, W, C] to [B, side, side, C] whole numbers as floats."""
    planes = images.permute(0, 3, 1, 2).float()
    scaled = F.interpolate(planes, (side, side), mode="bilinear", antialias=True)
    return scaled.round_().clamp_(0, 255).permute(0, 2, 3, 1)


def pixel_statistics(device: torch.device, numbers: tuple[float, ...]) -> Tensor:
    """Some numbers as a float tensor on a device."""
    return torch.tensor(numbers, device=device)


@dataclass(frozen=True)
class ImageTransform:
    """How stored images become the input of a net: random crop and flip, then normalisation.

    Between the two stand the random changes of an `Augmentation`, if any. `augment` is for
    training, `normalize` for evaluation. Grey images are repeated for nets with three channels, and
    colour images become grey for nets with one.
    """

    mean: tuple[float, ...]  # of red, green and blue, on a scale from 0 to 1
    std: tuple[float, ...]
    channels: int = 3  # that the net takes: 1 or 3
    pad: int = 4  # black pixels on each side before the crop; 0 for no crop
    flip: bool = True  # left to right, half of the images on average
    changes: Augmentation = Augmentation()

    def __post_init__(self) -> None:
        if self.channels not in (1, 3):
            raise ProtofedError(f"images have 1 or 3 channels, got channels = {self.channels}")
        if len(self.mean) != 3 or len(self.std) != 3 or min(self.std) <= 0:
            raise ProtofedError(
                "normalisation takes a mean and a positive std for red, green and blue,"
                f" got mean = {self.mean}, std = {self.std}"
            )
        if self.pad < 0:
            raise ProtofedError(f"pad counts black pixels, 0 or more, got pad = {self.pad}")

    def augment(self, images: Tensor, draw: torch.Generator) -> Tensor:
        """Stored images [B, H, W, 1 or 3] uint8 as augmented input [B, channels, H, W].

        All random choices come from `draw`.
        """
        cropped = self._crop(images, draw)
        if self.changes.active:
            return self._normalise(self.changes.apply(cropped.float(), draw))
        return self._normalise(cropped)

    def normalize(self, images: Tensor) -> Tensor:
        """Stored images [B, H, W, 1 or 3] uint8 as input [B, channels, H, W], not augmented."""
        return self._normalise(images)

    def _crop(self, images: Tensor, draw: torch.Generator) -> Tensor:
        """A window of each padded image, some of them mirrored, [B, H, W, C] uint8."""
        if not (self.pad or self.flip):
            return images
        count, height, width, channels = images.shape
        rows = torch.arange(height).expand(count, height)
        columns = torch.arange(width).expand(count, width)
        if self.flip:
            mirrored = torch.randint(0, 2, (count, 1), generator=draw) == 1
            columns = torch.where(mirrored, columns.flip(1), columns)
        if self.pad:
            top, left = torch.randint(0, 2 * self.pad + 1, (2, count, 1), generator=draw)
            rows, columns = rows + top, columns + left
        padded = F.pad(images, (0, 0, *[self.pad] * 4))
        # one flat index of whole pixels: more than twice as fast as indexing three axes
        lines = torch.arange(count)[:, None] * padded.shape[1] + rows
        pixels = lines[:, :, None] * padded.shape[2] + columns[:, None, :]
        chosen = padded.reshape(-1, channels).index_select(0, pixels.flatten().to(images.device))
        return chosen.view(images.shape)

    def _normalise(self, images: Tensor) -> Tensor:
        """Floats [B, channels, H, W] that lie in memory as the images do, channels last.

        Images that are floats already are used up.
        """
        count, height, width, stored = images.shape
        mean, std = (
            pixel_statistics(images.device, self.mean),
            pixel_statistics(images.device, self.std),
        )
        values = images.float()
        if self.channels == 1:
            mean, std = mean.mean(0, keepdim=True), std.mean(0, keepdim=True)
            values = luminance(values)
        elif stored == 1:
            values = values.repeat(1, 1, 1, 3)
        # whole lines of pixels at a time: an innermost axis of three colours is slow
        lines = values.reshape(count, height, width * self.channels)
        lines.div_(255).sub_(mean.repeat(width)).div_(std.repeat(width))
        return lines.view(count, height, width, self.channels).permute(0, 3, 1, 2)


@dataclass(frozen=True, eq=False)
class RowTransform:
    """How rows that are no images become the input of a net: standardised, never augmented.

    `mean` and `std` are [D] for vectors, [1] for other shapes: 0 and 1 leave the rows as they are.
    """

    mean: Tensor
    std: Tensor

    def augment(self, images: Tensor, draw: torch.Generator) -> Tensor:
        """Rows [B, *shape] as input; nothing is drawn."""
        return self.normalize(images)

    def normalize(self, images: Tensor) -> Tensor:
        """Rows [B, *shape] less the mean, divided by the standard deviation."""
        return (images - self.mean.to(images.device)) / self.std.to(images.device)
