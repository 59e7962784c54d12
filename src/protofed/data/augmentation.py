"""Random changes of training images that stand for another scanner, stain, camera or position."""

from __future__ import annotations

import math
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field, Strict
from pydantic.dataclasses import dataclass
from torch import Tensor

from protofed.core.training import STRICT

LUMA = (0.299, 0.587, 0.114)  # ITU-R 601: perceived brightness of red, green and blue
LOG_ASPECT = (math.log(3 / 4), math.log(4 / 3))  # of the window of a random resized crop
SIGMA = (0.1, 2.0)  # pixels, of a blur
ERASED = (0.02, 0.2)  # share of the area that an erased rectangle has
ERASED_LOG_ASPECT = (math.log(0.3), math.log(3.3))
WHITE = 256.0  # one more than the brightest value, so that black has an optical density

Share = Annotated[float, Strict(), Field(ge=0, le=1)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Augmentation:
    """Which random changes a client makes to its training images, beside the crop and the mirror.

    All are off by default. Each image draws its own, in the order of the fields: position first,
    then colour, then sharpness, then what is hidden. Test images are never changed.

    Fields:
        rotate: degrees to either side; 180 for images that have no up, such as cells
        zoom: smallest share of the area that a random window keeps; 1 for the whole image
        stain: how far colours mix in optical density, as stains of other laboratories do
        jitter: brightness, contrast and saturation, each times 1 - jitter to 1 + jitter
        grey: share of the images that lose their colours
        blur: share of the images that are blurred, by up to two pixels
        erase: share of the images of which a rectangle gets their mean colour
    """

    rotate: Annotated[float, Strict(), Field(ge=0, le=180)] = 0.0
    zoom: Annotated[float, Strict(), Field(gt=0, le=1)] = 1.0
    stain: Share = 0.0
    jitter: Share = 0.0
    grey: Share = 0.0
    blur: Share = 0.0
    erase: Share = 0.0

    @property
    def active(self) -> bool:
        """Whether it changes anything."""
        return self != Augmentation()

    def apply(self, images: Tensor, draw: torch.Generator) -> Tensor:
        """Images [B, H, W, 1 or 3] with values 0 to 255, changed at random; all draws from `draw`.

        Only what is on draws numbers.
        """
        if self.rotate or self.zoom < 1:
            images = warp_images(images, self._positions(len(images), draw).to(images.device))
        if self.stain and images.shape[-1] == 3:
            mix = torch.eye(3) + self.stain * _between(-1, 1, (len(images), 3, 3), draw)
            images = mix_stains(images, mix.to(images.device))
        if self.jitter:
            factors = _between(1 - self.jitter, 1 + self.jitter, (3, len(images)), draw)
            images = jitter_colours(images, *factors.to(images.device))
        if self.grey and images.shape[-1] == 3:
            chosen = _chosen(self.grey, len(images), draw).to(images.device)
            images = torch.where(chosen[:, None, None, None], luminance(images), images)
        if self.blur:
            sigmas = _between(*SIGMA, (len(images),), draw)
            sigmas = torch.where(_chosen(self.blur, len(images), draw), sigmas, 0.0)
            images = blur_images(images, sigmas.to(images.device))
        if self.erase:
            chosen = _chosen(self.erase, len(images), draw)
            hidden = random_rectangles(len(images), images.shape[1:3], draw)
            hidden = (hidden & chosen[:, None, None])[..., None].to(images.device)
            images = torch.where(hidden, images.mean((1, 2), keepdim=True), images)
        return images

    def _positions(self, count: int, draw: torch.Generator) -> Tensor:
        """Random affine maps [B, 2, 3] from places in the result to places in the image.

        Places lie between -1 and 1, as in `torch.nn.functional.affine_grid`.
        """
        area = _between(self.zoom, 1, (count,), draw)
        aspect = _between(*LOG_ASPECT, (count,), draw).exp()
        aspect = torch.where(area < 1, aspect, 1.0)
        wide, high = (area * aspect).sqrt().clamp(max=1), (area / aspect).sqrt().clamp(max=1)
        shift = _between(-1, 1, (2, count), draw) * (1 - torch.stack([wide, high]))
        turn = torch.deg2rad(_between(-self.rotate, self.rotate, (count,), draw))
        zeros = torch.zeros(count)
        window = torch.stack([wide, zeros, shift[0], zeros, high, shift[1]], 1).view(count, 2, 3)
        sine, cosine = turn.sin(), turn.cos()
        rotation = torch.stack([cosine, -sine, sine, cosine], 1).view(count, 2, 2)
        return rotation @ window


def warp_images(images: Tensor, positions: Tensor) -> Tensor:
    """Images [B, H, W, C] looked up at the places that affine maps [B, 2, 3] give, bilinear.

    What lies outside is the mirror image of what lies inside: a black corner would be a feature.
    """
    planes = images.permute(0, 3, 1, 2)
    grid = F.affine_grid(positions, list(planes.shape), align_corners=False)
    warped = F.grid_sample(planes, grid, padding_mode="reflection", align_corners=False)
    return warped.permute(0, 2, 3, 1).contiguous()


def mix_stains(images: Tensor, mix: Tensor) -> Tensor:
    """Images [B, H, W, 3] whose optical densities are mixed by matrices [B, 3, 3].

    A stain absorbs light, so what it adds is a sum in optical density, which is the negative
    logarithm of the share of light that comes through.
    """
    density = ((images + 1) / WHITE).log_()
    mixed = density.flatten(1, 2) @ mix.transpose(1, 2)
    return (mixed.exp_() * WHITE - 1).clamp_(0, 255).view(images.shape)


def jitter_colours(
    images: Tensor, brightness: Tensor, contrast: Tensor, saturation: Tensor
) -> Tensor:
    """Images [B, H, W, C] with three factors [B] for brightness, contrast and saturation.

    Contrast spreads values around the image's mean, saturation around the luminance of each pixel;
    grey images have none.
    """
    brightness, contrast, saturation = (
        factor[:, None, None, None] for factor in (brightness, contrast, saturation)
    )
    images = (images * brightness).clamp_(0, 255)
    mean = luminance(images).mean((1, 2, 3), keepdim=True)
    images = (mean + (images - mean) * contrast).clamp_(0, 255)
    if images.shape[-1] == 1:
        return images
    grey = luminance(images)
    return (grey + (images - grey) * saturation).clamp_(0, 255)


def luminance(images: Tensor) -> Tensor:
    """The brightness of each pixel of images [B, H, W, C], as [B, H, W, 1]."""
    if images.shape[-1] == 1:
        return images
    return (images @ torch.tensor(LUMA, device=images.device))[..., None]


def blur_images(images: Tensor, sigmas: Tensor) -> Tensor:
    """Images [B, H, W, C] blurred by Gaussians with these standard deviations [B] in pixels.

    Edges are mirrored; a standard deviation of 0 leaves an image as it is. The Gaussian is cut at
    three times the largest one that `Augmentation` draws.
    """
    sizes = images.shape[1:3]
    reach = min(math.ceil(3 * SIGMA[1]), *(size - 1 for size in sizes))
    offsets = torch.arange(-reach, reach + 1, device=images.device)
    weights = torch.exp(-(offsets**2) / (2 * sigmas.clamp(min=1e-3)[:, None] ** 2))
    weights = weights / weights.sum(1, keepdim=True)
    for axis, size in zip((1, 2), sizes, strict=True):
        places = torch.arange(size, device=images.device)[:, None] + offsets
        places = _mirrored(places, size)  # [size, 2 reach + 1]
        matrix = torch.zeros(len(images), size, size, device=images.device)
        matrix.scatter_add_(
            2, places.expand(len(images), -1, -1), weights[:, None].expand(-1, size, -1)
        )
        rows = images.movedim(axis, 1).flatten(2)
        shape = images.movedim(axis, 1).shape
        images = (matrix @ rows).view(shape).movedim(1, axis)
    return images.contiguous()


def _mirrored(places: Tensor, size: int) -> Tensor:
    """Places beyond an edge, mirrored at it without repeating the pixel on the edge."""
    places = places.abs()
    return torch.where(places >= size, 2 * (size - 1) - places, places)


def random_rectangles(count: int, sizes: torch.Size, draw: torch.Generator) -> Tensor:
    """Masks [B, H, W] that are true in one random rectangle each, which lies inside."""
    height, width = sizes
    area = _between(*ERASED, (count,), draw) * height * width
    aspect = _between(*ERASED_LOG_ASPECT, (count,), draw).exp()
    high = (area * aspect).sqrt().round().clamp(1, height)
    wide = (area / aspect).sqrt().round().clamp(1, width)
    start = torch.rand(2, count, generator=draw)
    top = (start[0] * (height - high + 1)).floor()[:, None]
    left = (start[1] * (width - wide + 1)).floor()[:, None]
    rows, columns = torch.arange(height), torch.arange(width)
    inside_rows = (rows >= top) & (rows < top + high[:, None])
    inside_columns = (columns >= left) & (columns < left + wide[:, None])
    return inside_rows[:, :, None] & inside_columns[:, None, :]


def _between(low: float, high: float, shape: tuple[int, ...], draw: torch.Generator) -> Tensor:
    return low + (high - low) * torch.rand(shape, generator=draw)


def _chosen(share: float, count: int, draw: torch.Generator) -> Tensor:
    return torch.rand(count, generator=draw) < share
