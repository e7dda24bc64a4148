"""Text tokenizers: Qwen2's byte-level BPE with the special tokens of CosyVoice2 or CosyVoice3, or Whisper's tokenizer.

A checkpoint's folder `CosyVoice-BlankEN` contains `vocab.json`, `merges.txt` and `tokenizer_config.json`, or all of
them in one `tokenizer.json`. A CosyVoice 1 checkpoint has no vocabulary: it uses Whisper's, which is part of this
package. Neither transformers nor tiktoken nor network access is needed.
"""

from __future__ import annotations

import base64
import json
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import regex
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from vivavoce.checkpoint.config import Generation
from vivavoce.checkpoint.folder import MAX_JSON_BYTES, YAML_OF, detect_generation, refuse_pointer
from vivavoce.errors import CheckpointError, InvalidText
from vivavoce_textnorm import check_surrogates, name_some

SPECIAL_TOKENS = (
    "<|im_start|>", "<|im_end|>", "<|endofprompt|>", "[breath]", "<strong>", "</strong>", "[noise]", "[laughter]",
    "[cough]", "[clucking]", "[accent]", "[quick_breath]", "<laughter>", "</laughter>", "[hissing]", "[sigh]",
    "[vocalized-noise]", "[lipsmack]", "[mn]",
)  # fmt: skip
"""CosyVoice2's special tokens. Their order matters: tokens that are not in the tokenizer's files get the next free ids
in this order (`<|endofprompt|>` is 151646 in the published model); tokens in the files keep their ids."""

_VOWELS, _CONSONANTS = (
    "AA AE AH AO AW AY EH ER EY IH IY OW OY UH UW",
    "B CH D DH F G HH JH K L M N NG P R S SH T TH V W Y Z ZH",
)
_ARPABET = sorted([*_CONSONANTS.split(), *(vowel + stress for vowel in _VOWELS.split() for stress in ("", *"012"))])
_PINYIN = """
a ai an ang ao b c ch d e ei en eng f g h i ian in ing iu ià iàn iàng iào iá ián iáng iáo iè ié iòng ióng iù iú iā iān
iāng iāo iē iě iōng iū iǎ iǎn iǎng iǎo iǒng iǔ j k l m n o ong ou p q r s sh t u uang ue un uo uà uài uàn uàng uá uái
uán uáng uè ué uì uí uò uó uā uāi uān uāng uē uě uī uō uǎ uǎi uǎn uǎng uǐ uǒ vè w x y z zh à ài àn àng ào á ái án áng
áo è èi èn èng èr é éi én éng ér ì ìn ìng í ín íng ò òng òu ó óng óu ù ùn ú ún ā āi ān āng āo ē ēi ēn ēng ě ěi ěn ěng
ěr ī īn īng ō ōng ōu ū ūn ǎ ǎi ǎn ǎng ǎo ǐ ǐn ǐng ǒ ǒng ǒu ǔ ǔn ǘ ǚ ǜ
"""
PRONUNCIATION_TOKENS = ("<|endofsystem|>", *(f"[{phone}]" for phone in (*_ARPABET, *_PINYIN.split())))
"""Further special tokens of CosyVoice3: ARPAbet phones, and the initials and finals of pinyin with tones."""
END_OF_PROMPT = "<|endofprompt|>"
"""The token that ends an instruction and CosyVoice3's system prompt; the models were trained with it."""

WHISPER = Path(__file__).parents[2] / "data" / "whisper" / "multilingual.tiktoken"
_LANGUAGES = """
en zh de es ru ko fr ja pt tr pl ca nl ar sv it id hi fi vi he uk el ms cs ro da hu ta no th ur hr bg lt la mi ml cy sk
te fa lv bn sr az sl kn et mk br eu is hy ne mn bs kk sq sw gl mr pa si km sn yo so af oc ka be tg sd gu am yi lo uz fo
ht ps tk nn mt sa lb my bo tl mg as tt haw ln ha ba jw su yue
"""
_TASKS = "translate transcribe startoflm startofprev nospeech notimestamps"
WHISPER_TOKENS = tuple(
    f"<|{name}|>"
    for name in (
        *("endoftext", "startoftranscript", *_LANGUAGES.split(), *_TASKS.split()),
        *(f"{place / 50:.2f}" for place in range(1_501)),
    )
)
"""Whisper's special tokens in the order of their ids, including 100 languages and timestamps up to 30 s."""

# Qwen2's pre-tokeniser: English clitics, words with a preceding character, single digits, punctuation, white space.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_HIDDEN = [*range(0x21), *range(0x7F, 0xA1), 0xAD]
_BYTES = [chr(0x100 + _HIDDEN.index(byte)) if byte in _HIDDEN else chr(byte) for byte in range(256)]
"""The character for each byte, as in GPT-2's byte-level BPE: printable bytes as themselves, others from U+0100 on."""
_REMEDY = "copy the model's CosyVoice-BlankEN folder again, whole"
_ADDED = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}


class TextTokenizer:
    """The tokenizer of a checkpoint. Immutable and thread-safe.

    prompted: it is CosyVoice3's tokenizer, so a text may begin with a system prompt and contain `PRONUNCIATION_TOKENS`.
    """

    def __init__(self, tokenizer: Tokenizer, special: Sequence[str] = SPECIAL_TOKENS) -> None:
        """special: the model's special tokens; if `tokenizer` does not know a token, it gets the next free id."""
        prompted = PRONUNCIATION_TOKENS[-1] in special
        tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
        self.prompted = prompted
        self._tokenizer = tokenizer
        self._missing_bytes = _missing_bytes(tokenizer)
        added = sorted((token.content for token in tokenizer.get_added_tokens_decoder().values()), key=len)
        self._added = regex.compile(f"({'|'.join(regex.escape(token) for token in reversed(added))})")

    @classmethod
    def from_folder(cls, folder: Path) -> TextTokenizer:
        """Read `tokenizer.json`, or else `vocab.json`, `merges.txt` and `tokenizer_config.json`, from the folder.

        The checkpoint's yaml, in the parent folder, decides which special tokens are added; without it, CosyVoice2's
        are. For CosyVoice 1, Whisper's tokenizer is used instead of the folder. Raises `CheckpointError` if a file is
        missing or unusable."""
        known = any((folder.parent / name).is_file() for name in YAML_OF.values())
        beside = detect_generation(folder.parent) if known else None
        if beside is Generation.V1:
            return cls(_read_whisper(), WHISPER_TOKENS)
        whole = folder / "tokenizer.json"
        special = (*SPECIAL_TOKENS, *PRONUNCIATION_TOKENS) if beside is Generation.V3 else SPECIAL_TOKENS
        return cls(_read_whole(whole) if whole.is_file() else _read_parts(folder), special)

    @property
    def marks(self) -> frozenset[str]:
        """The special tokens for sounds, stress and phones in a text, such as `[laughter]`.

        CosyVoice2's tokens are always included: CosyVoice 1 was trained with some, each encoded in several ids."""
        known = {token.content for token in self._tokenizer.get_added_tokens_decoder().values()}
        return frozenset(one for one in known.union(SPECIAL_TOKENS) if not one.startswith("<|"))

    def parts(self, text: str) -> list[str]:
        return self._added.split(text)

    def encode(self, text: str) -> tuple[int, ...]:
        """Encode a text. Raises `InvalidText` for a lone surrogate, or a character that the vocabulary lacks."""
        check_surrogates(text)
        if self._missing_bytes:  # BPE silently drops a character if one of its bytes is missing
            plain = unicodedata.normalize("NFC", self._added.sub("", text))
            lost = [one for one in dict.fromkeys(plain) if not self._missing_bytes.isdisjoint(one.encode("utf-8"))]
            if lost:
                raise InvalidText(
                    f"text: the model's vocabulary cannot write {name_some(lost)}; leave them out or choose another "
                    "model"
                )
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def places(self, text: str) -> list[tuple[int, int]]:
        """Return, for each id of `encode(text)`, the range (first, last + 1) of characters that the id encodes."""
        return [(low, high) for low, high in self._tokenizer.encode(text, add_special_tokens=False).offsets]

    def decode(self, ids: Iterable[int]) -> str:
        """Decode ids to text, including special tokens; bytes that are not valid UTF-8 become U+FFFD."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def token_id(self, token: str) -> int | None:
        """Return the id of a token, spelled as in the vocabulary; None if the vocabulary lacks the token."""
        return self._tokenizer.token_to_id(token)

    def to_json(self) -> str:
        return str(self._tokenizer.to_str())

    def __len__(self) -> int:
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))


def _read_whole(path: Path) -> Tokenizer:
    content = _read_text(path)
    try:
        tokenizer = Tokenizer.from_str(content)
    except Exception as error:  # the package tokenizers raises no narrower type
        raise _unusable(path, error) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _read_parts(folder: Path) -> Tokenizer:
    vocabulary = _read_json(folder / "vocab.json")
    if not vocabulary or not all(type(token_id) is int for token_id in vocabulary.values()):
        raise CheckpointError(f"{folder / 'vocab.json'}: not a mapping from tokens to ids; {_REMEDY}")
    merges = _read_merges(folder / "merges.txt")
    try:
        model = models.BPE(vocab=vocabulary, merges=merges)
    except Exception as error:  # a merge is not in the vocabulary; tokenizers raises no narrower type
        raise _unusable(folder / "merges.txt", error) from error
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    _add_tokens(tokenizer, folder / "tokenizer_config.json")
    return tokenizer


def _read_whisper() -> Tokenizer:
    vocabulary = {}
    for line in WHISPER.read_bytes().splitlines():
        token, rank = line.split()
        vocabulary["".join(map(_BYTES.__getitem__, base64.b64decode(token)))] = int(rank)
    # Merge as tiktoken does: any two neighbours that together form a token, the token of the lowest rank first.
    splits = ((token[:place], token[place:]) for token in vocabulary for place in range(1, len(token)))
    merges = [pair for pair in splits if pair[0] in vocabulary and pair[1] in vocabulary]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _read_merges(path: Path) -> list[tuple[str, str]]:
    merges: list[tuple[str, str]] = []
    # splitlines() would also split at Unicode line ends, which tokens may contain.
    for number, line in enumerate(_read_text(path).split("\n"), start=1):
        line = line.removesuffix("\r")
        if not line or line.startswith("#version"):
            continue
        pair = line.split(" ")
        if len(pair) != 2:
            raise CheckpointError(f"{path}: line {number} is not a pair of tokens; {_REMEDY}")
        merges.append((pair[0], pair[1]))
    return merges


def _add_tokens(tokenizer: Tokenizer, path: Path) -> None:
    try:
        tokens = {
            int(token_id): AddedToken(
                settings["content"], **{name: settings.get(name, left_out) for name, left_out in _ADDED.items()}
            )
            for token_id, settings in _read_json(path).get("added_tokens_decoder", {}).items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _unusable(path, error) from error
    for token_id, token in sorted(tokens.items()):
        tokenizer.add_tokens([token])
        given = tokenizer.token_to_id(token.content)
        if given != token_id:
            raise CheckpointError(
                f"{path}: gives {token.content} the id {token_id}, but with vocab.json its id is {given}; {_REMEDY}"
            )


def _missing_bytes(tokenizer: Tokenizer) -> frozenset[int]:
    """Return the bytes for which the vocabulary has no token; a small vocabulary may lack some bytes."""
    return frozenset(byte for byte, symbol in enumerate(_BYTES) if tokenizer.token_to_id(symbol) is None)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise _unusable(path, error) from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: not a JSON object; {_REMEDY}")
    return content


def _read_text(path: Path) -> str:
    refuse_pointer(path)
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ValueError(f"it has more than {MAX_JSON_BYTES} bytes, which is the limit")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: the file is missing; {_REMEDY}") from error
    except (OSError, ValueError) as error:
        raise _unusable(path, error) from error


def _unusable(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"{path}: cannot be used ({' '.join(str(error).split())[:200]}); {_REMEDY}")
