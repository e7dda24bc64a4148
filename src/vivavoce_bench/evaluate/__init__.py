"""Measure intelligibility, speaker similarity and sound quality of speech. See docs/measuring.md."""

from vivavoce_bench.evaluate.assessment import Instruments as Instruments
from vivavoce_bench.evaluate.assessment import assess as assess
from vivavoce_bench.evaluate.assessment import evaluate as evaluate
from vivavoce_bench.evaluate.cases import SENTENCES as SENTENCES
from vivavoce_bench.evaluate.cases import Case as Case
from vivavoce_bench.evaluate.error_rate import ErrorRate as ErrorRate
from vivavoce_bench.evaluate.error_rate import character_errors as character_errors
from vivavoce_bench.evaluate.error_rate import word_errors as word_errors
from vivavoce_bench.evaluate.heard import heard_otherwise as heard_otherwise
from vivavoce_bench.evaluate.recogniser import PocketSphinx as PocketSphinx
from vivavoce_bench.evaluate.recogniser import Recogniser as Recogniser
from vivavoce_bench.evaluate.report import EvaluationReport as EvaluationReport
from vivavoce_bench.evaluate.speaking import Clip as Clip
from vivavoce_bench.evaluate.speaking import Control as Control
from vivavoce_bench.evaluate.speaking import Manner as Manner

Report = EvaluationReport
