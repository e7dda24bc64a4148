import inspect
import pickle

import pytest

from vivavoce import errors


def all_errors():
    classes = [cls for _, cls in inspect.getmembers(errors, inspect.isclass)]
    return [cls for cls in classes if issubclass(cls, errors.VivavoceError)]


def test_codes_are_unique_and_documented():
    codes = [cls.code for cls in all_errors()]
    assert len(set(codes)) == len(codes)
    for cls in all_errors():
        assert cls.__name__ in errors.__doc__


def test_every_error_has_a_line_in_the_drawn_tree():
    drawn = {line.replace("│", " ").strip(" ├─└").split(" ")[0] for line in errors.__doc__.splitlines() if line}
    assert {cls.__name__ for cls in all_errors()} <= drawn


def test_the_drawn_tree_tells_the_truth():
    for line in errors.__doc__.splitlines():
        words = line.replace("│", " ").replace("├──", " ").replace("└──", " ").split()
        if len(words) >= 5 and hasattr(errors, words[0]):
            cls = getattr(errors, words[0])
            assert (cls.http_status, cls.grpc_status) == (int(words[1]), words[2])
            assert words[3:5] == ["exit", str(cls.exit_code)]


def test_exit_codes_are_those_of_the_command_line():
    assert {cls.exit_code for cls in all_errors()} == {1, 2, 130}


def test_statuses_are_errors():
    assert all(400 <= cls.http_status < 600 for cls in all_errors())


@pytest.mark.parametrize("cls", all_errors())
def test_an_error_survives_its_way_between_processes(cls):
    again = pickle.loads(pickle.dumps(cls("one line")))
    assert type(again) is cls
    assert str(again) == "one line"


def test_overloaded_says_when_to_retry_also_in_another_process():
    error = errors.Overloaded("streams: too many", retry_after_s=4.5)
    assert pickle.loads(pickle.dumps(error)).retry_after_s == 4.5
    assert str(error) == "streams: too many"
