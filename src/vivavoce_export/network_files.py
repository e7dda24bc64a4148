"""Networks as files: ONNX, TorchScript, AOTInductor packages. Each file is compared with PyTorch before it is kept."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn.functional import pad

from vivavoce.checkpoint.config import Generation, LMConfig
from vivavoce.errors import CheckpointError, InvalidRequest, MissingDependency, StageFailed, VivavoceError
from vivavoce.models.build import Models
from vivavoce.models.encoders import OnnxModel, open_onnx
from vivavoce.models.flow.unet import TokenEncoder, VelocityContext
from vivavoce_runtimes.estimators import (
    OPTIONAL_ENDS,
    OUTPUT,
    EstimatorInputs,
    EstimatorRunner,
    onnx_estimator,
    open_package,
    open_script,
    torch_estimator,
)
from vivavoce_runtimes.files import ENCODER, ESTIMATOR, LM, PRECISIONS, VOCODER, file_name, remember_code

ROWS, LENGTH = Dim("rows", min=2, max=512), Dim("length", min=2, max=15_000)
EXAMPLE = (2, 37)
"""Rows and length of example inputs. The numbers are unusual, so that exporters do not take them for fixed sizes."""
CHUNK = 7
"""Number of frames in an attention chunk of test inputs."""


@dataclass(frozen=True)
class Part:
    """One network of a model that can be exported.

    dynamic: each input's name, in order → its dimensions of variable size; outputs: their names; draw: makes random
    inputs for a number of rows and a length; shapes: the rows and lengths with which the exported file is tested;
    official: lookahead, chunk and upsampling of `ScriptedEncoder`, or None for other networks.
    """

    name: str
    stem: str
    network: nn.Module
    dynamic: Mapping[str, Mapping[int, Any]]
    outputs: tuple[str, ...]
    draw: Callable[[int, int], tuple[Tensor, ...]]
    dtype: torch.dtype
    device: torch.device
    official: tuple[int, int, int] | None = None
    shapes: tuple[tuple[int, int], ...] = ((1, 4), (1, 61), (2, 37), (3, 111))

    def inputs(self, rows: int, length: int) -> tuple[Tensor, ...]:
        """Return random inputs on the device, equal in each call. Floats have `dtype`, except the input `t`."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(rows * 15_000 + length)
            drawn = dict(zip(self.dynamic, self.draw(rows, length), strict=True))
        return tuple(
            one.to(self.device, self.dtype if one.is_floating_point() and name != "t" else one.dtype)
            for name, one in drawn.items()
        )


class _Around(nn.Module):
    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network


class Estimator(_Around):
    """The flow's velocity estimator, with the inputs and the output of the official exports."""

    def forward(
        self, x: Tensor, mask: Tensor, mu: Tensor, t: Tensor, spks: Tensor, cond: Tensor, attention_ends: Tensor
    ) -> Tensor:
        """Compute [rows, bins, frames] velocity, 0 where `mask` is 0, from inputs as in `EstimatorInputs`."""
        speaker = spks[:, :, None].expand_as(mu)
        features = torch.cat((x, mu, speaker, cond), dim=1).transpose(1, 2)
        frame = torch.arange(x.shape[2], device=x.device, dtype=torch.int32)
        seen = (frame < attention_ends[..., None]) & (mask > 0)
        context = VelocityContext(self.network.time_biases(t.float()), seen[:, None])
        velocity = self.network.velocity(features, context)
        return velocity.transpose(1, 2) * mask


def _estimator(models: Models) -> Part:
    bins = models.config.flow.num_mel_bins

    def draw(rows: int, frames: int) -> tuple[Tensor, ...]:
        frame, lengths = torch.arange(frames), torch.full((2 * rows, 1), frames)
        lengths[rows - 1 :: rows] -= frames // 5 if rows > 1 else 0
        x, mu, cond = torch.randn(3, 2 * rows, bins, frames)
        ends, mask = _chunked(frames).minimum(lengths).int(), (frame < lengths)[:, None].float()
        return EstimatorInputs(x, mask, mu, torch.rand(2 * rows), torch.randn(2 * rows, bins), cond, ends)

    wide, row = {0: ROWS, 2: LENGTH}, {0: ROWS}
    shapes = (wide, wide, wide, row, row, wide, {0: ROWS, 1: LENGTH})
    dynamic = dict(zip(EstimatorInputs._fields, shapes, strict=True))
    network = Estimator(models.flow.estimator)
    return Part("estimator", ESTIMATOR, network, dynamic, (OUTPUT,), draw, models.dtype, models.device)


class EncoderCore(nn.Module):
    """CosyVoice2's token encoder up to its last norm. The official flow projects this encoder's output to mu itself."""

    def __init__(self, network: TokenEncoder) -> None:
        super().__init__()
        self.network, self.up = copy(network), network.config.upsampling
        self.network._modules = {**network._modules, "mu_projection": nn.Identity()}

    def forward(self, xs: Tensor, heard: Tensor, attention_ends: Tensor, lookahead_ends: Tensor) -> Tensor:
        """Encode xs [rows, tokens + lookahead, size], embedded tokens → [rows, frames, size]. heard: [rows] int64, the
        number of a row's tokens; attention_ends: [rows, tokens] int32, end of the tokens that each token attends to;
        lookahead_ends: [rows, tokens] int64, see `TokenEncoder.encode`."""
        widened = (attention_ends * self.up).repeat_interleave(self.up, dim=1)
        of_tokens, of_frames = (
            torch.arange(ends.shape[1], device=xs.device, dtype=torch.int32) < ends[..., None]
            for ends in (attention_ends, widened)
        )
        size, masks = attention_ends.shape[1], (of_tokens[:, None], of_frames[:, None])
        return self.network.encode(xs, heard, size, masks, lookahead_ends=lookahead_ends)


class ScriptedEncoder(nn.Module):
    """`EncoderCore` for TorchScript, with the interface that official tools call; `encode` calls the core."""

    def __init__(self, core: nn.Module, lookahead: int, chunk: int, up: int) -> None:
        super().__init__()
        self.core, self.lookahead, self.chunk, self.up = core, lookahead, chunk, up

    def forward(
        self,
        xs: Tensor,
        xs_lens: Tensor,
        context: Tensor = torch.zeros(0, 0, 0),
        decoding_chunk_size: int = 0,
        num_decoding_left_chunks: int = -1,
        streaming: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Encode xs [rows, tokens, size] → [rows, frames, size], and a mask [rows, 1, frames], True at a row's frames.
        context: [rows, lookahead, size], the tokens after xs, or empty; streaming: attend chunk by chunk."""
        size, heard = xs.size(1), xs_lens
        if context.size(1) > 0:
            xs, heard = torch.cat((xs, context), dim=1), xs_lens + context.size(1)
        xs = pad(xs, (0, 0, 0, size + self.lookahead - xs.size(1)))
        ends = xs_lens[:, None].expand(-1, size)
        if streaming:
            ends = torch.minimum((torch.arange(size, device=xs.device) // self.chunk + 1) * self.chunk, ends)
        h = self.core(xs, heard, ends.to(torch.int32), heard[:, None].expand(-1, size))
        return h, (torch.arange(size * self.up, device=xs.device) < xs_lens[:, None] * self.up)[:, None]

    @torch.jit.export
    def encode(self, xs: Tensor, heard: Tensor, attention_ends: Tensor, lookahead_ends: Tensor) -> Tensor:
        return self.core(xs, heard, attention_ends, lookahead_ends)


def _encoder(models: Models) -> Part:
    network = models.flow.encoder
    if not isinstance(network, TokenEncoder):
        raise InvalidRequest("parts: CosyVoice3 has no encoder; leave it out")
    config, ahead = network.config, network.config.lookahead

    def draw(rows: int, tokens: int) -> tuple[Tensor, ...]:
        ends, size = _chunked(tokens).expand(rows, -1), tokens + ahead
        return torch.randn(rows, size, config.input_size), torch.full((rows,), size), ends.int(), ends + ahead

    each, sizes = {0: ROWS, 1: LENGTH}, (ahead, config.chunk, config.upsampling)
    dynamic = {"xs": {0: ROWS, 1: LENGTH + ahead}, "heard": {0: ROWS}, "attention_ends": each, "lookahead_ends": each}
    core = EncoderCore(network)
    return Part("encoder", ENCODER, core, dynamic, ("h",), draw, models.dtype, models.device, sizes)


class VocoderDecode(_Around):
    def forward(self, mel: Tensor, source: Tensor) -> Tensor:
        """Compute [1, samples] audio from mel [1, bins, frames] and source [1, 1, samples]."""
        return self.network.decode(mel, source)


def _vocoder(models: Models) -> Part:
    bins, hop = models.config.vocoder.num_mel_bins, models.config.vocoder.samples_per_frame

    def draw(rows: int, frames: int) -> tuple[Tensor, ...]:
        return torch.randn(1, bins, frames), torch.randn(1, 1, frames * hop) / 10

    dynamic, network = {"mel": {2: LENGTH}, "source": {2: hop * LENGTH}}, VocoderDecode(models.vocoder)
    return Part("vocoder", VOCODER, network, dynamic, ("wave",), draw, torch.float32, models.device)


class DecodeStep(_Around):
    def forward(self, ids: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Do a decode step. ids: [rows] int64 speech tokens; keys, values: [layers, rows, heads, positions, size] →
        logits [rows, ids] float32, and keys and values with one more position."""
        past = list(zip(keys.unbind(0), values.unbind(0), strict=True))
        hidden = self.network(self.network.speech_embedding(ids)[:, None], past)
        new_keys, new_values = (torch.stack(one) for one in zip(*past, strict=True))
        return self.network.speech_head(hidden[:, 0]).float(), new_keys, new_values


def _lm(models: Models) -> Part:
    config = models.lm.config
    assert isinstance(config, LMConfig)

    def draw(rows: int, past: int) -> tuple[Tensor, ...]:
        keys, values = torch.randn(2, config.num_layers, rows, config.num_kv_heads, past, config.head_dim)
        return torch.randint(config.vocabulary.num_speech_tokens, (rows,)), keys, values

    dynamic = {"ids": {0: ROWS}, "keys": {1: ROWS, 3: LENGTH}, "values": {1: ROWS, 3: LENGTH}}
    outputs = ("logits", "new_keys", "new_values")
    return Part("lm", LM, DecodeStep(models.lm), dynamic, outputs, draw, models.dtype, models.device)


def _chunked(length: int) -> Tensor:
    return ((torch.arange(length) // CHUNK + 1) * CHUNK).clamp(max=length)


PARTS: Mapping[str, Callable[[Models], Part]] = {
    part.__name__[1:]: part for part in (_estimator, _encoder, _vocoder, _lm)
}


def part_of(models: Models, name: str) -> Part:
    """Make the part of this name. InvalidRequest: models of this generation lack it."""
    if models.config.generation is Generation.V1:
        raise InvalidRequest("model: CosyVoice 1's networks are not exported; use CosyVoice2 or 3")
    return PARTS[name](models)


OPSET = 20
ONNX_BYTES = 2_000_000_000
"""Limit of an ONNX file's size without external data: protobuf's limit, minus some space for the graph."""
TOLERANCE = {torch.float32: 1e-3, torch.float16: 3e-2}
"""Largest allowed error of a file, as a fraction of the largest output value, by dtype."""

Run = Callable[..., Any]


def export_part(part: Part, kind: str, folder: Path) -> tuple[Path, float]:
    """Write a part's file into the model's folder. If the file contains code, record its hash.

    kind: onnx, jit, aoti, or tensorrt, which is built from the ONNX file. Returns the path and largest error against
    PyTorch. CheckpointError: the error is too large. StageFailed: torch cannot export the part. Failures leave no file.
    """
    if kind == "tensorrt":
        return _export_engine(part, folder)
    precision = next(name for name, dtype in PRECISIONS.items() if dtype == part.dtype)
    target = folder / file_name(part.stem, precision, kind, part.device)
    with tempfile.TemporaryDirectory(dir=folder, prefix=f".{target.name}.") as workshop:
        path = Path(workshop) / target.name
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's exporters emit warnings about their own code
            try:
                _WRITERS[kind](part, path)
            except (VivavoceError, OSError):
                raise
            except Exception as error:  # torch's exporters raise many types of error
                reason = " ".join(str(error).split())[:200]
                raise StageFailed(
                    f"export: torch {torch.__version__} cannot write {target.name} ({reason}); try another --dtype or "
                    "--device, or another release of torch"
                ) from error
            worst = check_run(part, _opened(part, kind, path), target.name)
        if kind != "onnx":
            remember_code(path)
        path.replace(target)
    return target, worst


def _export_engine(part: Part, folder: Path) -> tuple[Path, float]:
    from vivavoce_runtimes.tensorrt import find_engine, tensorrt_estimator

    path = find_engine(folder, part.device, part.dtype, trusted=False, anew=True)
    try:
        return path, check_run(part, _masked(tensorrt_estimator(path, part.device, 1)), path.name)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def check_parts(kind: str, parts: str) -> list[str]:
    """Split the parts at commas. InvalidRequest: a part is unknown, or cannot be exported as this kind."""
    names = [name.strip() for name in parts.split(",")]
    known = {"onnx": tuple(PARTS), "jit": ("estimator", "encoder")}.get(kind, ("estimator",))
    if wrong := next((name for name in names if name not in known), None):
        raise InvalidRequest(f"parts: {wrong!r} cannot be exported as {kind}; use some of {', '.join(known)}")
    return names


def check_run(part: Part, run: Run, name: str) -> float:
    """Return the exported file's largest error against PyTorch on random inputs. CheckpointError: it is too large."""
    worst, tolerance = 0.0, TOLERANCE[part.dtype]
    for rows, length in part.shapes:
        given = part.inputs(rows, length)
        with torch.inference_mode():
            wanted, found = _tensors(part.network(*given)), _tensors(run(*given))
        for one, other in zip(wanted, found, strict=True):
            error = float((one.float() - other.float()).abs().max() / one.float().abs().max())
            if not error <= tolerance:  # an error of NaN must fail, too
                raise CheckpointError(
                    f"{name}: differs from PyTorch by {error:.2g} of the largest value at {rows} × {length}, allowed "
                    f"is {tolerance:g}; nothing was written: try another --dtype, or other versions of its packages"
                )
            worst = max(worst, error)
    return worst


def _tensors(outputs: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)


def _opened(part: Part, kind: str, path: Path) -> Run:
    if kind == "onnx" and part.name != "estimator":
        return partial(_run_onnx, open_onnx(path, num_inputs=len(part.dynamic), remedy="export it again"))
    if kind == "onnx":
        return _masked(onnx_estimator(path, part.device))
    function = (open_script if kind == "jit" else open_package)(path, part.device, trusted=True)
    return function.encode if part.official else _masked(torch_estimator(function, part.device, part.dtype))


def _run_onnx(model: OnnxModel, *given: Tensor) -> tuple[Tensor, ...]:
    names = [one.name for one in model.session.get_inputs()]
    feeds = {name: tensor.cpu().numpy() for name, tensor in zip(names, given, strict=True)}
    return tuple(map(torch.from_numpy, model.session.run(None, feeds)))


def _masked(run: EstimatorRunner) -> Run:
    def masked(*given: Tensor) -> Tensor:
        inputs = EstimatorInputs(*given)
        return run(inputs) * inputs.mask

    return masked


def _write_onnx(part: Part, path: Path) -> None:
    size = sum(one.numel() * one.element_size() for one in part.network.parameters())
    if size > ONNX_BYTES:
        raise InvalidRequest(f"dtype: {size:,} bytes are more than the {ONNX_BYTES:,} of an ONNX file; use fp16")
    try:
        import onnxscript  # noqa: F401 - torch's exporter needs it
    except ImportError:
        raise MissingDependency("export: needs the package onnxscript; pip install 'vivavoce[onnx]'") from None
    # onnxscript logs about missing packages that are not needed.
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    program = torch.onnx.export(
        part.network.eval(),
        part.inputs(*EXAMPLE),
        dynamo=True,
        verbose=False,
        dynamic_shapes=dict(part.dynamic),
        input_names=list(part.dynamic),
        output_names=list(part.outputs),
        opset_version=OPSET,
    )
    assert program is not None
    program.save(path, external_data=False)
    if part.name == "estimator":
        with path.open("ab") as file:
            file.write(OPTIONAL_ENDS)


def _write_script(part: Part, path: Path) -> None:
    with torch.enable_grad():  # without gradients, some layers depend on the memory layout
        script = torch.jit.trace(part.network.eval(), part.inputs(*EXAMPLE), check_trace=False)
    if part.official:
        script = torch.jit.script(ScriptedEncoder(script, *part.official).eval())
    script.save(path)


def _write_package(part: Part, path: Path) -> None:
    if not any(map(shutil.which, ("g++", "c++", "clang++"))):
        raise MissingDependency("export: AOTInductor needs a C++ compiler; install g++ or clang++")
    from torch._inductor import aoti_compile_and_package

    program = torch.export.export(
        part.network.eval(),
        part.inputs(*EXAMPLE),
        dynamic_shapes=dict(part.dynamic),
        # On CUDA, torch cannot prove some guards over lengths, although they are always true.
        prefer_deferred_runtime_asserts_over_guards=True,
    )
    aoti_compile_and_package(program, package_path=str(path))
    # Load the file in another process first: a file that torch 2.11 made for CUDA crashed the process that loaded it.
    loading = "import sys, torch._inductor as inductor; inductor.aoti_load_package(sys.argv[1])"
    loaded = subprocess.run([sys.executable, "-c", loading, str(path)], capture_output=True, text=True, check=False)
    if loaded.returncode:
        raise RuntimeError(f"a process that loaded it ended with {loaded.returncode}: {loaded.stderr[-150:]}")


_WRITERS: dict[str, Callable[[Part, Path], None]] = {"onnx": _write_onnx, "jit": _write_script, "aoti": _write_package}
