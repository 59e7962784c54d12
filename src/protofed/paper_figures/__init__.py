"""The papers' figures: the runs behind each, drawn anew by one command."""
