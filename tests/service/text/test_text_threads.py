"""Number words under load: one front end serves all threads."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from vivavoce.service.text.languages.en import NumberWords


@pytest.fixture
def eager_switching():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_threads_do_not_mix_their_numbers(eager_switching):
    words = NumberWords()
    numbers = [str(n * 7919) for n in range(1, 400)]
    alone = [words(number) for number in numbers]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(words, numbers * 4)) == alone * 4
