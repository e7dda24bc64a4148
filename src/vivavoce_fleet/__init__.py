"""Several engines as one: a group for the Python API, a fleet for a server, and the choice among them."""
