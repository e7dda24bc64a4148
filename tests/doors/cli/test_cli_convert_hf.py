"""`convert` as a group: the voice conversion still, and `convert hf`."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_harness import Run, read_wav

from vivavoce.export.hf.reread import read_merged


def test_the_groups_help_shows_all_commands_and_examples(run: Run) -> None:
    for flag in ("--help", "-h"):
        text = run("convert", flag).text
        assert text.startswith("Usage: vivavoce convert [OPTIONS]")
        for line in (
            "SOURCE",
            "--voice",
            "Commands:",
            "vivavoce convert me.wav",
            "vivavoce convert hf --model",
            "  trtllm  ",
        ):
            assert line in text
        assert "recording\n" not in text.split("Commands:")[1]
    text = run("convert", "hf", "--help").text
    assert text.startswith("Usage: vivavoce convert hf [OPTIONS]")
    assert "Examples:" in text


def test_a_recording_of_any_name_is_converted(run: Run, recording: Path) -> None:
    Path("recording").write_bytes(recording.read_bytes())
    Path("hf").write_bytes(recording.read_bytes())
    for source in ("recording", "./hf"):
        assert run("convert", source, "--voice", "babble-b", "-o", "b.wav").code == 0
        assert len(read_wav(Path("b.wav"))) == 1.2 * 24_000
    assert run("convert", "-q", "--voice", "babble-b", "-o", "c.wav", "./hf").code == 0


def test_usage_errors_name_the_command_that_was_meant(run: Run) -> None:
    assert run("convert").err == "error: Missing argument 'SOURCE'.\ntry `vivavoce convert --help`\n"
    assert run("convert", "--nope").err.endswith("try `vivavoce convert --help`\n")
    assert run("convert", "hf").err == "error: Missing option '--out' / '-o'.\ntry `vivavoce convert hf --help`\n"


def test_a_model_is_written_and_reported(run: Run) -> None:
    result = run("convert", "hf", "--out", "merged", "--dtype", "bfloat16")
    assert (result.code, result.out) == (0, b"")
    first, second = result.err.splitlines()
    assert first.startswith("merged: 6,912 ids (276 of text), bfloat16, ")
    assert second.startswith("note: the speech head's bias is in embedding_bias.npy")
    assert read_merged(Path("merged"))[0].text_vocab_size == 276


def test_an_earlier_export_is_replaced_by_force_alone(run: Run) -> None:
    assert run("convert", "hf", "--out", "merged", "-q").err == ""
    assert "merged is not empty; add --force" in run("convert", "hf", "--out", "merged").error
    assert run("convert", "hf", "--out", "merged", "--force", "--dtype", "float16").code == 0
    config, state = read_merged(Path("merged"))
    assert str(state["norm.weight"].dtype) == "torch.float16"
    assert config.num_layers == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--out", "o", "--dtype", "int8"), "dtype: 'int8' is unknown; use auto or one of float32"),
        (("--out", "o", "--model", "nope"), "'nope' is neither a folder nor a known model"),
        (("--out", "o", "--variant", "rl"), "variant: 'rl' is not in"),
        (("--out", "file"), "out: file is no folder"),
    ],
)
def test_refused(run: Run, arguments: tuple[object, ...], message: str) -> None:
    Path("file").write_text("")
    assert message in run("convert", "hf", *arguments).error
    assert not Path("o").exists()
