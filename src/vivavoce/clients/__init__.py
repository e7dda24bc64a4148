"""Clients of servers, which need no model."""
