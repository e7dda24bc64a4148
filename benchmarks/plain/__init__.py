"""The plainest correct way from a request to audio: one at a time, no batch, no slots, nothing remembered.

The engine is checked against it (what it says must be the same) and measured against it (`python -m benchmarks.plain`).
"""

from benchmarks.plain.lm import Chooser as Chooser
from benchmarks.plain.lm import plain_tokens as plain_tokens
from benchmarks.plain.speech import PlainSpeech as PlainSpeech
from benchmarks.plain.speech import plain_speech as plain_speech
from benchmarks.plain.speech import plain_stream as plain_stream
