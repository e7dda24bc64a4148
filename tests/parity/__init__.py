"""Our numbers against recorded numbers of the official code.

`python -m tests.parity FOLDER` takes any folder of goldens in this layout: manifests/NAME.json, goldens/NAME/*.json
beside *.npz, wavs/, make_checkpoint.py. It finds out what the folder holds; no name, seed or size is known here.
"""
