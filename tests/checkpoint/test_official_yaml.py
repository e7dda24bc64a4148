from contextlib import suppress
from pathlib import Path

import pytest

from vivavoce.checkpoint.official_yaml import read_official_yaml
from vivavoce.errors import CheckpointError


def read(tmp_path: Path, text: str):
    path = tmp_path / "cosyvoice2.yaml"
    path.write_text(text, encoding="utf-8")
    return read_official_yaml(path)


def test_tags_become_data(tmp_path):
    document = read(
        tmp_path,
        """
seed: !apply:random.seed [1986]
net: !new:some.module.Net
    size: !ref <size>
    act: !name:torch.nn.functional.relu
    inner: !new:other.Thing {a: 1}
size: 64
chunk: !ref <size> * 2 - 1
deep: !ref <net[size]>
unknown: !strange {x: 1}
parts: [!ref <size>, null]
""",
    )
    assert document["seed"] == {"!": "apply:random.seed", "args": [1986]}
    assert document["net"]["!"] == "new:some.module.Net"
    assert document["net"]["size"] == 64
    assert document["net"]["inner"] == {"!": "new:other.Thing", "a": 1}
    assert document["chunk"] == 127
    assert document["deep"] == 64
    assert document["unknown"] == {"!": "tag:strange", "x": 1}
    assert document["parts"] == [64, None]


@pytest.mark.parametrize(
    "text",
    [
        "a: !apply:os.system ['touch {path}']",
        "a: !new:subprocess.Popen {{args: [touch, '{path}']}}",
        "a: !!python/object/apply:os.system ['touch {path}']",
        "a: !ref __import__('os').system('touch {path}')",
        "a: !module:os.system",
    ],
)
def test_nothing_is_ever_called(tmp_path, text):
    witness = tmp_path / "called"
    with suppress(CheckpointError):
        read(tmp_path, text.format(path=witness))
    assert not witness.exists()


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("a: !ref <b>", "no such key"),
        ("a: !ref <b>\nb: !ref <a>", "refers to itself"),
        ("a: !ref <b> * 2\nb: text", "not arithmetic"),
        ("a: !ref <b> / 0\nb: 1", "not arithmetic"),
        ("a: [", "not valid YAML"),
        ("- 1\n- 2", "no settings"),
        ("", "no settings"),
        ("a: " + "[" * 5000, "not valid YAML"),
    ],
)
def test_what_makes_no_sense_is_one_line(tmp_path, text, word):
    with pytest.raises(CheckpointError, match=word) as error:
        read(tmp_path, text)
    assert "\n" not in str(error.value)


def test_a_huge_file_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="limit"):
        read(tmp_path, "a: " + "x" * 1_000_001)
