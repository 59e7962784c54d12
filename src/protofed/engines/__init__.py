"""Engines move messages and keep client states; they know a method only as a contract."""
