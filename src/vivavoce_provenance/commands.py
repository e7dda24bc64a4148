"""`vivavoce detect`: tell which recordings carry the mark of synthetic speech."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from vivavoce.cli.console import Reporter, print_json, print_table
from vivavoce.cli.flags import REQUIRED, JsonOption, argument

EXAMPLES = ("vivavoce detect call.mp3", "vivavoce detect *.wav --json")


def detect(
    files: list[Path] = argument("Recordings of any format, up to 10 minutes each.", "FILE", default=REQUIRED),
    json: JsonOption = False,
) -> None:
    """Tell whether recordings carry the mark that vivavoce puts into its speech.

    The mark is found in 5 s of speech, also after compression or over a telephone; with less than 3 s it
    is not looked for. "not found" does not prove that a person spoke: other programs set no such mark.
    """
    with Reporter().working("listening …"):
        from vivavoce.frontend.audio.decode import decode_audio
        from vivavoce_provenance.detector import detect as detect_mark

        found = {}
        for file in files:
            audio = decode_audio(file, field=f"recording {str(file)!r}")
            found[str(file)] = detect_mark(audio.samples, audio.sample_rate)
    if json:
        print_json([{"file": name, "verdict": one.verdict, **asdict(one)} for name, one in found.items()])
        return
    rows = [
        (one.verdict, f"{one.score:.1f}", f"{one.threshold:.1f}", f"{one.seconds:.1f} s", name)
        for name, one in found.items()
    ]
    print_table(rows, ("mark", "score", "needed", "sound", "file"))
