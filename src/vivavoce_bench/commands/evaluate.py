"""`vivavoce eval`: measure word errors, speaker similarity and sound quality of a model's speech."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from vivavoce.cli.console import Reporter
from vivavoce.cli.flags import JsonOption, QuietOption, flag
from vivavoce.cli.model import BackendChoice, ModelChoice, load_model, note_if_no_real_model
from vivavoce.cli.output import STDOUT
from vivavoce.cli.speak import SpeechManner
from vivavoce.errors import InvalidRequest
from vivavoce.version import __version__
from vivavoce_bench.commands.options import TranscriptsOption, named_voices, print_figures

if TYPE_CHECKING:
    from vivavoce.api import Vivavoce
    from vivavoce.frontend.text.text_front_end import TextFrontEnd
    from vivavoce.frontend.voices.voice import Voice
    from vivavoce_bench.evaluate import Case, Clip, Manner, Report
    from vivavoce_bench.evaluate.recogniser import RecogniserFactory
    from vivavoce_bench.evaluate.report import RecordingsFolder
    from vivavoce_bench.evaluate.speaking import Embed, VoiceLike

EXAMPLES = (
    "vivavoce eval --out report",
    "vivavoce eval --model CosyVoice2-0.5B --voice anna --voice ben --stream",
    "vivavoce eval --model CosyVoice2-0.5B --list seedtts_testset/en/meta.lst --limit 200",
    "vivavoce eval --audio report/utterances.tsv --control shuffled",
)
BUILT_IN_RECOGNISER = "pocketsphinx"
Say = Callable[[str], None]
_MOST_JOBS = 8
_UTTERANCES_PER_JOB = 8
"""Smallest number of utterances per recogniser process. Fewer are recognised faster than a process starts."""


@dataclass(frozen=True)
class EvaluationFlags:
    sentences: Path | None = flag("One sentence per line.  [default: 20 English sentences]", "FILE")
    list_: Path | None = flag("Lines as in seed-tts-eval: id|prompt text|prompt wav|text.", "FILE", "--list")
    audio: Path | None = flag(
        "Score recordings: a folder with one per sentence, or lines of recording, tab, text[, tab, voice].",
        "FOLDER|TABLE",
    )
    limit: int | None = flag("Use only this many sentences from the start.", "NUMBER", min=1)
    voice: list[str] | None = flag(
        "Voice; may be repeated.  [default: the model's voices, or stored voices if it has none]",
        "NAME|RECORDING",
        "-v",
    )
    transcript: TranscriptsOption = None
    mode: str | None = flag("zero_shot, cross_lingual, instruct or sft.  [default: by the voice]", "NAME")
    instructions: str | None = flag("Instruction how to speak.", "TEXT")
    seed: int = flag("Seed of the first sentence; each later sentence has the next seed.", "NUMBER", default=0)
    top_p: float | None = flag("Nucleus sampling: probability mass, 0 to 1.", "NUMBER")
    top_k: int | None = flag("Number of candidates in sampling, 1 or more.", "NUMBER")
    stream: bool = flag("Score streamed audio, and compare its joins with audio generated at once.", default=False)
    control: str | None = flag("Spoil the speech as a control: shuffled, wrong-text or reversed.", "NAME")
    recogniser: str = flag(
        "pocketsphinx, whisper, none, or MODULE:CALLABLE, which is imported and run.",
        "MODULE:CALLABLE",
        default=BUILT_IN_RECOGNISER,
    )
    whisper: str = flag(
        "Model of the recogniser whisper: a name that faster-whisper downloads, or a folder.",
        "NAME|FOLDER",
        default="base",
    )
    judges: str | None = flag(
        "Opinion scores: distillmos, dnsmos, both (with a comma) or none.  [default: those installed]", "NAMES"
    )
    jobs: int | None = flag("Recogniser processes.  [default: by cores; 1 for MODULE:CALLABLE]", "NUMBER", min=1)

    def check(self) -> None:
        if self.audio is not None:
            for name in ("mode", "instructions", "stream", "transcript"):
                if getattr(self, name):
                    option = name.replace("_", "-")
                    raise InvalidRequest(f"audio: recordings are scored as they are; leave --{option} out")
            if len(self.voice or ()) > 1:
                raise InvalidRequest(
                    "voice: several are given; compare recordings with one voice, or with the voices in their table"
                )
        if self.list_ is not None and self.voice:
            raise InvalidRequest("voice: each line of a list names its voice; leave --voice out")

    def read(self) -> tuple[str, list[Case]]:
        from vivavoce_bench.evaluate import cases as reading

        folder = self.audio if self.audio is not None and self.audio.is_dir() else None
        sources = (
            (self.sentences, reading.read_sentences),
            (self.list_, reading.read_seed_tts_list),
            (self.audio if folder is None else None, reading.read_audio_table),
        )
        given = [(path, read) for path, read in sources if path is not None]
        if len(given) > 1:
            raise InvalidRequest(
                "sentences: --sentences, --list and a table in --audio exclude one another; give one of them"
            )
        source, cases = "built in", reading.cases_of(reading.SENTENCES)
        for path, read in given:
            source, cases = str(path), read(path)
        cases = cases[: self.limit]
        return (source, cases) if folder is None else (str(folder), reading.with_audio(cases, folder))

    def manner(self) -> Manner:
        from vivavoce_bench.evaluate import Manner

        checked = SpeechManner(
            mode=self.mode, instructions=self.instructions, seed=self.seed, top_p=self.top_p, top_k=self.top_k
        ).keywords()
        return Manner(checked["mode"], self.instructions, self.seed, checked["sampling"], self.stream)


def recogniser_jobs(num_utterances: int) -> int:
    return min(os.cpu_count() or 1, _MOST_JOBS, max(1, num_utterances // _UTTERANCES_PER_JOB))


def recogniser_factory(name: str, whisper: str = "base") -> RecogniserFactory:
    """Return the factory of the built-in recogniser, of Whisper, or the user's; its module may be in this folder."""
    from vivavoce_bench.evaluate.recogniser import PocketSphinx, Whisper, recogniser_named

    if name == BUILT_IN_RECOGNISER:
        return PocketSphinx
    if name == "whisper":
        return partial(Whisper, whisper)
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    return recogniser_named(name)


def evaluate(
    flags: EvaluationFlags,
    model: ModelChoice,
    backends: BackendChoice,
    out: Path | None = flag("Save the audio, report.json and report.png here.", "FOLDER", "-o"),
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Measure speech: word errors, speaker similarity, lengths, silence, pitch, clicks and speed.

    Every voice speaks every sentence, a recogniser transcribes the audio, and each rate has a 95 % interval. The model
    mini speaks 160 utterances, which takes minutes on a CPU; --limit reduces their number. Needs pip install
    'vivavoce[eval]'. docs/measuring.md explains the figures.
    """
    reporter = Reporter(quiet)
    with reporter.working("starting …"):
        flags.check()
        from vivavoce.checkpoint.folder import BACKBONE, read_card
        from vivavoce.frontend.model_choice import model_folder
        from vivavoce.frontend.text.text_front_end import TextFrontEnd
        from vivavoce.frontend.text.tokenizer import TextTokenizer
        from vivavoce_bench.evaluate import Instruments, assess
        from vivavoce_bench.evaluate.assessment import ready
        from vivavoce_bench.evaluate.opinion import installed, opinions
        from vivavoce_bench.evaluate.speaking import embed_with, parse_control

        source, cases = flags.read()
        control = parse_control(flags.control) if flags.control else None
        folder = None if out is None else _recordings_folder(out, cases, flags.voice or ())
        manner = flags.manner()
        model_path = model_folder(model.model)
        text = TextFrontEnd(TextTokenizer.from_folder(model_path / BACKBONE), scripts=read_card(model_path).scripts)
        # Before the networks are loaded, refuse sentences that cannot be scored.
        factory = None if flags.recogniser == "none" else recogniser_factory(flags.recogniser, flags.whisper)
        jobs = min(os.cpu_count() or 1, _MOST_JOBS) if flags.recogniser == BUILT_IN_RECOGNISER else 1
        judges = installed() if flags.judges is None else flags.judges.split(",") if flags.judges != "none" else ()
        judge = opinions(judges) if judges else None
        spelled = Instruments(factory, flags.jobs or jobs, lambda said: text.explain(said).spoken, judge=judge)
        instruments = ready(cases, spelled, control)
    tts = load_model(model, reporter, backends=backends)[0] if flags.audio is None else None
    with reporter.working("preparing …") as show:
        if tts is None:
            clips, references, embed, settings = _recorded(flags, cases, model_path, model, show)
            instruments = replace(instruments, embed=embed)
        else:
            clips, references, settings = _spoken(flags, cases, model_path, tts, manner, show)
            longest_s = _longest_speech(model_path, text, manner.sampling.max_ratio)
            instruments = replace(instruments, embed=embed_with(tts.embed), longest_s=longest_s)
        settings = {
            "vivavoce": __version__,
            **settings,
            "sentences": source,
            "recogniser": flags.recogniser,
            "judges": list(judges),
            "control": None if control is None else control.value,
        }
        report = assess(clips, references, instruments, control=control, folder=folder, settings=settings, show=show)
    if tts is not None:
        note_if_no_real_model(tts.card, reporter)
    _deliver(report, out, as_json, reporter)


def _recordings_folder(out: Path, cases: Sequence[Case], voices: Sequence[str]) -> RecordingsFolder:
    from vivavoce_bench.evaluate.report import RecordingsFolder
    from vivavoce_bench.measure import check_drawing

    check_drawing("out")
    prompts = (Path(case.voice) for case in cases if case.voice is not None and Path(case.voice).is_file())
    sources = [*prompts, *(path for case in cases for path in (case.audio, case.truth) if path is not None)]
    if any(path.resolve().parent == out.resolve() for path in sources):
        raise InvalidRequest(
            "out: this folder holds the evaluated recordings, which would be replaced; choose another folder"
        )
    own = any((case.voice, case.audio) != (None, None) for case in cases)
    return RecordingsFolder(out, by_voice=not own and len(voices) != 1)


def _deliver(report: Report, out: Path | None, as_json: bool, reporter: Reporter) -> None:
    from vivavoce_bench.evaluate.report import draw, report_rows

    if out is not None:
        report.save(out / "report.json")
        draw(report, out / "report.png")
    print_figures(report.to_json(), STDOUT if as_json else None, report_rows(report))
    if out is not None:
        reporter.report(f"{out}: {len(report.utterances)} recordings, utterances.tsv, report.json, report.png")


def _spoken(
    flags: EvaluationFlags, cases: Sequence[Case], folder: Path, tts: Vivavoce, manner: Manner, show: Say
) -> tuple[Iterator[Clip], Mapping[str, VoiceLike], dict[str, Any]]:
    from vivavoce_bench.evaluate.speaking import speak_all

    voices = _voices_to_speak(flags, cases, folder, tts)
    references = voices if flags.list_ is None else _prompt_speakers(cases, tts.embed, show)
    settings = {
        "model": tts.card.name,
        "trained": tts.card.trained,
        "mode": None if manner.mode is None else manner.mode.value,
        **{name: getattr(flags, name) for name in ("instructions", "seed", "top_p", "top_k", "stream")},
    }
    return speak_all(tts, cases, voices, manner, show), references, settings


class _PromptVoices(dict[str, "Voice"]):
    """Voices of prompt recordings. A voice is extracted each time that it is needed, and is not kept."""

    def __init__(self, cases: Sequence[Case], resolve: Callable[[Path, str], Voice]) -> None:
        self._transcripts = {case.voice: case.prompt_text for case in cases}
        self._resolve = resolve

    def __missing__(self, name: str) -> Voice:
        return self._resolve(Path(name), self._transcripts[name])


def _voices_to_speak(flags: EvaluationFlags, cases: Sequence[Case], folder: Path, tts: Vivavoce) -> dict[str, Voice]:
    """Return the voices of --list or --voice, or by default the built-in voices, or else all stored voices."""
    from vivavoce.frontend.voices.voice import built_in_voices

    if flags.list_ is not None:
        return _PromptVoices(cases, tts.voice)
    if flags.voice:
        return named_voices(flags.voice, flags.transcript or (), tts.voices(), tts.voice)
    found = built_in_voices(folder)
    for name in () if found else tts.voices():
        with suppress(InvalidRequest):
            found[name] = tts.voice(name)
    if not found:
        raise InvalidRequest(
            "voice: none is given, and this model has no built-in and no stored voice; name one with --voice"
        )
    return found


def _recorded(
    flags: EvaluationFlags, cases: Sequence[Case], folder: Path, model: ModelChoice, show: Say
) -> tuple[Iterator[Clip], Mapping[str, VoiceLike], Embed | None, dict[str, Any]]:
    """Prepare to score recordings: load only the model's text rules and encoders, but no networks for speech."""
    from vivavoce.checkpoint.folder import read_card
    from vivavoce.frontend.front_end import load_front_end
    from vivavoce.frontend.voices.registry import VoiceRegistry
    from vivavoce.frontend.voices.stores import open_voice_store
    from vivavoce.frontend.voices.voice import built_in_voices
    from vivavoce_bench.evaluate.speaking import UNNAMED, embed_with, read_all

    asked = flags.voice or []
    names = [*asked, *dict.fromkeys(case.voice for case in cases if case.voice is not None)]
    references: Mapping[str, VoiceLike] = {}
    embed = None
    if names:
        extractor = load_front_end(folder).extractor
        embed = embed_with(extractor.embedding)
        if flags.list_ is not None:
            references = _prompt_speakers(cases, extractor.embedding, show)
        else:
            store, built_in = open_voice_store(model.voices), built_in_voices(folder)
            registry = VoiceRegistry(extractor, store, built_in, extractor.fingerprint)
            references = named_voices(names, flags.transcript or (), registry.names(), registry.resolve)
    clips = read_all(cases, asked[0] if asked else UNNAMED, show)
    return clips, references, embed, {"model": read_card(folder).name}


def _prompt_speakers(cases: Sequence[Case], embed: Callable[[Path], Any], show: Say) -> dict[str, VoiceLike]:
    names = list(dict.fromkeys(case.voice for case in cases if case.voice is not None))
    speakers: dict[str, VoiceLike] = {}
    for number, name in enumerate(names, start=1):
        show(f"reading prompts … {number} of {len(names)}")
        speakers[name] = SimpleNamespace(embedding=embed(Path(name)))
    return speakers


def _longest_speech(folder: Path, text: TextFrontEnd, max_ratio: float) -> Callable[[str], float]:
    from vivavoce.checkpoint.settings import read_config
    from vivavoce.checkpoint.weights import find_part, read_tensors

    rates = read_config(folder, read_tensors(find_part(folder, "flow"))).rates

    def longest_s(said: str) -> float:
        num_tokens = sum(len(text.encode(segment)) for segment in text.segments(said, reading="natural"))
        return num_tokens * max_ratio / rates.tokens_per_second

    return longest_s
