"""What the tests of voice stores stand on, for the one in a redis."""

from tests.frontend.voices.conftest import full_voice as full_voice
from tests.frontend.voices.conftest import open_place as open_place
from tests.frontend.voices.conftest import plain_voice as plain_voice
from tests.frontend.voices.conftest import redis_server as redis_server
from tests.frontend.voices.conftest import same as same
