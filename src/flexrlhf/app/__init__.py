"""Composition root: the only place that turns a RunConfig into objects and wires them."""

from __future__ import annotations

from flexrlhf.app.measuring import doctor, predict, profile
from flexrlhf.app.planning import load, plan, plan_document
from flexrlhf.app.results import generate, read_prompts, report, summary
from flexrlhf.app.training import RunResult, dry_run, train, train_with_progress

__all__ = [
    "RunResult",
    "doctor",
    "dry_run",
    "generate",
    "load",
    "plan",
    "plan_document",
    "predict",
    "profile",
    "read_prompts",
    "report",
    "summary",
    "train",
    "train_with_progress",
]
