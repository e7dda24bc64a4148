"""A process that reads texts for another one: a line of JSON for each, in (text, language or null) and out.

`python -m vivavoce.service.text.reading_process [--digits-in-chinese]` ends when its input does.
"""

from __future__ import annotations

import json
import signal
import sys

from vivavoce.service.text.normalize import load_languages


def main() -> None:
    """Answer each text with its spoken form and language; with null where the rules fail."""
    # Whoever asks is interrupted, too, and closes the input when it ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    languages = load_languages(digits_in_chinese="--digits-in-chinese" in sys.argv[1:])
    for line in sys.stdin.buffer:
        try:
            form = languages.spoken_form(*json.loads(line))
            answer = [form.text, form.language]
        except Exception:  # whoever asked reads it once more, and learns why
            answer = None
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
