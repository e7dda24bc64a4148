"""Commands are tried as those of tests/cli are."""

from tests.cli.conftest import home, loads, no_loading, recording, run

__all__ = ["home", "loads", "no_loading", "recording", "run"]
