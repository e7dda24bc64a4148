"""Conversions: whole or not at all, the same bytes whoever works, within a bound of memory."""

from __future__ import annotations

import json
import shutil
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from trtllm_goldens import DATA

from vivavoce.checkpoint.folder import BACKBONE
from vivavoce.errors import CheckpointError, InvalidRequest
from vivavoce.export import merged_lm
from vivavoce.export.merged_lm import EMBEDDING, HEAD, MappedWeights
from vivavoce.export.trtllm import backbone
from vivavoce.export.trtllm.calibration import Calibration, measure, read_calibration
from vivavoce.export.trtllm.convert import RECORD, Progress, convert
from vivavoce.export.trtllm.options import ConvertOptions
from vivavoce.export.trtllm.prompts import Prompt, random_prompts
from vivavoce.export.trtllm.sizes import QwenSizes
from vivavoce.export.trtllm.source import FINAL_NORM, Source, layer_shapes, open_hugging_face, open_official
from vivavoce.export.trtllm.workshop import workshop_for
from vivavoce.service.text.tokenizer import TextTokenizer

SIZES = QwenSizes(64, 128, 8, 4, 2, 200, 1e-6, 1e4, 512, tied=False)
LAYER_BYTES = 4 * sum(int(np.prod(shape)) for shape in layer_shapes(SIZES).values())


class CountingReader:
    """Random tensors that know how many of their bytes are alive; breaks off after `reads`."""

    def __init__(self, reads: int | None = None) -> None:
        table = (SIZES.vocab_size, SIZES.hidden_size)
        self.shapes = {EMBEDDING: table, FINAL_NORM: table[1:], HEAD: table} | {
            f"model.layers.{index}.{name}": shape
            for index in range(SIZES.num_layers)
            for name, shape in layer_shapes(SIZES).items()
        }
        self.alive, self.peak, self.layers_read = 0, 0, set[str]()
        self._left, self._lock = reads, threading.Lock()

    def read(self, name: str, rows: slice = slice(None)) -> Tensor:
        generator = torch.Generator().manual_seed(sum(name.encode()))
        tensor = torch.randn(self.shapes[name], generator=generator)[rows].clone()
        with self._lock:
            if self._left is not None:
                self._left -= 1
                if self._left < 0:
                    raise RuntimeError("the disk is gone")
            self.alive += tensor.nbytes
            self.peak = max(self.peak, self.alive)
            if name.startswith("model.layers"):
                self.layers_read.add(name.split(".")[2])
        weakref.finalize(tensor, self._forget, tensor.nbytes)
        return tensor

    def _forget(self, num_bytes: int) -> None:
        with self._lock:
            self.alive -= num_bytes


def source_of(reader: CountingReader, folder: Path) -> Source:
    weights = folder / "model" / "weights"
    if not weights.exists():  # its time is part of what tells one source from another
        weights.parent.mkdir()
        weights.touch()
    return Source(SIZES, reader, torch.float32, (weights,))


def ranks(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("rank*"))}


@pytest.mark.parametrize("workers", [1, 2])
def test_each_worker_holds_one_layer(workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backbone, "TABLE_BLOCK", 16 * SIZES.hidden_size)
    reader = CountingReader()
    calibration = Calibration((Prompt((3, 5, 7, 199)),))
    wishes = ConvertOptions(smoothquant=0.5, per_token=True, per_channel=True)
    convert(source_of(reader, tmp_path), tmp_path / "out", wishes, calibration=calibration, workers=workers)
    assert len(reader.layers_read) == SIZES.num_layers
    assert LAYER_BYTES <= reader.peak <= workers * LAYER_BYTES
    assert reader.alive == 0


def test_many_workers_write_the_same_bytes(tmp_path: Path) -> None:
    source, options = source_of(CountingReader(), tmp_path), ConvertOptions(tp=2, pp=2, parallel_embedding=True)
    for workers in (1, 5):
        convert(source, tmp_path / f"out{workers}", options, workers=workers)
    assert ranks(tmp_path / "out1") == ranks(tmp_path / "out5")
    assert len(ranks(tmp_path / "out1")) == 4
    with pytest.raises(InvalidRequest, match="workers: 0 is below 1"):
        convert(source, tmp_path / "out", options, workers=0)


def test_a_broken_conversion_goes_on_where_it_stopped(tmp_path: Path) -> None:
    options, reads_per_layer = ConvertOptions(pp=2), len(layer_shapes(SIZES))
    convert(source_of(CountingReader(), tmp_path), tmp_path / "whole", options)
    broken = source_of(CountingReader(reads=3 * reads_per_layer + 1), tmp_path)
    with pytest.raises(RuntimeError, match="the disk is gone"):
        convert(broken, tmp_path / "out", options)
    assert not (tmp_path / "out").exists()

    steps: list[Progress] = []
    reader = CountingReader()
    made = convert(source_of(reader, tmp_path), tmp_path / "out", options, progress=steps.append)
    assert reader.layers_read == {"3", "4", "5", "6", "7"}
    assert steps[0].done == 4
    assert [step.done for step in steps] == list(range(4, steps[-1].total + 1))
    assert ranks(tmp_path / "out") == ranks(tmp_path / "whole")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "config.json",
        "conversion.json",
        "rank0.safetensors",
        "rank1.safetensors",
    }
    assert made.num_bytes == sum(map(len, ranks(tmp_path / "out").values()))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out", "whole"]


def test_another_plan_starts_anew(tmp_path: Path) -> None:
    broken = source_of(CountingReader(reads=40), tmp_path)
    with pytest.raises(RuntimeError):
        convert(broken, tmp_path / "out", ConvertOptions(dtype="float32"))
    reader = CountingReader()
    convert(source_of(reader, tmp_path), tmp_path / "out", ConvertOptions())
    assert len(reader.layers_read) == SIZES.num_layers


def test_what_is_there_already_stays(tmp_path: Path) -> None:
    source, out = source_of(CountingReader(), tmp_path), tmp_path / "out"
    first = convert(source, out, ConvertOptions())
    marks = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    again = convert(source, out, ConvertOptions())
    assert (first.was_there, again.was_there) == (False, True)
    assert again.num_bytes == first.num_bytes
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == marks

    with pytest.raises(InvalidRequest, match="is not empty; add --force"):
        convert(source, out, ConvertOptions(dtype="float32"))
    convert(source, out, ConvertOptions(dtype="float32"), force=True)
    assert load_file(out / "rank0.safetensors")["lm_head.weight"].dtype == torch.float32


def test_a_replaced_source_is_noticed(tmp_path: Path) -> None:
    source, out = source_of(CountingReader(), tmp_path), tmp_path / "out"
    convert(source, out, ConvertOptions())
    source.files[0].write_text("other weights")
    with pytest.raises(InvalidRequest, match="is not empty; add --force"):
        convert(source, out, ConvertOptions())


def test_foreign_folders_are_left_alone(tmp_path: Path) -> None:
    source, out = source_of(CountingReader(), tmp_path), tmp_path / "out"
    out.mkdir()
    (out / "letters.txt").write_text("dear")
    with pytest.raises(InvalidRequest, match=f"holds no {RECORD}"):
        convert(source, out, ConvertOptions(), force=True)
    with pytest.raises(InvalidRequest, match="lie within each other"):
        convert(source, source.files[0].parent / "out", ConvertOptions())
    assert [path.name for path in out.iterdir()] == ["letters.txt"]


def test_two_conversions_do_not_mix(tmp_path: Path) -> None:
    source = source_of(CountingReader(), tmp_path)
    with (
        workshop_for(tmp_path / "out", "another plan"),
        pytest.raises(InvalidRequest, match="another conversion is writing"),
    ):
        convert(source, tmp_path / "out", ConvertOptions())
    convert(source, tmp_path / "out", ConvertOptions())


def test_a_full_disk_is_noticed_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    reader = CountingReader()
    with pytest.raises(InvalidRequest, match="GB are free in"):
        convert(source_of(reader, tmp_path), tmp_path / "out", ConvertOptions())
    assert reader.peak == 0


def test_values_that_a_dtype_cannot_hold_are_refused(tmp_path: Path) -> None:
    class Loud(CountingReader):
        def read(self, name: str, rows: slice = slice(None)) -> Tensor:
            return super().read(name, rows) * (1e5 if "up_proj" in name else 1)

    with pytest.raises(CheckpointError, match=r"mlp\.gate has values that float16 cannot hold; choose bfloat16"):
        convert(source_of(Loud(), tmp_path), tmp_path / "out", ConvertOptions())
    convert(source_of(Loud(), tmp_path), tmp_path / "out", ConvertOptions(dtype="bfloat16"))
    smooth, calibration = ConvertOptions(dtype="bfloat16", smoothquant=0.5), Calibration((Prompt((3, 5, 7)),))
    with pytest.raises(CheckpointError, match=r"up_proj\.weight has values that float16 .* calibration computes in it"):
        convert(source_of(Loud(), tmp_path), tmp_path / "smooth", smooth, calibration=calibration)
    ranges = measure(source_of(CountingReader(), tmp_path), calibration.prompts, lambda: None)
    with pytest.raises(CheckpointError, match="SmoothQuant computes in it, so leave that out"):
        convert(source_of(Loud(), tmp_path), tmp_path / "smooth", smooth, calibration=Calibration(recorded=ranges))


def test_smoothing_that_overflows_is_refused(tmp_path: Path) -> None:
    source, calibration = source_of(CountingReader(), tmp_path), Calibration((Prompt((3, 5, 7)),))
    ranges = measure(source, calibration.prompts, lambda: None)
    loud = {name: values * (1e20 if name.endswith("gate_proj.x") else 1) for name, values in ranges.items()}
    with pytest.raises(CheckpointError, match=r"mlp\.fc, once smoothed, has values that float16 cannot hold"):
        convert(source, tmp_path / "out", ConvertOptions(smoothquant=0.5), calibration=Calibration(recorded=loud))


def test_calibration_is_asked_for(tmp_path: Path) -> None:
    source = source_of(CountingReader(), tmp_path)
    for options in (ConvertOptions(smoothquant=0.5), ConvertOptions(int8_kv_cache=True)):
        with pytest.raises(InvalidRequest, match="give --calibration FILE"):
            convert(source, tmp_path / "out", options)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_measured_ranges_are_kept_and_can_be_given_again(tmp_path: Path) -> None:
    source = source_of(CountingReader(), tmp_path)
    convert(source, tmp_path / "a", ConvertOptions(int8_kv_cache=True), calibration=Calibration(random_prompts(source)))
    recorded = read_calibration(tmp_path / "a" / "calibration.safetensors", source)
    convert(source, tmp_path / "b", ConvertOptions(int8_kv_cache=True), calibration=recorded)
    assert ranks(tmp_path / "a") == ranks(tmp_path / "b")
    assert not (tmp_path / "b" / "calibration.safetensors").exists()


def test_files_say_what_they_are_and_are_aligned(tmp_path: Path) -> None:
    options = ConvertOptions(dtype="float16", weight_only="int8", prequantize="sm80")
    convert(open_hugging_face(DATA / "a_h64" / "hf"), tmp_path / "out", options)
    path = tmp_path / "out" / "rank0.safetensors"
    with safe_open(path, framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    assert length % 8 == 0
    widths = {"F16": 2, "I8": 1}
    for name, entry in header.items():
        if name != "__metadata__":
            assert entry["data_offsets"][0] % widths[entry["dtype"]] == 0


def test_the_heads_bias_is_handed_over(babble: Path, tmp_path: Path) -> None:
    source = open_official(babble, len(TextTokenizer.from_folder(babble / BACKBONE)))
    convert(source, tmp_path / "out", ConvertOptions())
    bias = torch.from_numpy(np.load(tmp_path / "out" / "embedding_bias.npy"))
    official = torch.load(babble / "llm.pt", weights_only=True)["llm_decoder.bias"]
    assert bias.dtype == torch.float32
    assert len(bias) == source.sizes.vocab_size
    assert torch.equal(bias[bias.isfinite()], official)
    assert torch.equal(torch.where(bias.isfinite())[0], torch.arange(276, 276 + 6564))


def test_a_folder_without_a_bias_gets_no_file(tmp_path: Path) -> None:
    convert(open_hugging_face(DATA / "a_h64" / "hf"), tmp_path / "out", ConvertOptions())
    assert not (tmp_path / "out" / "embedding_bias.npy").exists()


def test_a_mapped_file_is_opened_anew_and_reads_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merged_lm, "_READ_BEFORE_REOPENING", 1000)
    opened: list[Path] = []
    read_tensors = merged_lm.read_tensors

    def counted(path: Path) -> dict[str, Tensor]:
        opened.append(path)
        return read_tensors(path)

    monkeypatch.setattr(merged_lm, "read_tensors", counted)
    tensors = {str(number): torch.randn(10, 20) for number in range(5)}
    save_file(tensors, tmp_path / "weights.safetensors")
    weights = MappedWeights(tmp_path / "weights.safetensors")
    for name, tensor in tensors.items():
        assert torch.equal(weights.read(name), tensor)
        assert torch.equal(weights.read(name, slice(2, 5)), tensor[2:5])
        weights.read(name).zero_()  # a copy: the file stays as it is
        assert torch.equal(weights.read(name), tensor)
    assert len(opened) > 5
