"""What every backend of the flow does: the same mel as our own, whatever is asked for and whoever is beside it."""

import shutil
from dataclasses import replace

import pytest
import torch

from tests.engine.engine_helpers import MUTE, VOICE, given, inject, joined, offline, relative_error, running, stream
from tests.engine.flow_stage.flow_oracle import run, say, speech, voice
from vivavoce.engine.backends import FLOW_BACKENDS
from vivavoce.engine.flow_stage import AttentionMode, FlowRow, FlowStage
from vivavoce.engine.settings import EngineSettings
from vivavoce.errors import CheckpointError, InvalidRequest, MissingDependency, StageFailed
from vivavoce_runtimes.estimators import onnx_estimator
from vivavoce_runtimes.registry import FLOW, external_flow
from vivavoce_training.whole_rows import encode_embedded

ONNX = pytest.mark.filterwarnings("ignore::DeprecationWarning")
PAIRS = [
    pytest.param("v2", "onnx", marks=ONNX),
    pytest.param("v2", "jit"),
    pytest.param("v2", "jit+encoder"),
    pytest.param("v3", "jit"),
    pytest.param("v3", "onnx", marks=[ONNX, pytest.mark.long]),
    pytest.param("v2", "aoti", marks=pytest.mark.long),
    pytest.param("v3", "aoti", marks=pytest.mark.long),
]
every = pytest.mark.parametrize(("generation", "kind"), PAIRS)
"""Of each backend that can run here, and each generation that has them."""


@pytest.fixture
def stages(models_of, kind, generation):
    """One that the backend computes, and our own."""
    models = models_of(kind, generation)
    foreign = external_flow(models, EngineSettings(flow_backend=kind.partition("+")[0]))
    return FlowStage(models, state_bytes=64 << 20, external=foreign), FlowStage(models, state_bytes=64 << 20)


def check(mel, wanted):
    torch.testing.assert_close(mel, wanted, atol=2e-3, rtol=0)


def test_every_backend_is_in_the_table():
    assert {"torch", *FLOW} == set(FLOW_BACKENDS)


@pytest.mark.slow
@every
def test_whole_rows_with_and_without_a_prompt(stages):
    for prompt in (30, 0, 2):
        foreign, own = (say(one, one.open(voice(prompt)), speech(33), 33, AttentionMode.FULL) for one in stages)
        check(foreign, own)


@every
def test_streams_whose_past_is_computed_again(stages):
    made = []
    for stage in stages:
        opened = stage.open(voice(30))
        made.append(
            torch.cat([say(stage, opened, speech(70)[: at + hop + 3], hop) for at, hop in ((0, 5), (5, 31), (36, 34))])
        )
    check(*made)
    assert stages[0].pool.total == 0
    assert stages[1].pool.total > 0


@pytest.mark.slow
@every
def test_batches_of_all_lengths_and_alone_as_in_company(stages):
    voices, tokens = [voice(prompt) for prompt in (12, 0, 40)], [speech(count) for count in (9, 50, 3)]
    for attention in (AttentionMode.FULL, AttentionMode.GRID, AttentionMode.BLOCKS):
        company, own = (
            run(
                stage,
                [FlowRow(stage.open(one), row, len(row), attention) for one, row in zip(voices, tokens, strict=True)],
            )
            for stage in stages
        )
        for one, row, mel, wanted in zip(voices, tokens, company, own, strict=True):
            check(mel, wanted)
            alone = say(stages[0], stages[0].open(one), row, len(row), attention)
            assert torch.equal(alone, mel)


@pytest.mark.slow
@every
def test_an_engine_speaks_and_a_failure_hurts_its_own(models_of, kind, generation, monkeypatch):
    models = models_of(kind, generation)
    with running(models, source_noise=False) as own:
        wanted = [joined(own.submit(stream(given(40, voice=one)))) for one in (VOICE, MUTE)]
    with running(
        models, source_noise=False, settings=EngineSettings(flow_backend=kind.partition("+")[0], slots=8)
    ) as engine:
        handles = [engine.submit(stream(given(40, voice=one))) for one in (VOICE, MUTE)]
        for handle, wave in zip(handles, wanted, strict=True):
            assert relative_error(joined(handle), wave) < 0.05
        broken = inject(monkeypatch, engine.stages.flow.path.estimator, "run", RuntimeError("broken"))
        broken.most_rows = 1
        with pytest.raises(StageFailed, match="RuntimeError"):
            engine.submit(offline(given(20))).result()
        assert relative_error(joined(engine.submit(stream(given(40)))), wanted[0]) < 0.05


@pytest.mark.parametrize("kind", ["onnx", "jit", "aoti"])
@pytest.mark.parametrize("generation", ["v2", "v3"])
def test_a_missing_file_is_named(models, models_v3, kind, generation):
    with pytest.raises(
        CheckpointError, match=rf"flow_backend: flow\.decoder\.estimator\.fp32\..* `vivavoce export {kind}"
    ):
        external_flow({"v2": models, "v3": models_v3}[generation], EngineSettings(flow_backend=kind.partition("+")[0]))


def test_what_is_for_later_generations_is_refused(models_v1):
    with pytest.raises(InvalidRequest, match="CosyVoice 1's flow runs on torch alone"):
        external_flow(models_v1, EngineSettings(flow_backend="onnx"))


def test_tensorrt_wants_cuda(models):
    with pytest.raises(InvalidRequest, match="tensorrt runs on CUDA devices alone"):
        external_flow(models, EngineSettings(flow_backend="tensorrt"))


def test_code_of_another_machine_is_run_on_the_users_word_only(models_of, records, tmp_path, monkeypatch):
    models, settings = models_of("jit", "v2"), EngineSettings(flow_backend="jit")
    external_flow(models, settings)
    monkeypatch.setenv("VIVAVOCE_HOME", str(tmp_path / "elsewhere"))
    with pytest.raises(CheckpointError, match=r"fp32\.cpu\.zip in .* holds code, .* --trust-model-code") as refused:
        external_flow(models, settings)
    assert "\n" not in str(refused.value)
    assert external_flow(models, EngineSettings(flow_backend="jit", trust_model_code=True)).estimator.run.most_rows == 1
    assert records.stat().st_mode & 0o077 == 0


def test_a_changed_file_of_code_is_refused(models_of, tmp_path):
    models = models_of("jit", "v2")
    folder = tmp_path / "changed"
    shutil.copytree(models.folder, folder)
    with (folder / "flow.decoder.estimator.fp32.cpu.zip").open("ab") as file:
        file.write(b"\0")
    changed = replace(models, folder=folder)
    with pytest.raises(CheckpointError, match="holds code"):
        external_flow(changed, EngineSettings(flow_backend="jit"))
    (folder / "flow.decoder.estimator.fp32.cpu.zip").write_bytes(b"no zip")
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        external_flow(changed, EngineSettings(flow_backend="jit", trust_model_code=True))


def test_an_official_onnx_file_is_run(models_of, tmp_path):
    """Without our input its batch is of two, and streams attend to all that is there."""
    from vivavoce_runtimes.estimators import OPTIONAL_ENDS

    models = models_of("onnx", "v2")
    path = models.folder / "flow.decoder.estimator.fp32.onnx"
    assert path.read_bytes().endswith(OPTIONAL_ENDS)
    import onnx

    model = onnx.load(path)
    (ends,) = (one for one in model.graph.input if one.name == "attention_ends")
    model.graph.input.remove(ends)
    for one in model.graph.input:
        one.type.tensor_type.shape.dim[0].dim_value = 2
    folder = tmp_path / "official"
    folder.mkdir()
    onnx.save(model, folder / path.name)
    official = replace(models, folder=folder)
    stage = FlowStage(models, state_bytes=0, external=external_flow(official, EngineSettings(flow_backend="onnx")))
    own = FlowStage(models, state_bytes=0)
    whole, wanted = (say(one, one.open(voice(9)), speech(60), 60, AttentionMode.FULL) for one in (stage, own))
    check(whole, wanted)
    blocks, ours = (say(one, one.open(voice(9)), speech(60), 60) for one in (stage, own))
    assert (blocks - ours).abs().max() > 1e-2


def test_an_official_encoder_is_run_where_there_is_no_estimator(models_of, monkeypatch, tmp_path):
    """It attends to all, or by the official grid: a stream of blocks of our own takes the grid."""
    models, name = models_of("jit+encoder", "v2"), "flow.encoder.fp32.zip"
    shutil.copy(models.folder / name, tmp_path)
    foreign = external_flow(replace(models, folder=tmp_path), EngineSettings(flow_backend="jit"))
    assert foreign.estimator is None
    monkeypatch.setattr(foreign.encoder, "_exact", False)
    stage, own = FlowStage(models, state_bytes=0, external=foreign), FlowStage(models, state_bytes=0)
    for attention, ahead in ((AttentionMode.FULL, 0), (AttentionMode.FULL, 2), (AttentionMode.GRID, 3)):
        made, wanted = (
            say(one, one.open(voice(20)), speech(40 + ahead), 40, AttentionMode.FULL if ahead == 2 else attention)
            for one in (stage, own)
        )
        if ahead == 2:  # half a lookahead is left out
            assert made.shape == wanted.shape
        else:
            check(made, wanted)


def test_the_encoder_answers_the_official_tools(models_of):
    """They give it the tokens, what follows them, and whether it streams."""
    models = models_of("jit+encoder", "v2")
    network, script = models.flow.encoder, external_flow(models, EngineSettings(flow_backend="jit")).encoder._script
    xs = torch.randn(1, 53, network.config.input_size)
    with torch.inference_mode():
        h, mask = script(xs[:, :50], torch.tensor([50]), context=xs[:, 50:], streaming=True)
        wanted, _ = encode_embedded(network, xs, torch.tensor([53]), torch.tensor([False]), True)
        check(network.mu_projection(h), wanted[:, :100])
        assert mask.shape == (1, 1, 100)
        assert mask.all()
        h, mask = script(xs.expand(2, -1, -1), torch.tensor([53, 9]))
        lengths, final = torch.tensor([53, 9]), torch.tensor([True, True])
        wanted, _ = encode_embedded(network, xs.expand(2, -1, -1), lengths, final, False)
        check(network.mu_projection(h) * mask.transpose(1, 2), wanted * mask.transpose(1, 2))
        assert mask.sum(dim=-1).tolist() == [[106], [18]]


def test_code_for_another_device_is_told(models_of, tmp_path):
    models, name = models_of("jit+encoder", "v2"), "flow.encoder.fp32.zip"
    shutil.copy(models.folder / "flow.decoder.estimator.fp32.cpu.zip", tmp_path / name)
    with pytest.raises(CheckpointError, match=r"flow\.encoder\.fp32\.zip in .* does not run here"):
        external_flow(replace(models, folder=tmp_path), EngineSettings(flow_backend="jit"))


def test_an_onnxruntime_without_cuda_is_refused_at_once(tmp_path):
    with pytest.raises(MissingDependency, match="knows no CUDA; pip install onnxruntime-gpu"):
        onnx_estimator(tmp_path / "any.onnx", torch.device("cuda"))
