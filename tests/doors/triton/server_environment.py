"""The server's environment for tests: made once, where there is a network, and kept inside .venv."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

from vivavoce.doors.triton.installation import ServerInstallation, find_installation
from vivavoce.errors import DownloadError, MissingDependency

ENVIRONMENT_VARIABLE = "VIVAVOCE_TRITON_ENV"
"""Names another folder."""
FOLDER = Path(__file__).parents[3] / ".venv" / "triton"


@functools.cache
def server_installation() -> ServerInstallation:
    """A server that can be started; where it cannot be had, the test is skipped with the reason."""
    try:
        return find_installation(Path(os.environ.get(ENVIRONMENT_VARIABLE) or FOLDER))
    except (DownloadError, MissingDependency) as error:
        pytest.skip(str(error))
