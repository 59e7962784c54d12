"""From the files that others publish to arrays: one module a format, nothing is unpickled."""
