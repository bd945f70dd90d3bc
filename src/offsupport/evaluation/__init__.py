"""Evaluation: an adapter, a stream with labels and a protocol in; errors with intervals out."""

from offsupport.evaluation.result import Protocol, Result
from offsupport.evaluation.scoring import Checkpoint, evaluate

__all__ = ["Checkpoint", "Protocol", "Result", "evaluate"]
