"""The ways in: each translates its own protocol to the service's values, and nothing more."""
