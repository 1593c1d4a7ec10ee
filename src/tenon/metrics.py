"""Accuracy of networks: metrics over predictions and what is true (docs/howto/accuracy.md)."""

from __future__ import annotations

from tenon.runtime.generation.perplexity import Perplexity, perplexity
from tenon.tools.metrics import METRICS, Evaluation, Metric, read_evaluation
from tenon.tools.metrics.classification import TopK

__all__ = ["METRICS", "Evaluation", "Metric", "Perplexity", "TopK", "perplexity", "read_evaluation"]
