"""Which of a repository's files inference needs, and which names are safe to write."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from vivavoce.errors import DownloadError

# The repositories also hold archives, TensorRT and estimator exports, sample audio, and the language model's
# starting weights (CosyVoice-BlankEN/model.safetensors), every value of which llm.pt replaces.
_NEEDED = re.compile(
    r"""
      (llm|flow|hift)(\.[\w-]+)?\.(pt|safetensors)      # llm.pt, llm.rl.pt, flow.cache.pt …
    | spk2info\.pt
    | campplus\.onnx
    | speech_tokenizer_v\d+\.onnx
    | cosyvoice\d*\.yaml
    | configuration\.json
    | CosyVoice-BlankEN/(config|generation_config|vocab|tokenizer_config|tokenizer)\.json
    | CosyVoice-BlankEN/merges\.txt
    | LICENSE[\w.-]*
    | README\.md
    """,
    re.VERBOSE,
)
_CONFIGURATION = re.compile(r"cosyvoice\d*\.yaml")


def is_needed(path: str) -> bool:
    """Whether inference reads the file `path` (relative to the repository, `/` between folders)."""
    return _NEEDED.fullmatch(path) is not None


def is_configuration(path: str) -> bool:
    """Whether `path` is the yaml file that makes a folder a CosyVoice model."""
    return _CONFIGURATION.fullmatch(path) is not None


def check_path(path: str) -> None:
    """Refuse a name that would be written outside of the model folder.

    Raises:
        DownloadError: `path` is empty, absolute, climbs with `..` or holds a backslash.
    """
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\\" in path:
        raise DownloadError(f"file: the hub lists {path!r}, which is no safe file name; do not use this hub")
