"""Measures how many listeners the entry process of a server can serve, with engines that compute nothing."""
