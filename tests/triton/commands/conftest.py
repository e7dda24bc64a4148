"""The fixtures of the command line's tests."""

from tests.cli.conftest import home as home
from tests.cli.conftest import loads as loads
from tests.cli.conftest import no_loading as no_loading
from tests.cli.conftest import recording as recording
from tests.cli.conftest import run as run
