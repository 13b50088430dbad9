"""What an evaluation found: its facts, and the numbers that follow from them. Needs no torch."""

from mt3.results.facts import Answers, Evaluation, facts, parse_evaluation, read_evaluation
from mt3.results.runs import Run, read_run
from mt3.results.statistics import Difference

__all__ = ["Answers", "Difference", "Evaluation", "Run", "facts", "parse_evaluation", "read_evaluation", "read_run"]
