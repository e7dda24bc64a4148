import json
import shutil
import wave

import pytest
import torch
import typer
from typer.testing import CliRunner

from training.loop import Budget
from training.vocoder.command import vocoder
from training.vocoder.run import Scale, train_vocoder
from training.vocoder.weights import load_official, official_state, save_official
from vivavoce.checkpoint.babble_weights import babble_state
from vivavoce.errors import CheckpointError
from vivavoce.models.build import build_models
from vivavoce.models.vocoder.hift import HiFT

CPU = torch.device("cpu")
TINY = Scale(batch=1, period_channels=(4, 8), resolution_channels=4)


def entries(folder):
    return [json.loads(line) for line in (folder / "vocoder.log.jsonl").read_text().splitlines()]


def test_a_training_leaves_a_vocoder_and_is_continued(corpus, config, tmp_path, monkeypatch):
    monkeypatch.setattr("training.loop.AVERAGE_EVERY", 1)
    hift = train_vocoder(corpus.folder, tmp_path, Budget(steps=4), CPU, config, scale=TINY)
    assert hift == tmp_path / "hift.pt"
    log = entries(tmp_path)
    assert log[0]["step"] == 0
    assert log[1]["step"] == 4
    assert {"stft", "mel", "pitch", "adversary", "features"} < set(log[1])
    assert {"valid_stft", "valid_mel", "valid_pitch_percent", "valid_voicing_percent"} < set(log[2])
    load_official(HiFT(config.vocoder), hift)
    names = {path.name for path in (tmp_path / "samples").iterdir()}
    assert names == {"0.real.wav", "0.vocoded.wav"}
    with wave.open(str(tmp_path / "samples" / "0.vocoded.wav")) as file:
        assert (file.getframerate(), file.getnframes()) == (24_000, 9_600)

    first = hift.read_bytes()
    train_vocoder(corpus.folder, tmp_path, Budget(steps=5), CPU, config, scale=TINY)
    assert entries(tmp_path)[-1]["step"] == 5
    assert hift.read_bytes() != first

    tuned = tmp_path / "tuned"
    train_vocoder(corpus.folder, tuned, Budget(steps=1), CPU, config, scale=TINY, init=tmp_path / "vocoder.state.pt")
    assert "adversary" in entries(tuned)[1]
    again = tmp_path / "again"
    train_vocoder(corpus.folder, again, Budget(steps=1), CPU, config, scale=TINY, init=hift)
    assert "adversary" not in entries(again)[1]
    ours, theirs = (HiFT(config.vocoder) for _ in range(2))
    load_official(ours, hift)
    load_official(theirs, again / "hift.pt")
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert (one - other).abs().max() < 1e-3 * max(1, one.abs().max())


def test_the_export_is_what_the_loader_reads(babble, models, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(babble, folder)
    torch.manual_seed(0)
    trained = HiFT(models.config.vocoder).eval().requires_grad_(False)
    state = official_state(trained.state_dict())
    official = babble_state("hift", 0)
    assert {key: tensor.shape for key, tensor in state.items()} == {
        key: tensor.shape for key, tensor in official.items()
    }
    save_official(trained.state_dict(), folder / "hift.pt")
    loaded = build_models(folder, CPU).vocoder
    for (name, one), other in zip(trained.named_parameters(), loaded.parameters(), strict=True):
        torch.testing.assert_close(other, one, rtol=2e-3, atol=1e-6, msg=name)
    mel = torch.randn(1, 80, 20, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(loaded(mel, None), trained(mel, None), rtol=0, atol=2e-3)


def test_weights_of_another_size_are_refused(babble, config):
    with pytest.raises(CheckpointError, match="wrong shape"):
        load_official(HiFT(config.vocoder), babble)


def test_the_command_trains(corpus, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr("training.vocoder.command.train_vocoder", lambda *args, **more: calls.append((args, more)))
    app = typer.Typer()
    app.command()(vocoder)
    arguments = [str(corpus.folder), str(tmp_path), "--seconds", "5", "--piece-seconds", "2", "--device", "cpu"]
    result = CliRunner().invoke(app, [*arguments, "--seed", "3"])
    assert result.exit_code == 0, result.output
    ((folder, out, budget, device, sizes), options) = calls[0]
    assert (folder, out, device) == (corpus.folder, tmp_path, CPU)
    assert budget == Budget(seconds=5.0, piece_seconds=2.0)
    assert sizes.vocoder.base_channels == 160
    assert options == {"seed": 3, "init": None, "flow_mels": None}


def test_what_the_user_can_mend_is_one_line(tmp_path):
    app = typer.Typer()
    app.command()(vocoder)
    # Wide enough for the path: a name that is broken in two is not found.
    result = CliRunner(env={"COLUMNS": "400"}).invoke(
        app, [str(tmp_path), str(tmp_path), "--steps", "1", "--device", "cpu"]
    )
    assert result.exit_code == 2
    assert "wav.npy" in result.output
