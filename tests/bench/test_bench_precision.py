"""The report on eight bits runs, and finds the errors that are there."""

import json

import pytest
import torch

pytest.importorskip("triton")

from benchmarks.gpu import errors, precision, stages
from benchmarks.gpu.eight_bits import emulate, rounded_groups
from tests.eight_bit_interpreter import eight_bit_interpreter
from tests.fast_flow import coarse_cuts, with_small_flow
from vivavoce.engine.precision import Precision
from vivavoce.engine.request import Conditioning
from vivavoce.models.build import build_models
from vivavoce.models.kernels.lm_decode_attention import Dealing

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="tensors on a CPU, in Triton's interpreter"),
    pytest.mark.filterwarnings("ignore:All-NaN slice"),
]


@pytest.fixture(autouse=True, scope="module")
def quick():
    with eight_bit_interpreter(), coarse_cuts():
        yield


@pytest.fixture(scope="module")
def small(models):
    return with_small_flow(models)


def test_errors_of_the_language_model(models, monkeypatch):
    monkeypatch.setattr("vivavoce.models.lm.fused.dealing_for", lambda _: Dealing(32, 1, 2, 2))
    said = errors.Said.by(models, sequences=2, text=3, steps=2)
    plain, eight = (errors.language(models, said, int8=int8) for int8 in (False, True))
    assert plain["logits_error"] < 1e-4
    assert plain["same_best_share"] == 1.0
    assert 1e-3 < eight["logits_error"] < 0.1


def test_errors_of_the_flow(small):
    nobody = Conditioning(torch.ones(192))
    wanted = errors.mel(small, nobody, 4, kernels=False)
    found = errors.mel_error(errors.mel(small, nobody, 4, kernels=True, fp8=True), wanted)
    assert errors.mel_error(wanted, wanted)["mel_error"] == 0
    assert 1e-4 < found["mel_error"] < 0.1


def test_times_stand_beside_each_other(models, monkeypatch):
    monkeypatch.setattr(stages, "decode", lambda models, voice, slots, kernels, int8: [{"step_ms": 2 - int8}])
    monkeypatch.setattr(stages, "flow", lambda models, voice, cases, kernels, fp8: [{"tflops": 2 - fp8}])
    found = list(precision.stage_times(models, (1,), ()))
    assert found == [
        {"16bit/step_ms": 2}, {"int8_lm/step_ms": 1}, {"16bit/tflops": 2}, {"fp8_flow/tflops": 1},
    ]  # fmt: skip


def test_the_table_has_a_column_for_each_option():
    lines = precision.table({"device": "cpu", "16bit/mel_error": 0.001234, "fp8_flow/mel_error": 0.0234}).splitlines()
    assert lines[0] == "| figure | 16bit | int8_lm | fp8_flow | both |"
    assert lines[2] == "| mel_error | 0.001234 | – | 0.0234 | – |"


def test_words_of_all_options_are_written(tmp_path, monkeypatch):
    heard = []

    def words(model, chosen, sentences, jobs):
        heard.append((chosen, sentences))
        return {"wer_closed": len(heard) / 100}

    monkeypatch.setattr(precision, "words", words)
    out = tmp_path / "precision.json"
    precision.main(["--only", "heard", "--mini", "--sentences", "2", "--out", str(out)])
    assert [chosen for chosen, _ in heard] == list(precision.OPTIONS.values())
    assert len({sentences for _, sentences in heard}) == 1
    assert json.loads(out.read_text())["both/wer_closed"] == 0.04


def test_words_alone_need_the_model_that_is_heard(tmp_path, capsys):
    with pytest.raises(SystemExit):
        precision.main(["--only", "heard", "--out", str(tmp_path / "precision.json")])
    assert "add --mini" in capsys.readouterr().err


def test_nothing_is_rounded_unless_asked(babble):
    exact, same, both = (build_models(babble, torch.device("cpu")) for _ in range(3))
    emulate(same, Precision())
    emulate(both, precision.OPTIONS["both"])
    for name, parameter in exact.lm.named_parameters():
        assert torch.equal(same.lm.get_parameter(name), parameter)
        assert torch.equal(both.lm.get_parameter(name), parameter) != ("_proj.weight" in name)
    x = torch.randn(2, 5, 64, generator=torch.Generator().manual_seed(0))
    block = [one.flow.estimator.down.blocks[0].feed_forward for one in (exact, same, both)]
    found = [one(x) for one in block]
    assert torch.equal(found[0], found[1])
    assert 1e-3 < float((found[2] - found[0]).norm() / found[0].norm()) < 0.1


def test_groups_are_rounded_on_their_own():
    x = torch.tensor([[1.0, 0.3, 1000.0, 7.0, 5e-4]])
    made = rounded_groups(x, 2)
    assert made.shape == x.shape
    torch.testing.assert_close(made, x, rtol=1 / 16, atol=0)
    assert float(rounded_groups(x, 5)[0, 4]) == 0
