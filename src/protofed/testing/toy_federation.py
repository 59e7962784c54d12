"""A federation small enough to run in milliseconds, and irregular enough to expose faults.

Four domains, five classes of which each client lacks one, client sizes that leave a last batch
of one, and a net with batch normalisation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from protofed.core.method import AnyMethod
from protofed.core.model import ImageShape, Net
from protofed.core.rng import rng, stream_seed
from protofed.core.site import SERVER, ArrayDataset, ClientId, Site
from protofed.core.training import Training

CLASSES, SIDE, CHANNELS = 5, 8, 3
SIZES = {0: 17, 1: 24, 2: 33, 3: 40}
IMAGE = ImageShape(CHANNELS, SIDE)


@dataclass(frozen=True)
class NoisyPixels:
    """Images as floats around 0, with noise in training, so that a wrong random stream shows."""

    def augment(self, images: Tensor, draw: torch.Generator) -> Tensor:
        x = self.normalize(images)
        return x + 0.1 * torch.randn(x.shape, generator=draw).to(x.device)

    def normalize(self, images: Tensor) -> Tensor:
        return images.permute(0, 3, 1, 2).float() / 127.5 - 1


def toy_net(seed: int = 0) -> Net:
    """A small net with batch normalisation: 3 x 8 x 8 -> 12 -> 8 features -> 5 classes.

    Its initial weights depend on `seed` alone; torch's global generator is left as it was.
    """
    with torch.random.fork_rng():
        torch.manual_seed(stream_seed(seed, "toy net"))
        encoder = nn.Sequential(
            nn.Conv2d(CHANNELS, 6, 3, stride=2),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(54, 12),
            nn.BatchNorm1d(12),
            nn.ReLU(),
        )
        return Net(encoder, nn.Linear(12, 8), nn.Linear(8, CLASSES), width=12)


def toy_data(client: ClientId, size: int) -> ArrayDataset:
    """Noisy class patterns with a colour cast per client; class number `client` is absent.

    Images [size, 8, 8, 3] uint8 with labels [size], the same at every call.
    """
    draw = rng("toy data", client)
    patterns = torch.randn(CLASSES, SIDE, SIDE, CHANNELS, generator=rng("toy patterns"))
    cast = torch.randn(CHANNELS, generator=draw)
    held = torch.tensor([label for label in range(CLASSES) if label != client])
    labels = held[torch.randint(len(held), (size,), generator=draw)]
    noise = torch.randn(size, SIDE, SIDE, CHANNELS, generator=draw)
    images = 128 + 40 * (patterns[labels] + cast + 0.7 * noise)
    return ArrayDataset(images.clamp(0, 255).to(torch.uint8), labels)


def toy_sites(method: AnyMethod, seed: int = 0) -> tuple[Site, dict[ClientId, Site]]:
    """The server's site and the clients' sites of the toy federation, net adapted to `method`.

    For tests of a hook alone::

        server, sites = toy_sites(MyMethod())
        batch = next(sites[0].batches(RoundContext(0, 1)))
    """
    with torch.random.fork_rng():
        torch.manual_seed(stream_seed(seed, "adapt"))
        net = method.adapt(toy_net(seed), IMAGE)
    server = Site(
        id=SERVER,
        domain="",
        classes=CLASSES,
        net=net,
        pixels=NoisyPixels(),
        train=toy_data(SERVER, 0),
        training=Training(epochs=2, batch=8, lr=0.003),
        seed=seed,
        sizes=SIZES,
        public=toy_data(SERVER, 20).images,
    )
    sites = {
        client: replace(server, id=client, domain=f"domain {client}", train=toy_data(client, size))
        for client, size in SIZES.items()
    }
    return server, sites
