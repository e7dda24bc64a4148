"""Modules at their former places, for scripts and manifests that still import them there."""
