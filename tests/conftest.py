"""What most tests stand on: a small random checkpoint."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.small_checkpoint import small_checkpoint
from vivavoce.api import Vivavoce
from vivavoce.checkpoint.config import Generation
from vivavoce.engine.request import Conditioning
from vivavoce.frontend.loading import load_model
from vivavoce.models.build import Models, build_models
from vivavoce_bench.random_checkpoint import make_babble_checkpoint

CPU = torch.device("cpu")

LONGEST = (
    "quality/test_mini.py",
    "engine/flow_stage/test_flow_stage_fast.py",
    "engine/vocoder_stage/test_vocoder_stage_fast.py",
    "triton/test_triton_serving.py",
    "fleet/test_replacement.py",
    "server/http/test_serve_mini.py",
    "kernels/test_flow_kernels.py",
    "server/http/test_pages_browser.py",
    "clients/real/test_real_clients.py",
    "engine/lm_stage/test_lm_stage_adapters.py",
    "engine/lm_stage/test_lm_stage_fast.py",
    "engine_process/test_engine_host.py",
    "server/http/test_reload.py",
    "fleet/test_serve_models.py",
    "kernels/test_lm_kernels.py",
    "engine/test_engine_kernels.py",
    "parity/test_parity.py",
    "test_python.py",
    "dialects/test_compat.py",
    "server/http/test_server_docs.py",
    "cli/test_cli_output.py",
    "engine/test_engine_streams.py",
    "engine/test_engine_handles.py",
)
"""The files that take longest come first, so that no worker is left alone with one."""

SLOW = ("bench", "triton", "training", "runtimes", "export", "deploy", "dialects", "server/http/test_faults_*")
"""Folders and files whose tests are all `slow`: most satellites beside the core, and attacks on a server."""

LATE_S = 600.0
"""No coroutine takes so long; one that hangs ends then."""

# The networks here are tiny: a second thread costs more than it brings, and far more on a busy machine.
torch.set_num_threads(1)

if not torch.cuda.is_available():
    # Triton looks at this when a kernel is defined, and then runs it in its interpreter, on the CPU.
    os.environ["TRITON_INTERPRET"] = "1"

# A client of HTTP reads the certificates of all authorities when it is made, 50 ms long; no test meets one of them.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tests = Path(__file__).parent
    order = {tests / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path, len(order)))
    slow = {path for name in SLOW for path in tests.glob(name)}
    for item in items:
        if slow & {item.path, *item.path.parents}:
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Tests that are coroutines run in the event loop of their fixture `loop`, or in one of their own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    run = given["loop"].run_until_complete if "loop" in given else asyncio.run
    run(asyncio.wait_for(pyfuncitem.obj(**given), LATE_S))
    return True


PLANTED = ("json", "multiprocessing", "numpy", "pickle", "pip", "soundfile", "tempfile", "torch", "triton", "typer")
"""Names of libraries, Python's own among them, that programs of ours import or look for."""


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, which holds a package of every name above; a test in which one of them is run fails."""
    marks = tmp_path / "planted-and-run"
    for name in PLANTED:
        (tmp_path / "planted" / name).mkdir(parents=True)
        (tmp_path / "planted" / name / "__init__.py").write_text(f"print({name!r}, file=open({str(marks)!r}, 'a'))\n")
    monkeypatch.chdir(tmp_path / "planted")
    yield tmp_path / "planted"
    assert not marks.exists(), f"run from the current folder: {marks.read_text().split()}"


@pytest.fixture(scope="session")
def babble(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in the official layout; read it, or copy it before changing anything."""
    return small_checkpoint(tmp_path_factory.mktemp("models") / "babble")


@pytest.fixture(scope="session")
def babble_v3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `babble`, of CosyVoice3."""
    return small_checkpoint(tmp_path_factory.mktemp("models") / "babble-v3", Generation.V3)


@pytest.fixture(scope="session")
def babble_v1(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `babble`, of CosyVoice 1."""
    return small_checkpoint(tmp_path_factory.mktemp("models") / "babble-v1", Generation.V1)


@pytest.fixture(scope="session")
def own_babble(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the program makes for itself."""
    return make_babble_checkpoint(tmp_path_factory.mktemp("own") / "babble")


@pytest.fixture(scope="session", params=["v1", "v3"])
def other_babble(request: pytest.FixtureRequest) -> Path:
    """The other generations' in turn, for what the whole program does with `babble`."""
    folder: Path = request.getfixturevalue(f"babble_{request.param}")
    return folder


@pytest.fixture(scope="session")
def models_v1(babble_v1: Path) -> Models:
    return build_models(babble_v1, CPU)


@pytest.fixture(scope="session")
def models(babble: Path) -> Models:
    return build_models(babble, CPU)


@pytest.fixture(scope="session")
def models_v3(babble_v3: Path) -> Models:
    return build_models(babble_v3, CPU)


@pytest.fixture(scope="session")
def synthesizer(babble: Path) -> Vivavoce:
    return Vivavoce(*load_model(babble, (CPU,)))


@pytest.fixture(scope="session")
def conditioning() -> Conditioning:
    """A voice of random features: 30 prompt tokens, 60 frames."""
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(0, 6561, (30,), generator=generator)
    return Conditioning(
        embedding=torch.randn(192, generator=generator),
        lm_prompt_text=(65, 66, 67),
        lm_prompt_tokens=tuple(tokens.tolist()),
        flow_tokens=tokens,
        flow_mel=torch.randn(60, 80, generator=generator),
    )
