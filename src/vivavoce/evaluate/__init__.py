"""How intelligible, similar and clean speech is, in numbers that can be compared. See docs/evaluation.md."""

from vivavoce.evaluate.assessment import Instruments as Instruments
from vivavoce.evaluate.assessment import assess as assess
from vivavoce.evaluate.assessment import evaluate as evaluate
from vivavoce.evaluate.cases import SENTENCES as SENTENCES
from vivavoce.evaluate.cases import Case as Case
from vivavoce.evaluate.error_rate import ErrorRate as ErrorRate
from vivavoce.evaluate.error_rate import character_errors as character_errors
from vivavoce.evaluate.error_rate import word_errors as word_errors
from vivavoce.evaluate.recogniser import PocketSphinx as PocketSphinx
from vivavoce.evaluate.recogniser import Recogniser as Recogniser
from vivavoce.evaluate.report import Report as Report
from vivavoce.evaluate.speaking import Clip as Clip
from vivavoce.evaluate.speaking import Control as Control
from vivavoce.evaluate.speaking import Manner as Manner
