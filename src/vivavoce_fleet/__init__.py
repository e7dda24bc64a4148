"""Several engines as one: a group for Python, a fleet for a server; and voices that servers share in a redis."""
