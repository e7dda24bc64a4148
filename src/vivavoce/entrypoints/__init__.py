"""Where scripts and manifests look for what has moved."""
