"""docs/troubleshooting.md has every error code, docs/from-cosyvoice.md shows calls that work."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from shown import PAGES, ROOT

import vivavoce
from vivavoce import errors

PAGE, MIGRATION = PAGES["docs/troubleshooting.md"], PAGES["docs/from-cosyvoice.md"].partition("## Python classes")[0]


def test_every_error_has_its_row() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| (\w+) \| (\d+) \| .{20,} \|.*\|$", PAGE, re.MULTILINE)
    classes = [one for _, one in inspect.getmembers(errors, inspect.isclass) if issubclass(one, errors.VivavoceError)]
    known = [(one.code, str(one.http_status), one.grpc_status, str(one.exit_code)) for one in classes]
    assert sorted(rows) == sorted(known)


def test_every_other_code_of_the_sources_has_one() -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    given = set(
        re.findall(r'^ +code = "(\w+)"|\bcode, message = "(\w+)"|message, "(\w+_error)"', sources, re.MULTILINE)
    )
    codes = {one for found in given for one in found if one}
    assert {"server_refused", "request_timeout", "not_found", "internal_error"} <= codes
    assert not [code for code in codes if f"`{code}`" not in PAGE]


def test_what_it_tells_to_look_at_is_there() -> None:
    everything = "".join(text for page, text in PAGES.items() if page != "docs/troubleshooting.md")
    for setting in re.findall(r"`((?:server|engine|model)\.\w+)`", PAGE):
        assert f"`{setting}`" in everything, setting
    assert (ROOT / "docs" / "triton.md").is_file()


def test_calls_to_migrate_to_run(babble: Path, tmp_path: Path) -> None:
    recording = ROOT / "tests" / "data" / "audio" / "speech_24k_float.wav"
    calls = re.findall(r"^\| .* \| `((?:tts|speech)\..*?\))`", MIGRATION, re.MULTILINE)
    assert len(calls) >= 9
    with vivavoce.load(babble, device="cpu", voices=tmp_path / "voices") as tts:
        speech = tts.speak("Hello.", sampling=vivavoce.SamplingParams(max_ratio=2.0))
        names = {"text": "Hi.", "prompt_text": "What I say.", "instruct_text": "Slowly.", "spk_id": tts.voices()[0]}
        names |= {"tts": tts, "speech": speech, "prompt_wav": recording, "source_wav": recording, "id": "anna"}
        for call in calls:
            eval(call, {**names, "file": tmp_path / "hello.wav"})
        assert "anna" in tts.voices()
    assert (tmp_path / "hello.wav").stat().st_size > 0


def test_the_calls_are_those_of_the_official_classes() -> None:
    from vivavoce import compat

    officials = set(re.findall(r"^\| `(\w+)\(", MIGRATION, re.MULTILINE)) - {"set_all_random_seed", "snapshot_download"}
    assert len(officials) >= 7
    assert all(hasattr(compat.CosyVoice2, one) or hasattr(compat.CosyVoice, one) for one in officials)
