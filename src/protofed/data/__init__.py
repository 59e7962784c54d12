"""Benchmarks, what they look like to a net, and how they are dealt out to clients."""
