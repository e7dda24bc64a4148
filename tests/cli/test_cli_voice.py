"""`voice`: kept, listed, shown, removed, brought in and taken out; networks load for `add` only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.cli.cli_harness import Run
from tests.fleet.redis_process import RedisProcess, running_redis
from vivavoce.checkpoint.spk2info import read_spk2info
from vivavoce.frontend.voices.folder_store import FolderStore
from vivavoce.frontend.voices.voice import Voice


@pytest.fixture
def kept(run: Run, recording: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A store with the voice `me`, and no model that could load from then on."""
    added = run(
        "voice add me",
        recording,
        "--transcript",
        "some\nwords",
        "--description",
        "mine",
        "--licence",
        "CC0",
        "--consent",
        "All but politics.",
        "--consent-by",
        "Anna A.",
    )
    assert added.code == 0
    assert "voice 'me' is kept (1.2 s of speech); use it with --voice me" in added.err.splitlines()
    assert "has only 0.9 s of speech; record 3 to 10 s" in added.err

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a network loads")

    monkeypatch.setattr("vivavoce.models.build.build_models", fail)
    monkeypatch.setattr("vivavoce.api.load", fail)
    return run


def test_recordings_are_checked_without_a_model(run: Run, recording: Path, no_loading: None) -> None:
    good = Path(__file__).parents[2] / "docs" / "samples" / "warm.mp3"
    result = run("voice check", recording, good)
    assert result.code == 0
    assert [line.split()[0] for line in result.text.splitlines()] == [
        "file",
        str(recording),
        str(good),
        f"{recording}:",
    ]
    assert "has only 0.9 s of speech; record 3 to 10 s" in result.text
    told = json.loads(run("voice check", good, "--json", "--transcript", "No.").text)
    assert (told[0]["file"], told[0]["clipped"], told[0]["cut_s"]) == (str(good), 0.0, None)
    assert ["too few" in one for one in told[0]["warnings"]] == [True]
    refused = run("voice check", Path(__file__))
    assert refused.code == 2
    assert len(refused.err.splitlines()) == 1


@pytest.mark.slow
def test_other_words_than_the_transcripts_are_heard(run: Run) -> None:
    pytest.importorskip("pocketsphinx")
    good, listening = (
        Path(__file__).parents[2] / "docs" / "samples" / "warm.mp3",
        ("--listen", "--json", "--transcript"),
    )
    said = "The rain has stopped and the garden smells of mint. Shall we take our tea outside?"
    (right,) = json.loads(run("voice check", good, *listening, said).text)
    assert "the rain has stopped" in right["heard"]
    assert right["warnings"] == []
    other = "My brother plays the guitar whenever it rains outside."
    (wrong,) = json.loads(run("voice check", good, *listening, other).text)
    assert ["seems to contain other words" in one for one in wrong["warnings"]] == [True]
    refused = run("voice check", good, *listening, "雨停了，花园里有薄荷的味道")
    assert (refused.code, "knows English only" in refused.err) == (2, True)


def test_an_empty_store_says_how_to_fill_it(run: Run) -> None:
    result = run("voice list")
    assert result.code == 0
    assert "vivavoce voice add" in result.err


@pytest.mark.slow
def test_built_in_voices_are_listed_and_shown(run: Run) -> None:
    """With what their model's card says of them, the default voice first; babble's say nothing."""
    warm, *others = run("voice list --model mini").text.splitlines()[1:]
    assert warm.startswith("warm ")
    assert warm.endswith("built in, en, female, a warm woman, American")
    assert [line.split()[0] for line in others] == ["calm", "bright", "clear", "gentle", "deep", "steady", "lively"]
    shown = run("voice show bright").text
    for part in ("female", "a bright young woman", "Do you remember", "vivavoce speak --voice bright --model mini"):
        assert part in shown, part
    assert json.loads(run("voice show bright --json").text)["kind"] == "built_in"
    assert "is not registered" in run("voice show nix").error
    assert run("speak Hi. --model mini -o default.wav").code == 0
    assert run("speak Hi. --model mini --voice warm -o warm.wav").code == 0
    assert Path("default.wav").read_bytes() == Path("warm.wav").read_bytes()


def test_list_has_name_seconds_words_and_model(kept: Run) -> None:
    head, line, *built_in = kept("voice list").text.splitlines()
    assert head.split() == ["name", "speech", "transcript", "model", "about"]
    assert line.split() == ["me", "1.2", "s", "some", "words", "babble", "with", "consent,", "mine"]
    assert all("built in" in one for one in built_in)


def test_a_voice_of_cosyvoice_1_is_as_long_as_its_recording(run: Run, home: Path) -> None:
    """Its 50 tokens a second have fewer than two frames of mel each."""
    tokens, mel = torch.zeros(60, dtype=torch.int32), torch.zeros(112, 80)
    FolderStore(home / "voices").save(Voice(torch.ones(192), "f", "old", speech_tokens=tokens, mel=mel))
    assert run("voice list").text.splitlines()[1].split()[:3] == ["old", "1.2", "s"]


def test_list_knows_other_models_and_skips_damage(kept: Run, home: Path) -> None:
    (home / "models" / "babble-1").unlink()
    damaged = (home / "voices" / "me.safetensors").read_bytes()[:-1]
    (home / "voices" / "you.safetensors").write_bytes(damaged)
    result = kept("voice list")
    assert result.code == 0
    assert "another one" in result.text
    assert not any(line.startswith("you ") for line in result.text.splitlines())
    assert result.err.startswith("note: voice: 'you'")


def test_list_names_the_packages_own_model(run: Run, recording: Path) -> None:
    added = run("voice add me --model mini", recording, "--text", "some words")
    assert added.code == 0
    assert "note: model mini is" in added.err
    assert "note: model" not in run("voice add you --model mini", recording).err, "once on a machine"
    assert [line.split()[-1] for line in run("voice list").text.splitlines()[1:3]] == ["mini", "mini"]


def test_lists_are_json_where_wanted(kept: Run, recording: Path) -> None:
    listed, *built_in = json.loads(kept("voice list --json").text)
    assert {one["kind"] for one in built_in} == {"built_in"}
    assert listed == json.loads(kept("voice show me --json").text)
    assert listed | {"fingerprint": ""} == {
        **{"name": "me", "speech_s": 1.2, "transcript": "some\nwords", "description": "mine", "licence": "CC0"},
        **{"model": "babble", "fingerprint": "", "recording_bytes": recording.stat().st_size},
        **{"kind": "stored", "language": "", "sex": ""},
        **{"consent": "All but politics.", "consent_by": "Anna A.", "consent_at": listed["consent_at"]},
        "adapter": "",
    }


def test_a_transcript_that_cannot_be_read_is_told_from_the_text(run: Run, recording: Path) -> None:
    for option in ("--transcript", "--prompt-text"):
        error = run("speak Hi. --model mini --voice", recording, option, "希望").error
        assert error.startswith("error: transcript: the model does not know the letters '希'")


def test_a_consent_names_what_is_wrong(run: Run, recording: Path, no_loading: None) -> None:
    error = run("voice add me", recording, "--consent", "x" * 2_001).error
    assert error.startswith("error: consent: 'xxx")
    assert "has 2001 characters, more than the limit of 2000; shorten it" in error
    assert run("voice add me", recording, "--consent-by", "Anna").error.startswith("error: consent: is empty; say in ")


def test_show_tells_everything(kept: Run) -> None:
    text = kept("voice show me").text
    for part in (
        "some words",
        "All but politics.",
        "Anna A.",
        "mine",
        "CC0",
        "1.2 s",
        "115 kB",
        "babble",
        "30 speech tokens",
        "60 × 80 mel",
        "embedding of 192",
    ):
        assert part in text, part


def test_a_kept_voice_speaks(run: Run, recording: Path) -> None:
    assert run("voice add me", recording, "--text", "some words", "--voices", "mine").code == 0
    assert run("speak Hi. -v me --voices mine -o name.wav").code == 0
    assert run("speak Hi. -v", recording, "--transcript", "some words", "-o", "file.wav").code == 0
    assert Path("name.wav").read_bytes() == Path("file.wav").read_bytes()
    assert "'me' is not registered" in run("speak Hi. -v me").error


def test_a_kept_voice_speaks_with_another_model_too(run: Run, recording: Path, home: Path, babble: Path) -> None:
    assert run("voice add me", recording, "--text", "some words", "--model", "mini").code == 0
    assert run("speak Hi. -v me -o name.wav").code == 0
    assert run("speak Hi. -v", recording, "--transcript", "some words", "-o", "file.wav").code == 0
    assert Path("name.wav").read_bytes() == Path("file.wav").read_bytes()
    assert len(FolderStore(home / "voices").load("me").others) == 1
    assert run("voice list --model", babble).text.splitlines()[1].split()[-1] == "babble"
    assert run("speak Hi. -v me --model mini -o mini.wav").code == 0


def test_a_taken_name_is_refused_before_extraction(kept: Run, recording: Path) -> None:
    assert "--replace" in kept("voice add me", recording).error


def test_a_voice_is_replaced(run: Run, recording: Path, home: Path) -> None:
    for text in ("old words", "new words"):
        assert run("voice add me", recording, "--text", text, "--replace").code == 0
    assert FolderStore(home / "voices").load("me").transcript == "new words"


def test_remove_asks_and_obeys(kept: Run) -> None:
    assert "--yes" in kept("voice remove me", stdin=b"").error
    assert kept("voice remove me --yes").err == "voice 'me' is removed\n"
    assert "no voice is stored" in kept("voice list").err


@pytest.mark.parametrize(("answer", "code", "left"), [(True, 0, []), (False, 1, ["me"])])
def test_remove_takes_an_answer(
    kept: Run, home: Path, monkeypatch: pytest.MonkeyPatch, answer: bool, code: int, left: list[str]
) -> None:
    monkeypatch.setattr("typer.confirm", lambda *_, **__: answer)
    assert kept("voice remove me").code == code
    assert FolderStore(home / "voices").names() == left


def test_export_and_import_are_inverse(kept: Run, home: Path) -> None:
    before = FolderStore(home / "voices").load("me")
    assert kept("voice export me -o me.pt").err == "me.pt: me\n"
    assert list(read_spk2info(Path("me.pt"))) == ["me"]
    folder = home / "models" / "babble-1"
    assert "stored already" in kept("voice import me.pt --model", folder).error
    assert kept("voice import me.pt --voices other --model babble-1").code == 2
    assert kept("voice import me.pt --voices other --model", folder).err == "kept: me\n"
    after = FolderStore(Path("other")).load("me")
    assert after.prompt_text == before.prompt_text
    assert after.fingerprint == before.fingerprint
    assert bool((after.mel == before.mel).all())


def test_an_import_of_reference_speech_needs_its_model(kept: Run) -> None:
    kept("voice export me -o me.pt")
    refused = kept("voice import me.pt --voices other")
    assert refused.error == "error: voice: 'me' holds reference speech; name its model with --model\n"
    assert not Path("other").exists()


def test_import_takes_chosen_names(kept: Run, babble: Path, home: Path) -> None:
    speakers = babble / "spk2info.pt"
    assert "it holds babble-a, babble-b" in kept("voice import", speakers, "--only", "nobody").error
    assert kept("voice import", speakers, "--only", "babble-b").err == "kept: babble-b\n"
    assert FolderStore(home / "voices").names() == ["babble-b", "me"]
    assert kept("voice list").text.splitlines()[1].split() == ["babble-b", "–", "any"]


def test_an_import_with_a_taken_name_changes_nothing(kept: Run, babble: Path, home: Path) -> None:
    kept("voice import", babble / "spk2info.pt", "--only", "babble-b")
    assert "babble-b stored already" in kept("voice import", babble / "spk2info.pt").error
    assert FolderStore(home / "voices").names() == ["babble-b", "me"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisProcess]:
    with running_redis(tmp_path / "redis") as process:
        yield process


def test_voices_in_a_redis(run: Run, babble: Path, server: RedisProcess, home: Path) -> None:
    place = ["--voices", server.url]
    assert run("voice import", babble / "spk2info.pt", *place).code == 0
    assert run("voice list", *place).text.split("\n")[1].startswith("babble-a")
    assert "embedding of 192" in run("voice show babble-b", *place).text
    assert run("voice remove babble-a --yes", *place).code == 0
    assert run("voice export babble-b -o b.pt", *place).code == 0
    assert not (home / "voices").exists()
    server.kill()
    away = run("voice list", *place)
    assert away.code == 2
    assert "is away since" in away.err


def test_other_addresses_are_one_line(run: Run) -> None:
    result = run("voice list --voices http://user:hunter2@host/voices")
    assert result.code == 2
    assert "http:// cannot hold voices; give a folder's path, or a URL with redis:// or rediss://" in result.err
    assert "hunter2" not in result.err
