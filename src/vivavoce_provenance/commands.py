"""The commands `vivavoce detect` and `vivavoce sign`, for marks and manifests that identify synthetic speech."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from vivavoce.cli.console import Reporter, print_json, print_table
from vivavoce.cli.flags import REQUIRED, JsonOption, QuietOption, argument, flag

EXAMPLES = ("vivavoce detect call.mp3", "vivavoce detect *.wav --json")
SIGN_EXAMPLES = ("vivavoce sign hello.wav --certificate chain.pem --key key.pem",)


def detect(
    files: list[Path] = argument("Recordings of any format, up to 10 minutes each.", "FILE", default=REQUIRED),
    json: JsonOption = False,
) -> None:
    """Tell whether recordings carry the mark that vivavoce puts into its speech.

    The mark is found in 5 s of speech, also after compression or over a telephone; with less than 3 s it
    is not looked for. "not found" does not prove that a person spoke: other programs set no such mark. With the extra
    c2pa it also reports a signed manifest in the file.
    """
    with Reporter().working("listening …"):
        from vivavoce.frontend.audio.decode import decode_audio
        from vivavoce_provenance.detector import detect as detect_mark
        from vivavoce_provenance.manifest import is_installed, read_manifest

        found = {}
        manifests = {str(file): read_manifest(file) for file in files} if is_installed() else {}
        for file in files:
            audio = decode_audio(file, field=f"recording {str(file)!r}")
            found[str(file)] = detect_mark(audio.samples, audio.sample_rate)
    if json:
        told = {name: {"manifest": one and asdict(one)} for name, one in manifests.items()}
        print_json(
            [{"file": name, "verdict": one.verdict, **asdict(one), **told.get(name, {})} for name, one in found.items()]
        )
        return
    rows = [
        (one.verdict, f"{one.score:.1f}", f"{one.threshold:.1f}", f"{one.seconds:.1f} s", name)
        for name, one in found.items()
    ]
    print_table(rows, ("mark", "score", "needed", "sound", "file"))
    for name, manifest in manifests.items():
        if manifest is not None:
            state = "intact" if manifest.intact else f"broken ({', '.join(manifest.problems)})"
            kind = "synthetic speech" if manifest.synthetic else "not marked as synthetic speech"
            print(f"{name}: manifest {state}, {kind}, signed by {manifest.signer!r} with {manifest.program or '?'}")


def sign(
    files: list[Path] = argument("wav, mp3, flac, m4a or m4b; each is replaced.", "FILE", default=REQUIRED),
    certificate: Path = flag("Chain of certificates in PEM, the signer's own first.", "FILE", default=REQUIRED),
    key: Path = flag("The signer's private key in PEM, without a password.", "FILE", default=REQUIRED),
    quiet: QuietOption = False,
) -> None:
    """Put a signed manifest into audio files that says: a machine made this speech (C2PA).

    Programs that know C2PA show it, and tell whether the file was changed afterwards. Needs the extra c2pa.
    """
    from vivavoce_provenance.manifest import sign as sign_file
    from vivavoce_provenance.manifest import signer_of

    signer = signer_of(certificate, key)
    for file in files:
        sign_file(file, signer)
        Reporter(quiet).report(f"{file}: signed")
