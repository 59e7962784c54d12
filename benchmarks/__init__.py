"""How fast protofed is, against a plain PyTorch loop, Flower and others: ``make bench``."""

from __future__ import annotations

import os

# Read when numpy and torch are first imported; the plain loop asks for its two threads itself.
os.environ.setdefault("OMP_NUM_THREADS", "1")
