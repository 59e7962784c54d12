"""A federation across machines, carried by Flower."""
