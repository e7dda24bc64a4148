"""The app of `serve run vivavoce.entrypoints.ray:app`."""

from vivavoce_ray import app as app
