"""Time and memory a sample, as in tables 14 and 15 of the paper: ours, torch.nn.LSTM, the paper's listing.

Knows no accuracy: pixels are random, and a step costs the same on them. Nothing is timed that does not agree
with the definition in float64.
"""

import gc
import json
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..bench import loop
from ..cuda_graph import captured
from ..provenance import provenance
from ..repr_parser import nearest
from .config import Config
from .engine.devices import choose_device, torch_settings
from .engine.replicas import EVALUATED, Replicas
from .models import build
from .paper.recipes import recipe
from .runs.store import RunError, write_whole
from .tasks import PMNIST, Data, generator
from .tasks.mnist import PIXELS

TASK = "PMNIST"
SHAPE = {"hidden_size": 256, "batch_size": 128, "length": PIXELS}
_KEYS = {"train_ms", "eval_ms", "train_mb", "eval_mb", "how", "loss", "errors"}
MODELS = ("LSTM", "MomentumLSTM", "AdamLSTM", "RMSPropLSTM", "SRLSTM", "SRLSTM-released")
# Whether they are timed as CUDA graphs, on a GPU. As such a listing would be many thousand launches.
_GRAPHS = {"ours": (True,), "torch.nn": (False, True), "listing": (False,)}
_SEED = 0
_ROUNDS = 5
_BATCHES = {"cuda": 4, "cpu": 1}  # of EVALUATED samples, in one evaluation
_PART = {"batch_size": 4, "length": 64}  # at most: what the gradient is compared on
# Largest relative difference to float64 of a loss and of a gradient's norm; beside it the largest seen. The
# drives of Adam and RMSProp leap where W x + b_ih crosses 0.
_TOLERANCE = {
    "cpu": {"loss": 1e-5, "gradient_norm": 1e-4},  # 1.3e-7, 9.5e-7
    "cuda": {"loss": 1e-4, "gradient_norm": 1e-3},  # 4.6e-7, 1.8e-5
    "cuda, Adam": {"loss": 1e-4, "gradient_norm": 1e-2},  # 1.3e-6, 4.4e-4
}


@dataclass(frozen=True)
class Contender:
    """A network, and who runs it.

    kind: "ours", as the trainer does; "torch.nn", a plain script with torch's layer; "listing", the paper's
    loop over time, step by step. model: one of MODELS.
    """

    kind: str
    model: str


CONTENDERS = {
    f"{kind}/{model}": Contender(kind, model)
    for kind, models in (("ours", MODELS), ("torch.nn", ("LSTM",)), ("listing", MODELS))
    for model in models
}


@dataclass(frozen=True)
class _Pixels(PMNIST):
    """PMNIST, of which so many pixels are read."""

    length: int = PIXELS

    def constants(self, seed: int) -> tuple[Tensor, ...]:
        return tuple(order[: self.length] for order in super().constants(seed))


class _Ours:
    """A network as the trainer has it; graph: whether its steps are a CUDA graph, where they can be."""

    def __init__(self, config: Config, data: Data, device: torch.device, graph: bool) -> None:
        self.replicas = Replicas(config, [build(config, _SEED)], [_SEED], data, device)
        if not graph:
            self.replicas.reason = "told so"
        self.replicas.begin([(torch.arange(config.batch_size),)], 0)

    def step(self) -> None:
        """Train on the first samples, again and again."""
        self.replicas.index.fill_(0)
        self.replicas.step(0)

    @property
    def last_step(self) -> tuple[float, float]:
        """The loss of the last step, and the norm of its gradient before clipping."""
        return self.replicas.losses[0].item(), self.replicas.norms[0].item()

    def evaluate(self, samples: int) -> float:
        """The mean loss of the first so many samples."""
        return self.replicas.evaluate((torch.arange(samples),))[0]["loss"]

    @property
    def ways(self) -> dict[str, str]:
        """How it trains and evaluates, in words."""
        return {"training": "eager" if self.replicas.reason else "CUDA graph", "evaluation": "eager"}


class _Script:
    """The same by a plain script, as one writes it with torch; graph: all of it as CUDA graphs.

    layer: torch's or ours; run: how it is called, (T, B, 1) -> outputs, final states; head: what answers.
    """

    def __init__(
        self,
        config: Config,
        data: Data,
        device: torch.device,
        graph: bool,
        layer: nn.Module,
        run: Callable[[Tensor], tuple[Any, Any]],
        head: nn.Linear,
    ) -> None:
        self.task, self.clip, self.run, self.head, self.graph = config.task, config.clip, run, head, graph
        self.network = nn.ModuleList([layer, head])
        self.tensors, self.size = data.tensors, EVALUATED[device.type]
        self.constants = tuple(c.to(device) for c in config.task.constants(_SEED))
        self.optimizer = torch.optim.RMSprop(
            self.network.parameters(), lr=config.lr, alpha=config.alpha, capturable=graph
        )
        self.last, self.total = torch.zeros(2, 2, dtype=torch.float64, device=device)
        self.rows = torch.arange(config.batch_size, device=device)
        self.step, self.score = self._step, self._score
        if graph:
            self._capture(torch.arange(self.size, device=device))

    def _capture(self, scored_rows: Tensor) -> None:
        first_weights = {name: t.clone() for name, t in self.network.state_dict().items()}
        self.step, score = captured(self._step), captured(partial(self._score, scored_rows))
        self.network.load_state_dict(first_weights)

        def replay(rows: Tensor) -> None:
            scored_rows.copy_(rows)
            score()

        self.score = replay

    def _answer(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        x, target = self.task.batch(self.tensors, self.constants, (rows,))
        _, final = self.run(x.to(self.head.weight.dtype))
        return self.head(final[0][-1]), target

    def _step(self) -> None:
        self.network.train()
        loss = cross_entropy(*self._answer(self.rows))
        torch.autograd.backward(loss)
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.last.copy_(torch.stack((loss.detach(), norm)))

    @torch.no_grad()
    def _score(self, rows: Tensor) -> None:
        self.network.eval()
        out, target = self._answer(rows)
        right = (out.argmax(-1) == target).sum()
        self.total += torch.stack((cross_entropy(out, target, reduction="sum"), right))

    @property
    def last_step(self) -> tuple[float, float]:
        """The loss of the last step, and the norm of its gradient before clipping."""
        loss, norm = self.last.tolist()
        return loss, norm

    def evaluate(self, samples: int) -> float:
        """The mean loss of the first so many samples."""
        self.total.zero_()
        for rows in torch.split(torch.arange(samples), self.size):
            self.score(rows.to(self.total.device))
        loss: float = self.total.tolist()[0]
        return loss / samples

    @property
    def ways(self) -> dict[str, str]:
        """How it trains and evaluates, in words."""
        return dict.fromkeys(("training", "evaluation"), "CUDA graph" if self.graph else "eager")


class _Definition:
    """What a network gives in float64 by its definition: a gradient on a small part, and losses on all.

    errors: the largest relative differences that a contender has shown.
    """

    def __init__(
        self, name: str, config: Config, small: Config, data: Data, device: torch.device, samples: int
    ) -> None:
        part, whole = (
            _script("definition", replace(version, precision="float64"), data, device, False)
            for version in (small, config)
        )
        part.step()
        self.part, self.samples = part.last_step, samples
        self.first, self.mean = whole.evaluate(config.batch_size), whole.evaluate(samples)
        leaps = config.momentum is not None and not config.momentum.linear
        self.name, self.errors = name, {"loss": 0.0, "gradient_norm": 0.0}
        self.tolerance = _TOLERANCE["cuda, Adam" if leaps and device.type == "cuda" else device.type]

    def check(self, part: _Ours | _Script, whole: _Ours | _Script) -> float:
        """Refuse a contender that gives something else; returns its first loss. Both take a step."""
        part.step()
        for quantity, got, expected in zip(self.errors, part.last_step, self.part, strict=True):
            self._compare(quantity, got, expected)
        self._compare("loss", whole.evaluate(self.samples), self.mean)
        whole.step()
        loss = whole.last_step[0]
        self._compare("loss", loss, self.first)
        return loss

    def _compare(self, quantity: str, got: float, expected: float) -> None:
        error, tolerance = abs(got - expected) / abs(expected), self.tolerance[quantity]
        if not error <= tolerance:  # so that nan is refused
            raise RunError(
                f"{self.name} is not timed: its {quantity.replace('_', ' ')} should be {expected:.6g} within "
                f"{tolerance:.0e}, got {got:.6g}"
            )
        self.errors[quantity] = max(self.errors[quantity], error)


def measure(
    name: str,
    device: torch.device,
    *,
    hidden_size: int = SHAPE["hidden_size"],
    batch_size: int = SHAPE["batch_size"],
    length: int = SHAPE["length"],
    least_seconds: float | None = None,
) -> dict[str, Any]:
    """What a contender costs a sample, once it has shown that it agrees with the definition.

    "train_ms": a whole training step, from pixels to new weights; "eval_ms": evaluation; "train_mb",
    "eval_mb": MiB at the peak, beyond data and what was there before the network, None on a CPU; "how": in
    words; "loss": of the first batch; "errors": relative, of losses and the gradient's norm against float64.
    length: how many pixels are read; least_seconds: that each time is measured for, by default 1 on a GPU and
    on a CPU as long as two calls take.
    """
    if name not in CONTENDERS:
        hint = nearest(name, CONTENDERS) or f"; there are {', '.join(CONTENDERS)}"
        raise ValueError(f"name should be that of a contender, got {name!r}{hint}")
    contender, cuda = CONTENDERS[name], device.type == "cuda"
    least = float(cuda) if least_seconds is None else least_seconds
    config = _config(contender, hidden_size, batch_size, length)
    small = _config(
        contender, hidden_size, min(batch_size, _PART["batch_size"]), min(length, _PART["length"])
    )
    samples = _BATCHES[device.type] * EVALUATED[device.type]
    data = _data(max(samples, batch_size), device)
    seconds: dict[str, dict[str, float]] = {"training": {}, "evaluation": {}}
    notes, loss = ["memory: eager" if cuda else f"threads: {torch.get_num_threads()}"], 0.0
    with torch.enable_grad(), torch_settings(config, device):
        definition = _Definition(name, config, small, data, device, samples)
        train_mb, eval_mb = _peaks(contender.kind, config, data, samples) if cuda else (None, None)
        for graph in _GRAPHS[contender.kind] if cuda else (False,):
            try:
                part, whole = (
                    _runner(contender.kind, version, data, device, graph) for version in (small, config)
                )
            except RuntimeError as error:
                # What can't be captured is timed without; what can't be run at all is not.
                if not seconds["training"]:
                    raise
                notes.append(f"no CUDA graph: {error}".splitlines()[0])
                continue
            loss = definition.check(part, whole)
            evaluate = partial(whole.evaluate, samples)
            seconds["training"][whole.ways["training"]] = _seconds(whole.step, device, least)
            seconds["evaluation"][whole.ways["evaluation"]] = _seconds(evaluate, device, least)
    best = {activity: min(ways, key=ways.__getitem__) for activity, ways in seconds.items()}
    return {
        "train_ms": 1e3 * seconds["training"][best["training"]] / batch_size,
        "eval_ms": 1e3 * seconds["evaluation"][best["evaluation"]] / samples,
        "train_mb": train_mb,
        "eval_mb": eval_mb,
        "how": ", ".join([*(f"{activity}: {way}" for activity, way in best.items()), *notes]),
        "loss": loss,
        "errors": definition.errors,
    }


def costs(
    path: Path, device: str | None = None, command: str = "", note: Callable[[str], None] = print
) -> dict[str, Any]:
    """What all contenders cost, as the JSON file at `path` has it; those that it lacks are measured now.

    The file is written anew, whole, after each: stopped and repeated it goes on with the next. device: "cpu"
    or "cuda", by default cuda if there is one; command: for the record; note: told of each that is done. Each
    row is of `measure`, with the date and commit of its session and torch's version.
    """
    chosen = choose_device(device)
    session = provenance(command, chosen.type)
    subject = {"device": session["device"], "task": TASK, **SHAPE}
    content = _read(path, subject) or {**session, **subject, "rows": {}}
    origin = {"date": session["date"], "commit": session["commit"], "torch": session["versions"]["torch"]}
    for name in CONTENDERS:
        if name not in content["rows"]:
            row = measure(name, chosen, **SHAPE)
            content["rows"][name] = {**row, **origin}
            write_whole(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())
            note(f"{name}: {row['train_ms']:.3g} ms a sample in training, {row['eval_ms']:.3g} in evaluation")
    return content


def place(root: Path, device_name: str) -> Path:
    """Where the costs on a device are kept.

    >>> place(Path("results"), "NVIDIA H200").as_posix()
    'results/cost-nvidia-h200.json'
    """
    slug = re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-")
    return root / f"cost-{slug}.json"


def _data(count: int, device: torch.device) -> Data:
    # The first are the same, however many there are.
    images = torch.randint(0, 256, (count, PIXELS), generator=generator("cost", "images"), dtype=torch.uint8)
    labels = torch.randint(0, 10, (count,), generator=generator("cost", "labels"))
    return Data((images.to(device), labels.to(device), torch.tensor(count)), {})


def _config(contender: Contender, hidden_size: int, batch_size: int, length: int) -> Config:
    """That of the paper's first table, in this size."""
    return replace(
        recipe(f"table1/{contender.model}/{TASK}/256").config,
        task=_Pixels(length=length),
        hidden_size=hidden_size,
        batch_size=batch_size,
        # The trainer asks for it; whoever writes a script does not.
        deterministic=contender.kind == "ours",
    )


def _runner(kind: str, config: Config, data: Data, device: torch.device, graph: bool) -> _Ours | _Script:
    return (_Ours if kind == "ours" else partial(_script, kind))(config, data, device, graph)


def _script(kind: str, config: Config, data: Data, device: torch.device, graph: bool) -> _Script:
    model = build(config, _SEED).to(device)
    layer: nn.Module = model.rnn
    run: Callable[[Tensor], tuple[Any, Any]] = partial(loop, model.rnn)
    if kind == "torch.nn":
        # Made there, for cuDNN wants all weights in one piece.
        layer = run = nn.LSTM(config.task.features, config.hidden_size, device=device)
        layer.load_state_dict(model.rnn.state_dict())
    elif kind == "definition":
        model.rnn.backend, run = "reference", model.rnn
    return _Script(config, data, device, graph, layer, run, model.head)


def _peaks(kind: str, config: Config, data: Data, samples: int) -> tuple[float, float]:
    """MiB a sample at the peak of training and of evaluation on a GPU, one call after another, no graph."""
    gc.collect()
    before = torch.cuda.memory_allocated()
    runner = _runner(kind, config, data, data.tensors[0].device, False)
    peaks = []
    for call in (runner.step, partial(runner.evaluate, samples)):
        torch.cuda.reset_peak_memory_stats()
        for _ in range(2):  # the first makes the optimiser's state
            call()
        peaks.append((torch.cuda.max_memory_allocated() - before) / 2**20)
    return peaks[0] / config.batch_size, peaks[1] / EVALUATED["cuda"]


def _seconds(call: Callable[[], object], device: torch.device, least: float) -> float:
    """The median seconds of a call, over rounds that take `least` seconds, and two at least."""

    def seconds_per_call(calls: int) -> float:
        started = time.perf_counter()
        for _ in range(calls):
            call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - started) / calls

    seconds_per_call(1)  # warms up
    times, until = [seconds_per_call(1)], time.perf_counter() + least
    # Several in a round, so that a GPU does not wait between them.
    calls = max(1, int(least / _ROUNDS / times[0]))
    while len(times) < 2 or time.perf_counter() < until:
        times.append(seconds_per_call(calls))
    return statistics.median(times)


def _read(path: Path, subject: dict[str, Any]) -> dict[str, Any] | None:
    """The content of a file of costs, None if there is none; that of another subject is refused."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(f"{path} can't be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        content = None
    got = {key: content.get(key) for key in subject} if isinstance(content, dict) else "something else"
    if got != subject:
        raise RunError(
            f"{path} should have the costs of {subject}, got {got}: move it away to measure afresh"
        )
    rows = content.get("rows")
    whole = isinstance(rows, dict) and all(
        isinstance(row, dict) and row.keys() >= _KEYS for row in rows.values()
    )
    if not whole:
        raise RunError(
            f"{path} should have rows of {sorted(_KEYS)}, got others: move it away to measure afresh"
        )
    return dict(content)
