"""Checks for methods: built-in ones and yours."""

from __future__ import annotations

from protofed.testing.method_checks import BrokenMethodError, check_method, toy_sites

__all__ = ["BrokenMethodError", "check_method", "toy_sites"]
