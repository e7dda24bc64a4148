"""The front end: the text of a request, checked, normalised and split into segments for the language model."""

from __future__ import annotations

from collections.abc import Callable

from vivavoce.errors import InvalidRequest, InvalidText
from vivavoce.service.text.bound import cut_long
from vivavoce.service.text.checks import check_characters, check_length, excerpt
from vivavoce.service.text.normalize import load_languages, parse_language
from vivavoce.service.text.readers import ReadingProcesses
from vivavoce.service.text.rules import has_markup, is_only_punctuation, is_speakable
from vivavoce.service.text.scripts import KnownScripts, drop_symbols
from vivavoce.service.text.split import Language, split_paragraph
from vivavoce.service.text.tokenizer import TextTokenizer

MAX_SEGMENT_TOKENS = 200
"""Tokens of a segment after which it is cut wherever it can be: about a minute of English without a full stop."""

SMALL_VOCABULARY = 32_000
MAX_SEGMENT_TOKENS_SMALL = 500
"""The same bound for a vocabulary of fewer than `SMALL_VOCABULARY` ids (the release has 151,665), which writes one
word in several tokens, or byte by byte."""


class TextFrontEnd:
    """Text as CosyVoice2's official front end prepares it, with bad input refused and the length of segments bounded.

    Wherever the official code returns a result, so does this, the same one, with these exceptions: text in which
    nothing can be spoken is refused; pieces longer than the bound on tokens are cut; of text longer than 500
    characters the numbers are read block by block (`languages/reader.py`). Safe to use from several threads.

    `normalize=False` gives text to the model as it is written, unsplit but for the bound. `scripts` names the scripts
    a model was trained on (`frozenset({"Latin"})`): letters of others are then refused, and symbols that remain after
    normalisation left out. `processes`: so many others read the texts, which holds the interpreter for milliseconds
    each; 0: this one does.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        *,
        normalize: bool = True,
        scripts: frozenset[str] | None = None,
        processes: int = 0,
    ) -> None:
        """Load the rules of the languages if `normalize`; `CheckpointError` if `scripts` holds an unknown name."""
        self._tokenizer = tokenizer
        self._scripts = None if scripts is None else KnownScripts(scripts)
        digits_in_chinese = self._scripts is None or self._scripts.has_chinese
        self._languages = load_languages(digits_in_chinese=digits_in_chinese) if normalize else None
        self._elsewhere = None
        if self._languages is not None and processes:
            self._elsewhere = ReadingProcesses(processes, self._languages, digits_in_chinese=digits_in_chinese)
        small = len(tokenizer) < SMALL_VOCABULARY
        self._max_tokens = MAX_SEGMENT_TOKENS_SMALL if small else MAX_SEGMENT_TOKENS

    def close(self) -> None:
        """End the processes that read; then this one does."""
        if self._elsewhere is not None:
            self._elsewhere.close()
            self._elsewhere = None

    def segments(self, text: str, language: str | None = None) -> list[str]:
        """The text normalised and split for synthesis: at least one segment, and something to say among them.

        Text that holds both `<|` and `|>` is neither normalised nor split at sentences, as in the official code.
        language: whose rules read and split it, "en" or "zh"; None: those of Chinese where it holds a Chinese
        character. Raises `InvalidRequest` for another language, or one in whose script the model cannot write numbers;
        `InvalidText` for text with nothing to speak, longer than `MAX_TEXT_CHARS`, with control characters or
        lone surrogates, or with characters that the model does not know.
        """
        self._check(text)
        spoken, read_in = self._spoken_form(text, self._wanted(language))
        pieces = [spoken] if read_in is None else split_paragraph(spoken, self._measure(read_in), read_in)
        bounded = (part for piece in pieces for part in cut_long(piece, self._num_tokens, self._max_tokens))
        segments = [segment for segment in bounded if not is_only_punctuation(segment)]
        if not any(is_speakable(segment) for segment in segments):
            raise InvalidText(f"text: nothing in {excerpt(text)} can be spoken; write at least one word")
        return segments

    def normalize(self, text: str) -> str:
        """The text normalised but not split, as the transcript of a prompt is; "" for empty text and white space.

        Raises `InvalidText` as `segments` does, but not for text with nothing to speak.
        """
        self._check(text)
        return self._spoken_form(text)[0]

    def encode(self, text: str) -> tuple[int, ...]:
        """The ids of a segment or a normalised transcript. Raises `InvalidText` for characters it cannot write."""
        return self._tokenizer.encode(text)

    def encode_piece(self, text: str) -> tuple[int, ...]:
        """The ids of a piece of a text that is still arriving: checked as other text is, otherwise as it is."""
        self._check(text)
        return self._tokenizer.encode(text if self._scripts is None else drop_symbols(text))

    def _check(self, text: str) -> None:
        check_length(text)
        check_characters(text)
        if self._scripts is not None:
            self._scripts.check(text)

    def _wanted(self, language: str | None) -> Language | None:
        wanted = None if language is None else parse_language(language)
        if wanted == "zh" and self._scripts is not None and not self._scripts.has_chinese:
            raise InvalidRequest(
                f"language: the model does not know 'zh' (it knows the script {', '.join(sorted(self._scripts.names))})"
                "; leave it out or choose another model"
            )
        return wanted

    def _spoken_form(self, text: str, language: Language | None = None) -> tuple[str, Language | None]:
        """The text to speak, and the language to split it by (None: not to be split)."""
        read_in: Language | None = None
        if not text.strip():
            return "", read_in
        if self._languages is not None and not has_markup(text):
            spoken = (self._elsewhere or self._languages).spoken_form(text, language)
            text, read_in = spoken.text, spoken.language
        return (text if self._scripts is None else drop_symbols(text)), read_in

    def _measure(self, language: Language) -> Callable[[str], int]:
        """Length as the splitting counts it: characters of Chinese, tokens of anything else."""
        return len if language == "zh" else self._num_tokens

    def _num_tokens(self, text: str) -> int:
        return len(self._tokenizer.encode(text))
