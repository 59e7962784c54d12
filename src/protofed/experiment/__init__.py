"""From a spec to a folder of scores: the federation is built, run, scored and recorded."""
