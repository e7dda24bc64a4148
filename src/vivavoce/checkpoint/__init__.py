"""Official model folders: finding, downloading, reading and writing them; no model code."""
