"""Several engines as one: a group for the Python API, a fleet for a server. Also voices that servers share in Redis."""
