"""A real federation: a coordinator that serves and submits, sites that join, Flower in between."""
