"""Broken files: voices, checkpoints and configurations, given to the functions that read them."""

from __future__ import annotations

import io
import json
import random
import shutil
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import save

from tests.soak.mutations import altered, as_json, mutated
from vivavoce.checkpoint.settings import read_config
from vivavoce.checkpoint.spk2info import SavedPrompt, SpeakerEntry, read_spk2info, write_spk2info
from vivavoce.checkpoint.weights import fold_weight_norm, read_tensors
from vivavoce.errors import VivavoceError
from vivavoce.service.voices.folder_store import FolderStore
from vivavoce.service.voices.voice import Voice, encode_voice

MINI = Path(__file__).parents[2] / "src" / "vivavoce" / "data" / "mini"
PICKLES = (
    *(
        b"cposix\nsystem\n(S'touch executed'\ntR.",
        b"cbuiltins\neval\n",
        b"c__builtin__\nbytearray\nJ\xff\xff\xff\x7f\x85R",
    ),
    *(
        b"\x8a\x04\xff\xff\xff\x7f",
        b"J\xff\xff\xff\x7f",
        b"K\x00",
        b"M\xff\xff",
        b"R",
        b"b",
        b"\x94",
        b"0",
        b"q\x00",
        b"h\x00",
    ),
    *(b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06", b"(", b"t", b"}", b"]", b"N", b"X\x05\x00\x00\x00hello"),
)
HEADERS = (
    b"F32",
    b"I64",
    b"BF16",
    b"\xff" * 8,
    b"\0" * 8,
    b'"shape":[',
    b"-1",
    b"9" * 30,
    b'"data_offsets":[0,',
    b"NaN",
)
YAML = (
    *(
        b"&a",
        b"*a",
        b"<<: *a",
        b"!ref <sample_rate>",
        b"!ref <llm>",
        b"!ref <a> * <a>",
        b"!new:os.system",
        b"!!python/name:os",
    ),
    *(
        b"!apply:os.system ['touch executed']",
        b"9" * 400,
        b"1:59:59:59",
        b"- ",
        b": ",
        b"\n",
        b"\n    ",
        b"[",
        b"{",
        b"]",
    ),
    *(
        b"a: &a [x, x, x]\nb: &b [*a, *a, *a]\nc: &c [*b, *b, *b]\n",
        b"!ref 9**9**9",
        b"!ref <flow[vocab_size]>",
        b"\t",
        b"-",
    ),
    *(
        b"-1",
        b"0",
        b".nan",
        b".inf",
        b"1e400",
        b"null",
        b"\xff",
        b"\xef\xbb\xbf",
        b"%YAML 9.9\n---\n",
        b"|\n",
        b"? ",
        b"!!binary ",
    ),
)


class Files:
    """Where broken files lie, one at a time of each kind; one that is left tells what a process died of."""

    def __init__(self, folder: Path) -> None:
        generator = torch.Generator().manual_seed(0)
        mel, tokens = torch.randn(20, 80, generator=generator), torch.arange(10, dtype=torch.int32)
        embedding = torch.randn(192, generator=generator)
        self._voice = encode_voice(Voice(embedding, "f" * 64, "one", "Hello.", (1, 2, 3), tokens, mel))
        tensors = {
            "a.weight_g": torch.ones(4, 1),
            "a.weight_v": torch.ones(4, 3),
            "b": torch.arange(6),
            "c.bias": mel[0],
        }
        self._safetensors = save(tensors)
        speakers = {
            "one": SpeakerEntry(embedding, SavedPrompt(tokens, tokens, tokens, mel)),
            "two": SpeakerEntry(embedding),
        }
        write_spk2info(folder / "spk2info.pt", speakers)
        self._pickles = {"spk2info.pt": [(folder / "spk2info.pt").read_bytes()], "llm.pt": []}
        for zipped in (True, False):
            content = io.BytesIO()
            torch.save(tensors, content, _use_new_zipfile_serialization=zipped)
            self._pickles["llm.pt"].append(content.getvalue())
        self._yaml = (MINI / "cosyvoice2.yaml").read_bytes()
        self._folder, self._model = folder, folder / "model"
        shutil.copytree(MINI, self._model, ignore=shutil.ignore_patterns("*.pt", "*.onnx", "vocab.json", "merges.txt"))
        (folder / "voices").mkdir(mode=0o700)
        self._store = FolderStore(folder / "voices")
        self._flow_keys = [*torch.load(MINI / "flow.pt", weights_only=True, mmap=True)]

    @property
    def kinds(self) -> Mapping[str, Callable[[random.Random], str]]:
        """What reads one broken file of each kind."""
        return {"voice": self.voice, "checkpoint": self.checkpoint, "yaml": self.yaml}

    @property
    def executed(self) -> bool:
        """Whether a file made a program run."""
        return Path("executed").exists()

    def voice(self, chance: random.Random) -> str:
        """A voice of the store, which is read, listed and looked for."""
        path = self._folder / "voices" / "one.safetensors"
        path.write_bytes(_tensors(chance, self._voice))
        path.chmod(0o600)
        if chance.random() < 0.2:
            self._store.version("one")
            list(self._store.summaries())
        return _outcome(lambda: self._store.load("one"))

    def checkpoint(self, chance: random.Random) -> str:
        """Weights as safetensors or pickle, or speakers."""
        kind = chance.choice(("llm.safetensors", "llm.pt", "spk2info.pt"))
        path = self._folder / kind
        if kind == "llm.safetensors":
            path.write_bytes(_tensors(chance, self._safetensors))
        else:
            path.write_bytes(_pickle(chance, chance.choice(self._pickles[kind])))
        if kind == "spk2info.pt":
            return _outcome(lambda: read_spk2info(path))
        return _outcome(lambda: fold_weight_norm(read_tensors(path)))

    def yaml(self, chance: random.Random) -> str:
        """The configuration of a model."""
        (self._model / "cosyvoice2.yaml").write_bytes(_yaml(chance, self._yaml))
        return _outcome(lambda: read_config(self._model, self._flow_keys))


def _outcome(read: Callable[[], object]) -> str:
    try:
        read()
    except VivavoceError as error:
        if len(str(error)) > 2_000 or "\n" in str(error):
            raise ValueError(f"a message of {len(str(error))} characters: {str(error)[:300]!r}") from None
        return type(error).__name__
    return "read"


def _tensors(chance: random.Random, content: bytes) -> bytes:
    """A safetensors file that is damaged anywhere, or whose header says something else."""
    if chance.random() < 0.5:
        return mutated(chance, content, HEADERS)
    end = 8 + int.from_bytes(content[:8], "little")
    header = as_json(altered(chance, json.loads(content[8:end]), ("shape", "dtype", "data_offsets", "__metadata__")))
    if chance.random() < 0.3:
        header = mutated(chance, header, HEADERS)
    return len(header).to_bytes(8, "little") + header + content[end:]


def _pickle(chance: random.Random, content: bytes) -> bytes:
    """A file of torch.save that is damaged anywhere, or whose zip is whole around a damaged part."""
    if chance.random() < 0.4 or not zipfile.is_zipfile(io.BytesIO(content)):
        return mutated(chance, content, PICKLES)
    damaged = io.BytesIO()
    compression = chance.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(damaged, "w", compression) as new:
        for name in old.namelist():
            part, is_pickle = old.read(name), name.endswith("data.pkl")
            if chance.random() < (0.8 if is_pickle else 0.1):
                part = mutated(chance, part, PICKLES if is_pickle else ())
            new.writestr(name, part)
    return damaged.getvalue()


def _yaml(chance: random.Random, content: bytes) -> bytes:
    """Lines that moved, values that changed, bytes that broke."""
    if chance.random() < 0.3:
        return mutated(chance, content, YAML)
    lines = content.splitlines()
    for _ in range(chance.choice((1, 2, 5))):
        place = chance.randrange(len(lines))
        name, colon, _ = lines[place].partition(b": ")
        lines[place] = name + colon + chance.choice(YAML) if colon and chance.random() < 0.7 else chance.choice(lines)
    return b"\n".join(lines)
