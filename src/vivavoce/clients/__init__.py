"""Clients of speech servers; they need no model."""
