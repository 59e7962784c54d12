"""What decides a run: the experiment as plain data, and how it is read."""
