"""Assembles trained parts into a checkpoint folder in the official layout, with stored voices; records a test set."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from vivavoce.checkpoint.folder import SPEAKER_ENCODER, SPEAKERS, detect_generation, speech_tokenizer_of
from vivavoce.checkpoint.spk2info import SavedPrompt, SpeakerEntry, write_spk2info
from vivavoce.errors import InvalidRequest
from vivavoce.frontend.audio.encode import write_audio
from vivavoce.frontend.audio.samples import Audio
from vivavoce.frontend.front_end import load_front_end
from vivavoce_training.data.kokoro.teacher import Labelled
from vivavoce_training.data.store import SAMPLE_RATE, Speaker
from vivavoce_training.weights import MINI, SPEECH_TOKENIZER

NOTICE = Path(__file__).parent / "data" / "NOTICE.md"
"""Licence terms of the sources of the corpus; each assembled model folder gets a copy."""
PARTS = ("llm.pt", "flow.pt", "hift.pt", SPEECH_TOKENIZER, SPEAKER_ENCODER)


def _voice(manner: str, text: str, timbre: str | None = None) -> tuple[Speaker, str]:
    return Speaker(manner, manner, timbre=timbre or manner, manner=manner), text


VOICES = {
    "warm": _voice("af_heart", "The morning train was late again, so we walked along the river. Wasn't it beautiful?"),
    "calm": _voice("am_michael", "The boats came back to the harbor before it rained. We were glad to see them."),
    "bright": _voice("af_kore", "Do you remember the little shop on the corner? They bake the best bread in town."),
    "clear": _voice(
        "bf_emma",
        "Would you open the window, please? It's a lovely evening, and I can hear the birds.",
        "af_aoede*0.5+af_sarah*0.5",
    ),
    "gentle": _voice(
        "bf_emma",
        "I found an old letter in the drawer. Who could have written it, and when?",
        "af_heart*0.7+bf_emma*0.3",
    ),
    "deep": _voice(
        "am_fenrir",
        "We reached the top of the hill before noon. Can you see the harbor from there?",
        "am_fenrir*0.5+am_onyx*0.5",
    ),
    "steady": _voice("bm_daniel", "They carried the heavy basket up the hill, and rested near the old stone bridge."),
    "lively": _voice(
        "bm_fable",
        "Once upon a time, a clever fox lived at the edge of the forest, and he knew every path.",
        "bm_fable*0.6+bm_george*0.4",
    ),
}
"""The mini model's stored voices: name → the speaker, and the text of the recording. Among 40 voices and mixes, these
had the best scores."""


def assemble(parts: Path, folder: Path, record: Record, settings: Path = MINI) -> Path:
    """Copy the trained parts and the files that are not trained to `folder`, and make the stored voices there.

    parts: the folder with the five files of `PARTS`. folder: the checkpoint's folder; files of the same names are
    replaced. record: records the stored voices' texts. settings: the folder of the files that are not trained, which
    sets the checkpoint's generation. InvalidRequest: a part is missing; nothing is written then.
    """
    missing = [name for name in PARTS if not (parts / name).is_file()]
    if missing:
        raise InvalidRequest(f"parts: {', '.join(missing)} is missing in {str(parts)!r}; train it, or copy it there")
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(settings, folder, dirs_exist_ok=True)
    shutil.copyfile(NOTICE, folder / NOTICE.name)
    named = {SPEECH_TOKENIZER: speech_tokenizer_of(detect_generation(settings))}
    for name in PARTS:
        shutil.copyfile(parts / name, folder / named.get(name, name))
    # Do not trim the recordings, because their mels would then be shorter than their labels.
    extractor = replace(load_front_end(folder).extractor, as_recorded=True)
    entries = {}
    for name, (speaker, text) in VOICES.items():
        samples, labels = record(speaker, text)
        heard = extractor.extract(Audio(samples, SAMPLE_RATE), text)
        # Store the labels, from which the language model learned. After a prompt of the tokenizer's tokens, speech
        # begins with words of the transcript more often.
        voice = replace(heard, speech_tokens=torch.from_numpy(labels)).aligned(extractor.config.rates)
        tokens = voice.speech_tokens
        prompt = SavedPrompt(torch.tensor(voice.prompt_text, dtype=torch.int32), tokens, tokens, voice.mel)
        entries[name] = SpeakerEntry(voice.embedding, prompt)
    write_spk2info(folder / SPEAKERS, entries)
    (folder / SPEAKERS).chmod(0o644)
    return folder


PROMPTS = (
    "The harbor was quiet before dawn, and the old boats moved slowly.",
    "Several children were playing in the park behind the school.",
)
"""Texts of the recordings to clone; the first speaker says the first text, the second the second, and so on."""

Record = Callable[[Speaker, str], Labelled]


def write_test_set(folder: Path, sentences: Sequence[str], speakers: Sequence[Speaker], record: Record) -> None:
    """Write recordings and two lists to `folder`; sentence n belongs to speaker n modulo the number of speakers.

    prompts/NAME.wav: a recording of each speaker, to clone. source/N.wav: the speaker's own recording of sentence N.
    zero_shot.lst: prompts, sentences and source recordings in seed-tts-eval's format. source.tsv: the source recordings
    and their texts; their scores are the ceiling for a clone's.
    """
    (folder / "prompts").mkdir(parents=True, exist_ok=True)
    (folder / "source").mkdir(exist_ok=True)
    said = {speaker.name: PROMPTS[place % len(PROMPTS)] for place, speaker in enumerate(speakers)}
    for speaker in speakers:
        write_audio(
            folder / "prompts" / f"{speaker.name}.wav", record(speaker, said[speaker.name]).samples, SAMPLE_RATE
        )
    listed, sources = [], []
    for number, sentence in enumerate(sentences):
        speaker = speakers[number % len(speakers)]
        name = f"{number:03d}"
        write_audio(folder / "source" / f"{name}.wav", record(speaker, sentence).samples, SAMPLE_RATE)
        fields = (name, said[speaker.name], f"prompts/{speaker.name}.wav", sentence, f"source/{name}.wav")
        listed.append("|".join(fields))
        sources.append(f"source/{name}.wav\t{sentence}")
    (folder / "zero_shot.lst").write_text("\n".join(listed) + "\n", encoding="utf-8")
    (folder / "source.tsv").write_text("\n".join(sources) + "\n", encoding="utf-8")
