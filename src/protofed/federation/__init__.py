"""A federation: its sites, its rounds, its scores."""
