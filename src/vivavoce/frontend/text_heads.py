"""Finds and stores the attention heads of a checkpoint that show which text token is being spoken ("text heads")."""

from __future__ import annotations

import json
import logging
import threading
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from vivavoce.checkpoint.known_models import user_folder
from vivavoce.engine.engine import EngineInterface
from vivavoce.errors import VivavoceError
from vivavoce.files import replace_file
from vivavoce.frontend.front_end import FrontEnd
from vivavoce.models.lm.text_attention import TextHeads

log = logging.getLogger(__name__)

_SENTENCES = {
    "en": (
        "The ferry left the harbour early in the morning, and nobody was on board.",
        "She bought seven green apples, a small loaf of bread and some cheese.",
        "Nobody expected the old clock to strike at midnight, but it did.",
        "My brother plays the guitar whenever it rains outside.",
        "Please bring the long ladder from the garden, and close the gate.",
        "We walked along the quiet river until the sun went down.",
    ),
    "zh": (
        "今天早上渡轮很早就离开了港口，船上没有一个乘客。",
        "她买了七个绿苹果，一小块面包，还有一些新鲜的牛奶。",
        "没有人想到那座老钟会在半夜敲响，可是它真的响了。",
        "每当外面下雨的时候，我的哥哥都会在家里弹吉他。",
        "请把花园里的长梯子搬过来，然后把大门关好。",
        "我们沿着安静的河边慢慢散步，一直走到太阳下山。",
    ),
}
_VERSION = 2
"""Part of the stored files' names; increase it when the search for heads changes, so that old files are ignored."""
_SHIPPED = Path(__file__).parents[1] / "data" / "text-heads"
"""Folder in the package with the stored heads of the model mini."""
_finding = threading.Lock()


def know_heads(engine: EngineInterface, front_end: FrontEnd) -> bool:
    """Let the engine track spoken texts by the text heads of its model. Return whether the model has suitable heads.

    The first call for a checkpoint lets the model speak a few sentences to find the heads. This takes about one second
    on a GPU and several seconds on a CPU. Later calls use the stored heads."""
    with _finding:
        if engine.text_heads is not None:
            return True
        identity = engine.language_model_id
        if not identity:
            return False
        name = f"{identity}-{_VERSION}.json"
        path = _file_of(name)
        known = _read(_SHIPPED / name) or _read(path)
        if known is None:
            try:
                heads = engine.find_heads(calibration_texts(front_end))
            except VivavoceError as error:  # such as too little memory; speech goes on without heads
                log.warning("text heads not found: %(reason)s", {"reason": error})
                return False
            _keep(path, heads)
        else:
            heads = known[0]
        if heads is not None:
            engine.watch(heads)
        return heads is not None


def calibration_texts(front_end: FrontEnd) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return, for each of six sentences in a language of the model, its text ids and the index of each word's first
    id."""
    sentences = _SENTENCES["zh" if "en" not in front_end.card.languages else "en"]
    found = []
    for one in sentences:
        ids = front_end.text.encode(one)
        words = front_end.text.words(one, one)
        found.append((ids, tuple(word.first for word in words)))
    return found


def _file_of(name: str) -> Path | None:
    with suppress(VivavoceError):  # the user has no home folder
        return user_folder("cache") / "text-heads" / name
    return None


def _read(path: Path | None) -> tuple[TextHeads | None] | None:
    """Return a tuple of the stored heads, (None,) if the model has no suitable head, or None if nothing is stored."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        if path is not None:
            kept = json.loads(path.read_text(encoding="utf-8"))
            heads = tuple((int(layer), int(head)) for layer, head in kept["heads"])
            return (TextHeads(heads, float(kept["lag"]), float(kept["pace"])) if heads else None,)
    return None


def _keep(path: Path | None, heads: TextHeads | None) -> None:
    if path is None:
        return
    kept = asdict(heads) if heads else {"heads": ()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(kept))
    except OSError as error:
        log.warning("text heads not stored: %(reason)s", {"reason": error.strerror})
