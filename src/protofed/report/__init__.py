"""Runs as one page to read, send around or watch: no network, no server, no JavaScript needed."""
