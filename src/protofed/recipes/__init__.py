"""Recipes: the papers' tables, each with its settings, their sources and its printed numbers."""
