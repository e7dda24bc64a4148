"""Broken files: voices, checkpoints and configurations, given to the functions that read them."""

from __future__ import annotations

import io
import json
import random
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save

from tests.soak.mutations import altered, mutated
from vivavoce.checkpoint.settings import read_config
from vivavoce.checkpoint.spk2info import SavedPrompt, SpeakerEntry, read_spk2info, write_spk2info
from vivavoce.checkpoint.weights import fold_weight_norm, read_tensors
from vivavoce.errors import VivavoceError
from vivavoce.frontend.voices.folder_store import FolderStore
from vivavoce.frontend.voices.voice import Voice, encode_voice

MINI = Path(__file__).parents[2] / "src" / "vivavoce" / "data" / "mini"
_OPCODES = "8a04ffffff7f 4affffff7f 4b00 4dffff 52 62 94 30 7100 6800 28 74 7d 5d 504b0304 504b0102"
_CALLS = b"cposix\nsystem\n(S'touch executed'\ntR.", b"c__builtin__\nbytearray\nJ\xff\xff\xff\x7f\x85R"
PICKLES = (*map(bytes.fromhex, _OPCODES.split()), *_CALLS)
HEADERS = (
    b"F32",
    b"I64",
    b"BF16",
    b'"shape":[',
    b'"data_offsets":[0,',
    b"-1",
    b"NaN",
    b"\xff" * 8,
    b"\0" * 8,
    b"9" * 30,
)
_PIECES = b"""&a|*a|<<: *a|!ref <sample_rate>|!ref <llm>|!ref <a> * <a>|!ref 9**9**9|!ref <flow[vocab_size]>|
!new:os.system|!!python/name:os|!apply:os.system ['touch executed']|1:59:59:59|- |: |\t|[|{|]|-1|0|.nan|.inf|1e400|null|
? |!!binary |%YAML 9.9|a: &a [x, x, x]\nb: &b [*a, *a, *a]\nc: [*b, *b, *b]\n"""
YAML = (*_PIECES.split(b"|"), b"9" * 400, b"\xff", b"\n    ")


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
    header = json.dumps(
        altered(chance, json.loads(content[8:end]), ("shape", "dtype", "data_offsets", "__metadata__"))
    ).encode()
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
