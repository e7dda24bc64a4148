"""Conversions: what can be, whole numbers and shards; whole or not at all, within a bound of memory."""

from __future__ import annotations

import json
import shutil
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from trtllm_goldens import DATA

from vivavoce.errors import CheckpointError, InvalidRequest
from vivavoce_export import files
from vivavoce_export.hf_folder import Source, open_hugging_face
from vivavoce_export.merged_lm import HEAD, QwenSizes
from vivavoce_export.trtllm.calibration import Calibration, Prompt, measure, random_prompts, read_calibration
from vivavoce_export.trtllm.convert import RECORD, RankPlan, convert
from vivavoce_export.trtllm.layers import (
    ShardCut,
    dequantise,
    joined,
    quantise,
    round_trip,
    shards,
    to_int8,
    whole_numbers,
)
from vivavoce_export.trtllm.options import ConvertOptions, build_command, chosen_dtype
from vivavoce_export.trtllm.reread import Reread

RELEASE = QwenSizes(896, 4864, 24, 14, 2, 1e-6, 1e6, 32768, 158_336)
"""CosyVoice2-0.5B."""


@pytest.mark.parametrize(
    ("wishes", "field"),
    [
        ({"dtype": "int8"}, "dtype"),
        ({"tp": 0}, "tp-size"),
        ({"pp": -1}, "pp-size"),
        ({"cp": 2}, "cp-size"),
        ({"weight_only": "int3"}, "weight-only-precision"),
        ({"weight_only": "int8", "prequantize": "sm70"}, "prequantize"),
        ({"prequantize": "sm80"}, "prequantize"),
        ({"per_token": True}, "per-token, per-channel"),
        ({"smoothquant": 1.5}, "smoothquant: 1.5"),
        ({"smoothquant": 0.5, "weight_only": "int4"}, "smoothquant: excludes --use-weight-only"),
        ({"tp": 4}, "tp-size: 4 does not divide the 14 attention heads; use 1 or 2$"),
        ({"tp": 7}, "tp-size: 7 neither divides the 2 key-value heads"),
        ({"tp": 14}, "tp-size: 14 does not divide the 4864 channels"),
        ({"pp": 5}, "pp-size: 5 .* use 1, 2, 3, 4, 6, 8, 12, 24$"),
    ],
)
def test_wishes_that_contradict_or_do_not_fit_the_release_are_refused(wishes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^{field}"):
        ConvertOptions(**wishes).check_fits(RELEASE)


def test_splits_that_fit_the_release() -> None:
    for tp in (1, 2):
        for pp in (1, 2, 24):
            ConvertOptions(tp=tp, pp=pp, weight_only="int4", prequantize="sm80").check_fits(RELEASE)
            ConvertOptions(tp=tp, pp=pp, smoothquant=0.5, int8_kv_cache=True).check_fits(RELEASE)


def test_matrices_that_the_kernels_cannot_read_are_refused() -> None:
    narrow = QwenSizes(256, 704, 6, 4, 2, 1e-6, 1e4, 32768, 7168)
    ConvertOptions(tp=1, weight_only="int8").check_fits(narrow)
    with pytest.raises(InvalidRequest, match="multiples of 64 channels, and MLP has 352 on each GPU at tp-size 2"):
        ConvertOptions(tp=2, weight_only="int8").check_fits(narrow)


@pytest.mark.parametrize(
    ("wanted", "stored", "chosen"),
    [
        ("auto", torch.bfloat16, torch.bfloat16),
        ("auto", torch.float16, torch.float16),
        ("auto", torch.float32, torch.float16),
        ("bfloat16", torch.float32, torch.bfloat16),
        ("float32", torch.bfloat16, torch.float32),
    ],
)
def test_the_dtype(wanted: str, stored: torch.dtype, chosen: torch.dtype) -> None:
    assert chosen_dtype(ConvertOptions(dtype=wanted), stored) == chosen


def test_the_line_that_builds_an_engine() -> None:
    assert " ".join(build_command("weights", "engine", "bfloat16")) == (
        "trtllm-build --checkpoint_dir weights --output_dir engine --max_batch_size 16 --max_num_tokens 32768 "
        "--gemm_plugin bfloat16"
    )


SHARED = QwenSizes(64, 128, 8, 8, 2, 1e-6, 1e4, 512, 200)


def weights(rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows + columns)) / 8


@pytest.mark.parametrize("layout", ["sm80", "sm90"])
@pytest.mark.parametrize("bits", [8, 4])
def test_bytes_in_a_gpus_order_mean_the_same_matrix(bits: int, layout: str) -> None:
    weight = weights(128, 192).half()
    stored, scale = quantise(weight, bits, layout)
    assert stored.shape == (192, 128 * bits // 8)
    found = dequantise(stored, scale, bits, layout)
    assert torch.equal(found, round_trip(weight, bits))
    steps = weight.float().abs().amax(1, keepdim=True) / 2 ** (bits - 1)
    # The largest positive number is one step too large for its bits; the scale's own rounding is float16's.
    assert ((found - weight.float()).abs() <= steps * 1.01 + 1e-3).all()
    assert len(whole_numbers(weight, bits)[0].unique()) > 2**bits * 0.9


def test_halves_are_rounded_away_from_zero() -> None:
    values = torch.tensor([[128.0, 0.5, -0.5, 1.5, -1.5, 2.5, 0.49999997, -0.49999997]])
    numbers, scale = whole_numbers(values, 8)
    assert scale.item() == 1
    assert numbers[:, 0].tolist() == [127, 1, -1, 2, -2, 3, 0, 0]


def test_an_output_without_weights_stays_without() -> None:
    weight = weights(64, 64).half()
    weight[5] = 0
    for bits in (8, 4):
        assert (dequantise(*quantise(weight, bits, "sm80"), bits, "sm80")[5] == 0).all()
    for per_channel in (True, False):
        made, to_int, from_int = to_int8(weight, (64,), per_channel=per_channel)
        assert (made[5] == 0).all()
        assert to_int.isfinite().all()
        assert from_int.isfinite().all()


@pytest.mark.parametrize("parts", [(64,), (32, 16, 16)])
@pytest.mark.parametrize("per_channel", [True, False])
def test_weights_too_small_for_a_scale_in_float16(parts: tuple[int, ...], per_channel: bool) -> None:
    weight = (weights(64, 64) / 1000).half()
    assert weight.abs().max() < 127 / 65504
    made, _, from_int = to_int8(weight, parts, per_channel=per_channel)
    error = made.float() * from_int.reshape(-1, 1) - weight.float()
    assert error.abs().max() <= weight.abs().max() / 127
    assert made.abs().max() == 127


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_shards_make_the_whole_again(tp: int) -> None:
    query_rows, key_rows, value_rows = SHARED.qkv_rows
    fused = weights(query_rows + key_rows + value_rows, 64)
    pieces = shards(fused, ShardCut.QKV, tp, SHARED)
    assert len({piece.shape for piece in pieces}) == 1
    assert len(pieces[0]) == query_rows // tp + 2 * max(key_rows // tp, SHARED.head_dim)
    assert torch.equal(joined(pieces, ShardCut.QKV, SHARED), fused)
    assert torch.equal(joined(shards(fused[:, 0], ShardCut.QKV, tp, SHARED), ShardCut.QKV, SHARED), fused[:, 0])
    for cut in (ShardCut.ROWS, ShardCut.COLUMNS):
        assert torch.equal(joined(shards(weights(64, 128), cut, tp, SHARED), cut, SHARED), weights(64, 128))


def test_a_table_of_any_size_is_divided() -> None:
    plans = (RankPlan(replace(SHARED, vocab_size=rows), ConvertOptions(tp=2), torch.float16) for rows in (100, 101, 1))
    assert [plan.rows_per_gpu(HEAD) for plan in plans] == [50, 51, 1]


SIZES = QwenSizes(64, 128, 8, 4, 2, 1e-6, 1e4, 512, 200)
LAYER_BYTES = 4 * sum(int(np.prod(shape)) for shape in SIZES.layer_shapes.values())


class CountingReader:
    """Random tensors that know how many of their bytes are alive; breaks off after `reads`."""

    def __init__(self, reads: int | None = None) -> None:
        self.shapes = SIZES.shapes
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
    monkeypatch.setattr(files, "BLOCK_VALUES", 16 * SIZES.hidden_size)
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


def test_a_broken_conversion_leaves_nothing(tmp_path: Path) -> None:
    options, out, steps = ConvertOptions(pp=2), tmp_path / "out", list[tuple[str, int, int]]()
    with pytest.raises(RuntimeError, match="the disk is gone"):
        convert(source_of(CountingReader(reads=40), tmp_path), out, options)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    made = convert(
        source_of(CountingReader(), tmp_path), out, options, progress=lambda _, done, total: steps.append((done, total))
    )
    assert [done for done, _ in steps] == list(range(1, steps[-1][1] + 1))
    assert {path.name for path in out.iterdir()} == {"config.json", "conversion.json", *ranks(out)}
    assert made.num_bytes == sum(map(len, ranks(out).values()))


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
    source.files[0].write_text("other weights")
    with pytest.raises(InvalidRequest, match="is not empty; add --force"):
        convert(source, out, ConvertOptions(dtype="float32"))


def test_foreign_folders_are_left_alone(tmp_path: Path) -> None:
    source, out = source_of(CountingReader(), tmp_path), tmp_path / "out"
    out.mkdir()
    (out / "letters.txt").write_text("dear")
    with pytest.raises(InvalidRequest, match=f"holds no {RECORD}"):
        convert(source, out, ConvertOptions(), force=True)
    assert [path.name for path in out.iterdir()] == ["letters.txt"]


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
    with pytest.raises(CheckpointError, match="SmoothQuant computes in it; leave --smoothquant out"):
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
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    assert length % 8 == 0
    widths = {"F16": 2, "I8": 1}
    for name, entry in header.items():
        if name != "__metadata__":
            assert entry["data_offsets"][0] % widths[entry["dtype"]] == 0


OPTIONS = ConvertOptions(pp=2)


@pytest.fixture
def biased(folder: Path) -> Source:
    """A tiny model with a bias of its head."""
    np.save(folder / "embedding_bias.npy", np.arange(101, dtype=np.float32))
    return open_hugging_face(folder)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def other_header(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"lm_head.weight", b"lm_head.height"))


def unseen(path: Path) -> None:
    path.write_bytes(
        path.read_bytes()[:-4] + b"\xff" * 4
    )  # damage that no size tells: force converts whatever is there


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("config.json", cut),
        ("rank0.safetensors", unseen),
        ("rank0.safetensors", Path.unlink),
        ("rank1.safetensors", cut),
        ("rank1.safetensors", other_header),
        ("embedding_bias.npy", Path.unlink),
    ],
)
def test_a_damaged_checkpoint_is_not_done(
    biased: Source, tmp_path: Path, file: str, damage: Callable[[Path], None]
) -> None:
    out = tmp_path / "out"
    convert(biased, out, OPTIONS)
    whole = {path.name: path.read_bytes() for path in out.iterdir()}
    damage(out / file)
    if damage is not unseen:
        with pytest.raises(InvalidRequest, match="is not empty; add --force"):
            convert(biased, out, OPTIONS)
    assert not convert(biased, out, OPTIONS, force=True).was_there
    assert {path.name: path.read_bytes() for path in out.iterdir()} == whole
    assert convert(biased, out, OPTIONS).was_there


def test_a_checkpoint_with_a_damaged_bias_is_refused(biased: Source, tmp_path: Path) -> None:
    out = tmp_path / "out"
    convert(biased, out, OPTIONS)
    np.save(out / "embedding_bias.npy", np.zeros(7, np.float32))
    with pytest.raises(CheckpointError, match=r"the head's bias is \[7\] instead of \[101\]"):
        Reread(out)
    cut(out / "embedding_bias.npy")
    with pytest.raises(CheckpointError, match=r"embedding_bias\.npy: cannot be read"):
        Reread(out)
