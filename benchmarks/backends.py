"""Compares backends on one machine: one stream, throughput, memory, error against float32, and size to install.

    python -m benchmarks.backends --model mini --json benchmarks/results/backends/cpu.json

Each row runs in a new process, so that its memory can be measured, one row after the other. A row whose runtime or file
is missing tells why it was not run. The backends' files must be in the model's folder: `vivavoce export` writes them,
see docs/backends.md. No other program should use the machine meanwhile.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import vivavoce
from benchmarks.gpu.loads import Load, measure
from benchmarks.gpu.model import origin, reader
from vivavoce.cli.console import print_table
from vivavoce.engine.admission import AdmissionMode
from vivavoce.engine.flow_stage import AttentionMode, FlowRow
from vivavoce.engine.request import FlowSteps
from vivavoce.engine.settings import EngineSettings
from vivavoce.errors import VivavoceError
from vivavoce.frontend.model_choice import choose_device, model_folder
from vivavoce_bench.measure import save_json

TOKENS = 125
"""Speech tokens of each request: the same work for every row."""
PACKAGES = {"vllm": "vllm", "trtllm": "tensorrt_llm", "onnx": "onnxruntime", "tensorrt": "tensorrt"}
"""Backend → the package that it needs besides torch."""


def main() -> None:
    """Measure the rows that are asked for, print them as a table, and write them as JSON if asked to."""
    asked = _parser().parse_args()
    folder, device = model_folder(asked.model), choose_device(asked.device)
    rows = [("torch", "torch", "float32"), *(("torch", "torch", dtype) for dtype in asked.dtype)]
    rows += [("torch", flow, asked.dtype[0]) for flow in asked.flow]
    rows += [(lm, "torch", asked.dtype[0]) for lm in asked.lm]
    found = []
    with tempfile.TemporaryDirectory() as place:
        for row in dict.fromkeys(rows):
            print(*row, file=sys.stderr, flush=True)
            found.append(_in_a_process((*row, folder, device.type, asked.together, Path(place) / "mel.npy")))
    keys = ("lm", "flow", "dtype", "ttfb_ms", "rtf", "cpu_s_per_audio_s", "audio_s_per_s", "memory_mb", "mel_error",
            "install_mb", "not_run")  # fmt: skip
    print_table([[_cell(one.get(key)) for key in keys] for one in found], keys)
    if asked.json:
        save_json({**origin("benchmarks.backends", device), "rows": found}, asked.json)


def _in_a_process(given: tuple[Any, ...]) -> dict[str, Any]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        figures: dict[str, Any] = pool.apply(_row, given)
    return figures


def _row(lm: str, flow: str, dtype: str, folder: Path, device: str, together: int, mel_file: Path) -> dict[str, Any]:
    """Measure one row; `not_run`: why it has no figures. Mels are compared with the first row's, in `mel_file`."""
    row: dict[str, Any] = {"lm": lm, "flow": flow, "dtype": dtype}
    try:
        settings = EngineSettings(lm_backend=lm, flow_backend=flow, admission=AdmissionMode.ALL)
        tts = vivavoce.load(folder, device=device, dtype=dtype, settings=settings)
    except VivavoceError as error:
        return {**row, "not_run": str(error)}
    with tts:
        tts.warm_up()
        cpu_s = time.process_time()
        stream = measure(tts, folder, Load("stream", 6, concurrency=1, tokens=TOKENS))
        cpu_s = time.process_time() - cpu_s
        offline = measure(tts, folder, Load("offline", 2 * together, concurrency=together, offline=True, tokens=TOKENS))
        mel = _mel(tts)
    if not mel_file.exists():
        np.save(mel_file, mel)
    whole = np.load(mel_file)
    return {
        **row,
        "ttfb_ms": stream["ttfb_ms_p50"],
        "rtf": stream["rtf"],
        "cpu_s_per_audio_s": cpu_s / (6 * TOKENS / 25) if device == "cpu" else None,
        "audio_s_per_s": offline["throughput_audio_s_per_s"],
        "memory_mb": _memory_bytes(device) >> 20,
        "mel_error": float(np.sqrt(np.square(mel - whole).mean() / np.square(whole).mean())),
        "install_mb": _installed_bytes({"torch", *(PACKAGES[one] for one in (lm, flow) if one in PACKAGES)}) >> 20,
    }


@torch.inference_mode()
def _mel(tts: vivavoce.Vivavoce) -> np.ndarray:
    """The flow's mel of fixed tokens in a fixed voice; the engine must be idle."""
    stage = tts.engine.stages.flow
    assert stage is not None
    tokens = tuple(range(100, 100 + TOKENS))
    stream = stage.open(reader(), FlowSteps.OFFICIAL)
    job = stage.start([FlowRow(stream, tokens, TOKENS, AttentionMode.FULL)])
    while job.steps_left:
        job.step()
    (mel,) = job.result()
    assert mel is not None
    return mel.float().cpu().numpy()


def _memory_bytes(device: str) -> int:
    """Peak memory of this process: what torch reserved on a GPU, else the resident memory."""
    if device == "cuda":
        return torch.cuda.max_memory_reserved()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _installed_bytes(packages: Iterable[str]) -> int:
    """Size of these packages' files, without their dependencies."""
    files = [file for one in packages for file in importlib.metadata.files(one) or ()]
    return sum(path.stat().st_size for file in files if (path := Path(str(file.locate()))).is_file())


def _cell(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else "" if value is None else str(value)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mini", help="name or folder")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--dtype", nargs="+", default=["float32"], help="dtypes; backends run in the first one")
    parser.add_argument("--flow", nargs="*", default=["onnx", "jit", "aoti", "tensorrt"], help="backends of the flow")
    parser.add_argument("--lm", nargs="*", default=["vllm", "trtllm"], help="backends of the language model")
    parser.add_argument("--together", type=int, default=4, help="utterances at once for the throughput")
    parser.add_argument("--json", type=Path, help="file for the results")
    return parser


if __name__ == "__main__":
    main()
