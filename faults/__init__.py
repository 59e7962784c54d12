"""Faults on purpose: what a run survives, tried on real processes and put into figures."""
