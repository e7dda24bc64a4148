"""The plain loop: the simplest correct synthesis, one request at a time, without batches, slots or caches.

Tests check that the engine gives the same output; `python -m benchmarks.plain` measures this loop, for comparison.
"""

from benchmarks.plain.lm import Chooser as Chooser
from benchmarks.plain.lm import plain_tokens as plain_tokens
from benchmarks.plain.speech import PlainSpeech as PlainSpeech
from benchmarks.plain.speech import plain_speech as plain_speech
from benchmarks.plain.speech import plain_stream as plain_stream
