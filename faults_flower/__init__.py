"""Faults of a real federation on this machine: sites and servers killed, stopped and started."""
