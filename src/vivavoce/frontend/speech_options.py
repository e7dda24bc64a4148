"""Declares the options of speech for the Python API, the HTTP fields, the command-line flags and gRPC.

Only the standard library is imported, so that the command line starts quickly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MAX_SEED = 2**53
"""The largest seed. Many clients read JSON numbers as doubles, which represent whole numbers exactly up to 2⁵³."""


@dataclass(frozen=True)
class Option:
    """One option of speech.

    name: the name that users write. help: one sentence, which names the choices. kind: float, int, str or bool.
    default_help: the meaning of a default of None. choices: all allowed values of a text. minimum, maximum: limits of a
    number. max_chars: limit of a text's length. field: the attribute of `SpeechRequest`, if its name differs.
    """

    name: str
    help: str
    kind: type = str
    default: Any = None
    default_help: str = ""
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    max_chars: int | None = None
    field: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "field", self.field or self.name)

    @property
    def description(self) -> str:
        """The help without the minimum and the maximum, which OpenAPI shows separately."""
        return f"{self.help} Default: {self.default_help}." if self.default_help else self.help

    @property
    def flag_help(self) -> str:
        """The help of a command-line flag, with the limits of a number."""
        limits = f" {self.minimum:g} to {self.maximum:g}." if self.maximum not in (None, MAX_SEED) else ""
        default = f"  [default: {self.default_help}]" if self.default_help else ""
        return f"{self.help}{limits}{default}"


MODE = Option(
    "mode",
    "How the voice is used: zero_shot, cross_lingual, instruct or sft.",
    choices=("zero_shot", "cross_lingual", "instruct", "sft"),
    default_help="the fullest mode that the voice allows",
)
INSTRUCTIONS = Option(
    "instructions",
    'How to say it, such as "speak slowly and calmly"; ignored by a model that cannot follow instructions.',
    max_chars=4096,
    field="instruct",
)
SPEED = Option("speed", "Speed of the speech; the pitch stays.", float, 1.0, minimum=0.5, maximum=2.0)
SEED = Option("seed", "The same seed gives the same audio.", int, 0, minimum=0, maximum=MAX_SEED)
LANGUAGE = Option(
    "language",
    "Language of the text: zh, en, en-GB (3/4 is in April), ja, ko, de, es, fr, it or ru; other tags and names, too.",
    choices=("zh", "en", "en-GB", "ja", "ko", "de", "es", "fr", "it", "ru"),
    default_help="detected from the text",
)
READING = Option(
    "reading",
    "Text normalisation (numbers, dates, signs): natural (our rules), official (CosyVoice's rules) or off.",
    default="natural",
    choices=("official", "natural", "off"),
)
LEXICON = Option("lexicon", "Words and how to say them, with natural rules; see the manual.")
EMOJIS = Option(
    "emojis",
    "Emojis, with natural rules: silent, or named by their Unicode names in English.",
    default="silent",
    choices=("silent", "named"),
)
CODE = Option(
    "code", "Code between backticks, with natural rules: read or silent.", default="read", choices=("read", "silent")
)
REASONING = Option(
    "reasoning",
    "Reasoning of a language model, such as <think>…</think>: silent or read.",
    default="silent",
    choices=("silent", "read"),
)
WORD_TIMES = Option("word_times", "Tell when each word is heard.", bool, False)
_GUARD = "Notice speech that leaves its text, and speak the part again."
GUARD = Option("guard", _GUARD, bool, default_help="true with the model mini, otherwise false")
FLOW_STEPS = Option(
    "flow_steps",
    "How the flow makes the mel: official (ten Euler steps, mini five) or fast (at most six evaluations).",
    choices=("official", "fast"),
    default_help="as the server is set",
)
ADAPTER = Option(
    "adapter",
    "LoRA adapter of the language model, by its name; none: without one.",
    max_chars=64,
    default_help="the voice's own, if it names one",
)
CHUNK_POLICY = Option(
    "chunk_policy",
    "How the stream is cut into chunks: low_latency, official, equal, exponential or time_based.",
    choices=("low_latency", "official", "equal", "exponential", "time_based"),
    default_help="low_latency; CosyVoice 1 has only official",
    field="policy",
)
PRIORITY = Option(
    "priority",
    "live: a listener waits for it; batch: it has no deadline and takes only the time that live requests leave.",
    default="live",
    choices=("live", "batch"),
)
READING_OPTIONS = (LANGUAGE, READING, EMOJIS, CODE, REASONING)
"""Options of text normalisation, except the lexicon, which belongs to a voice or a file."""
SPEECH_OPTIONS = (
    INSTRUCTIONS,
    SPEED,
    SEED,
    MODE,
    *READING_OPTIONS,
    WORD_TIMES,
    GUARD,
    FLOW_STEPS,
    ADAPTER,
    CHUNK_POLICY,
    PRIORITY,
)

_MODEL = "as the model is set"
_TOP_P = "Share of the probability from which speech tokens are drawn."
_TOP_K = "Number of the likeliest speech tokens from which one is drawn."
TOP_P = Option("top_p", _TOP_P, float, minimum=0.001, maximum=1, default_help=_MODEL)
TOP_K = Option("top_k", _TOP_K, int, minimum=1, maximum=10_000, default_help=_MODEL)
SAMPLING_OPTIONS = (
    TOP_P,
    TOP_K,
    Option("win_size", "Number of last speech tokens in which repeats are counted.", int, minimum=1, maximum=200),
    Option("tau_r", "Share of win_size from which a repeated token is drawn again.", float, minimum=0, maximum=1),
    Option("min_ratio", "Fewest speech tokens per text token.", float, minimum=0, maximum=50),
    Option("max_ratio", "Most speech tokens per text token.", float, minimum=1, maximum=50),
)
"""Options of sampling speech tokens: the fields of `SamplingParams`. None means the model's own setting."""
