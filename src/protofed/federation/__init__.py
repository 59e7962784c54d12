"""A federation in one process: its sites, its rounds, its scores."""
