"""What is left of a run that is over: its result and its weights."""

import json
from collections.abc import Sequence
from typing import Any

from ..config import SCHEMA
from ..runs.checksums import seal_weights
from ..runs.read import selected
from .run import Run
from .watcher import Watcher


def write_results(runs: Sequence[Run], watcher: Watcher) -> None:
    """Write result and weights of each run, unless they are there."""
    for run in runs:
        if _write(run):
            watcher.end(run, run.folder.read("result.json"))


def _write(run: Run) -> bool:
    folder = run.folder
    weights_there = (folder.path / "model.safetensors").exists()
    # A checkpoint may be missing, or be further than the result that was asked for.
    if run.done and (weights_there or run.state is None or run.step != folder.read("result.json")["steps"]):
        return False
    # Without validation there is no honest choice but the last.
    weights = run.best or (run.state or {})["weights"]
    best = selected(run.epochs, run.config.task.metric, "validation")
    note = {
        "config": run.config.to_json(),
        "schema": SCHEMA,
        "sources": run.config.sources,
        "seed": run.seed,
        "epoch": best["epoch"] if best else len(run.epochs),
    }
    folder.write("model.safetensors", seal_weights(weights, {"run": json.dumps(note)}))
    folder.write_json("result.json", _result(run))
    return True


def _result(run: Run) -> dict[str, Any]:
    config, metric = run.config, run.config.task.metric
    speed = run.trained / run.training_seconds if run.training_seconds else None
    return {
        **run.sessions[-1],
        "id": config.id,
        "seed": run.seed,
        "status": "frozen" if run.frozen else "stopped" if run.stopped else "done",
        "config": config.to_json(),
        "epochs": len(run.epochs),
        "steps": run.step,
        "metric": metric,
        # The epoch that validation selects; the best on the test set, as the paper has it; the last.
        "selected": {
            "by_validation": selected(run.epochs, metric, "validation"),
            "by_test": selected(run.epochs, metric, "test"),
            "last": run.epochs[-1] if run.epochs else None,
        },
        "frozen": run.frozen,
        "stopped": run.stopped,
        "parameters": run.parameters,
        "seconds": round(run.seconds, 3),
        "samples_per_second": speed and round(speed, 1),
        "peak_memory_mb": max(session["peak_memory_mb"] for session in run.sessions),
        "data": run.data,
        "sources": config.sources,
        "metrics_file": run.folder.metrics.record,
        "sessions": run.sessions,
    }
