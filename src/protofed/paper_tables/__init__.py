"""The papers' tables: settings with their sources, printed numbers, ours beside them."""
