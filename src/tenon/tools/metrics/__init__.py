"""Accuracy of networks: metrics over predictions and what is true, and plug-ins that bring their own."""

from __future__ import annotations

from tenon.tools.metrics.base import Evaluation as Evaluation
from tenon.tools.metrics.base import Metric as Metric
from tenon.tools.metrics.registry import METRICS as METRICS
from tenon.tools.metrics.registry import read_evaluation as read_evaluation
