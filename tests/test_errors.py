import inspect

from vivavoce import errors


def all_errors():
    classes = [cls for _, cls in inspect.getmembers(errors, inspect.isclass)]
    return [cls for cls in classes if issubclass(cls, errors.VivavoceError)]


def test_codes_are_unique_and_documented():
    codes = [cls.code for cls in all_errors()]
    assert len(set(codes)) == len(codes)
    for cls in all_errors():
        assert cls.__name__ in errors.__doc__


def test_the_drawn_tree_tells_the_truth():
    for line in errors.__doc__.splitlines():
        words = line.replace("│", " ").replace("├──", " ").replace("└──", " ").split()
        if len(words) >= 5 and hasattr(errors, words[0]):
            cls = getattr(errors, words[0])
            assert (cls.http_status, cls.grpc_status) == (int(words[1]), words[2])
            assert words[3:5] == ["exit", str(cls.exit_code)]
