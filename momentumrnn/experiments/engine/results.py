"""What is left of a run that is over: its result and its weights."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from ..config import SCHEMA
from ..models import WEIGHTS, WeightsError, read_weights
from ..runs.checksums import seal_weights
from ..runs.read import selected
from ..runs.store import HINT, RunError
from .run import Run
from .watcher import Watcher


def lacks_files(run: Run) -> bool:
    """Whether result or weights of a run that is over are to be written; refuses weights beyond repair."""
    if not run.done:
        return True
    fault = _fault_of_weights(run)
    if not fault:
        return False
    path, result = run.folder.path / WEIGHTS, run.folder.read("result.json")
    if run.state is None:
        if not path.exists():
            return False  # as it is published: the numbers need no weights
        raise RunError(
            f"{path} {fault}; without resume.pt it can't be written again: put back a copy, or {HINT}"
        )
    if run.step != result["steps"]:
        epochs = -(-run.step // run.steps_per_epoch)
        raise RunError(
            f"{path} {fault}; it can't be written again, since result.json is of step {result['steps']} and "
            f"resume.pt of step {run.step}: take --epochs {epochs}, which writes both anew, or {HINT}"
        )
    return True


def write_results(runs: Sequence[Run], watcher: Watcher) -> None:
    """Write what these runs, which are over, lack: weights that are gone, or result and weights."""
    for run in runs:
        if run.done:
            fault = _fault_of_weights(run)
            _repair(run)
            watcher.note(
                f"seed {run.seed}: {WEIGHTS} was written again from the checkpoint, since it {fault}"
            )
        else:
            digest = _write_weights(run)
            # Last: what a process leaves that is killed between the two is written again.
            run.folder.write_json("result.json", _result(run, digest))
            watcher.end(run, run.folder.read("result.json"))


def _fault_of_weights(run: Run) -> str:
    """What is wrong with the weights of a run that is done, as the end of a sentence; "" if nothing is."""
    try:
        read_weights(run.folder.path, run.folder.path.name, run.folder.read("result.json"))
    except WeightsError as error:
        return str(error)
    return ""


def _repair(run: Run) -> None:
    """Write the weights again from the checkpoint, which is of the same step as the result."""
    digest = _write_weights(run)
    result = run.folder.read("result.json")
    # Their bytes may differ, since the metadata has no order. Older results have no hash of them.
    if result.get("weights_file", digest) != digest:
        run.folder.write_json("result.json", {**result, "weights_file": digest})


def _write_weights(run: Run) -> str:
    """Write the weights that validation selected; returns the SHA-256 of the file."""
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
    content = seal_weights(weights, {"run": json.dumps(note)})
    run.folder.write(WEIGHTS, content)
    return hashlib.sha256(content).hexdigest()


def _result(run: Run, weights_hash: str) -> dict[str, Any]:
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
        "weights_file": weights_hash,
        "sessions": run.sessions,
    }
