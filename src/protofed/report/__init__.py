"""Runs as one self-contained HTML page: no network, no server, no JavaScript needed."""
