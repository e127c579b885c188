"""Replicas of one network, a seed each, and a training step for all of them. Knows no files and no epochs.

Their parameters are the rows of one matrix theta (R, P), or of two, the tangents of orthogonal matrices
apart: one norm, one clipping and one step of an optimiser serve all. On a GPU the whole step is a CUDA graph.
Where the fused kernels serve the layer its replicas are one launch, by torch.vmap; else they run one by one.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from ...backends import registry
from ...constraints import optimizer_groups, rebase_
from ...cuda_graph import capture
from ..config import Config
from ..models import Model
from ..tasks import Data, Rows

# Samples of each replica at a time, where none is trained on.
EVALUATED = {"cuda": 500, "cpu": 100}
_REPLAY = 1e-2  # the largest relative difference between what a graph leaves and what its calls do


class Replicas:
    """R networks on one device, side by side.

    losses, norms, fine: (n, R), of the steps of this epoch; a step is fine if loss, gradient and where it
    leads are finite. alive: (R,), false from the first on that was not: like all after it, it left that
    replica as it was. torn: whether some of a step may be undone; whoever takes steps
    says when one is whole.
    """

    def __init__(
        self, config: Config, models: Sequence[Model], seeds: Sequence[int], data: Data, device: torch.device
    ) -> None:
        self.config, self.task, self.device = config, config.task, device
        self.models = [model.to(device).train() for model in models]
        self.tensors = tuple(t.to(device) for t in data.tensors)
        constants = zip(*(self.task.constants(seed) for seed in seeds), strict=True)
        self.constants = tuple(torch.stack(of_seeds).to(device) for of_seeds in constants)
        self.alive = torch.ones(len(models), dtype=torch.bool, device=device)
        self.taken = torch.zeros(len(models), device=device)
        self._join()
        # From this norm on torch's clip_grad_norm_ makes a gradient 0: its square is infinite.
        self.steepest = torch.finfo(self.theta[0].dtype).max ** 0.5 if config.clip else math.inf
        self.optimizers = [self._optimizer(i) for i in range(len(self.theta))]
        for optimizer, theta in zip(self.optimizers, self.theta, strict=True):
            # Makes its state, and leaves theta as it is: all gradients are 0.
            theta.grad = torch.zeros_like(theta)
            optimizer.step()
            for t in optimizer.state[theta].values():
                t.zero_()
        self.together = self.torn = False
        self.rows: Rows = ()
        self.losses = self.norms = self.fine = torch.empty(0)
        self.index = torch.zeros((), dtype=torch.int64, device=device)
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.reason = "" if device.type == "cuda" else "no GPU"
        if config.orthogonal:
            self.reason = self.reason or "the exponential of a matrix reads values back"

    def _join(self) -> None:
        """Make the parameters of all models the rows of theta."""
        self.names: list[list[str]] = []
        self.theta: list[Tensor] = []
        groups = optimizer_groups(self.models[0], lr=1.0, orthogonal_lr=1.0)
        for group in groups:
            members = set(map(id, group["params"]))
            names = [name for name, p in self.models[0].named_parameters() if id(p) in members]
            rows = [[model.get_parameter(name) for name in names] for model in self.models]
            theta = torch.stack([parameters_to_vector(row).detach() for row in rows])
            for flat, row in zip(theta, rows, strict=True):
                vector_to_parameters(flat, row)  # as views
            self.names.append(names)
            self.theta.append(theta.requires_grad_())

    def _optimizer(self, group: int) -> torch.optim.Optimizer:
        config, theta = self.config, [self.theta[group]]
        graph = self.device.type == "cuda"
        if group == 1:
            return torch.optim.RMSprop(theta, lr=config.orthogonal_lr, capturable=graph)
        if config.optimizer == "rmsprop":
            return torch.optim.RMSprop(theta, lr=config.lr, alpha=config.alpha, capturable=graph)
        if config.optimizer == "adam":
            return torch.optim.Adam(theta, lr=config.lr, capturable=graph)
        return torch.optim.SGD(theta, lr=config.lr)

    def state(self, replica: int) -> dict[str, Any]:
        """All that a replica is made of, as copies on the CPU."""
        weights = {k: v.detach().cpu().clone() for k, v in self.models[replica].state_dict().items()}
        return {"weights": weights, "optimizer": [self._moments(i, replica) for i in range(len(self.theta))]}

    def _moments(self, group: int, replica: int) -> dict[str, Tensor]:
        """What an optimiser knows of one replica."""
        moments = self.optimizers[group].state[self.theta[group]]
        # The one number that replicas share in an optimiser is its count of steps.
        return {k: (t if t.dim() else self.taken)[replica].cpu().clone() for k, t in moments.items()}

    def restore(self, replica: int, state: dict[str, Any]) -> None:
        """Take over what `state` gave; all replicas should have taken the same number of steps."""
        with torch.no_grad():
            self.models[replica].load_state_dict(state["weights"])
            for i, moments in enumerate(state["optimizer"]):
                for k, t in self.optimizers[i].state[self.theta[i]].items():
                    (t[replica] if t.dim() else t).copy_(moments[k])
                    if not t.dim():
                        self.taken[replica] = moments[k]

    def begin(self, rows: Sequence[Rows], first: int) -> None:
        """Set out on an epoch, at its step `first`. rows: of each replica, on the CPU, the whole epoch's."""
        stacked = [torch.stack(of_replicas) for of_replicas in zip(*rows, strict=True)]
        steps = -(-stacked[0].shape[1] // self.config.batch_size)
        if self.graphs and steps == len(self.losses):
            # The graphs read where these lie.
            for old, new in zip(self.rows, stacked, strict=True):
                old.copy_(new.pin_memory(), non_blocking=True)
        else:
            self.rows = tuple(t.to(self.device) for t in stacked)
            shape = steps, len(self.models)
            self.losses, self.norms = torch.zeros(2, *shape, dtype=torch.float64, device=self.device)
            self.fine = torch.zeros(shape, dtype=torch.bool, device=self.device)
            self.graphs = {}
            self.together = len(self.models) > 1 and self._is_fused()
        self.losses.zero_()
        self.norms.zero_()
        self.index.fill_(first)

    def _is_fused(self) -> bool:
        x, _ = self._batch(0, tuple(r[0, : self.config.batch_size] for r in self.rows))
        rnn = self.models[0].rnn
        net, sizes = rnn._network(), [x.shape[1]] * len(x)
        return registry.choose(rnn.backend, net, sizes) is registry.BACKENDS["cuda"]

    def step(self, index: int) -> None:
        """One training step of every replica: the one of that index in the epoch, which is the next."""
        size = min(self.config.batch_size, self.rows[0].shape[1] - index * self.config.batch_size)
        if not self.reason and size not in self.graphs:
            self._capture(size)
        if self.reason:
            self._step(size)
        else:
            self.torn = True
            self.graphs[size].replay()

    def _step(self, size: int) -> None:
        config = self.config
        take = self.index * config.batch_size + torch.arange(size, device=self.device)
        loss = self._gradients(tuple(r.index_select(1, take) for r in self.rows))
        with torch.no_grad():
            grads = [theta.grad for theta in self.theta if theta.grad is not None]
            # In float64, so that it is known, and the seed goes on, where float32 can't hold its square.
            norm = torch.linalg.vector_norm(torch.cat(grads, 1), dim=1, dtype=torch.float64)
            if config.clip:
                factor = (config.clip / (norm + 1e-6)).clamp(max=1)
                factor = factor.where(norm <= self.steepest, 0).unsqueeze(1)
                for g in grads:
                    g.mul_(factor)
            changed = self._changed_by_a_step()
            before = [t.clone() for t in changed]
            self.torn = True
            for optimizer in self.optimizers:
                optimizer.step()
            fine = self.alive & loss.isfinite() & norm.isfinite()
            for t in changed:
                fine &= t.isfinite().all(1)
            self.taken += fine
            for t, old in zip(changed, before, strict=True):
                t.copy_(torch.where(fine.unsqueeze(1), t, old))
            self.alive.copy_(fine)
            now = torch.arange(len(self.losses), device=self.device).unsqueeze(1) == self.index
            for log, value in ((self.losses, loss), (self.norms, norm), (self.fine, fine)):
                log.copy_(torch.where(now, value.to(log.dtype), log))
            self.index += 1

    def rebase(self) -> None:
        """Move the bases of orthogonal matrices to where these are now, unless they are frozen."""
        for model, alive in zip(self.models, self.alive.tolist(), strict=True):
            if alive:
                rebase_(model)

    def _gradients(self, rows: Rows) -> Tensor:
        """The loss of each replica, (R,); the gradients are in theta.grad."""
        if self.together:
            theta = self.theta[0]
            parameters = [self.models[0].get_parameter(name) for name in self.names[0]]
            shapes = [p.shape for p in parameters]

            def loss(flat: Tensor, constants: tuple[Tensor, ...], rows: Rows) -> Tensor:
                parts = torch.split(flat, [s.numel() for s in shapes])
                weights = {n: p.view(s) for n, p, s in zip(self.names[0], parts, shapes, strict=True)}
                x, target = self.task.batch(self.tensors, constants, rows)
                out = functional_call(self.models[0], weights, (x,))
                return self.task.loss(out, target).mean()

            losses = torch.vmap(loss)(theta, self.constants, rows)
            (theta.grad,) = torch.autograd.grad(losses.sum(), theta)
            return losses.detach()
        means = []
        for r, model in enumerate(self.models):
            x, target = self._batch(r, tuple(tensor[r] for tensor in rows))
            mean = self.task.loss(model(x), target).mean()
            groups = [[model.get_parameter(name) for name in names] for names in self.names]
            grads = iter(torch.autograd.grad(mean, [p for group in groups for p in group]))
            for theta, group in zip(self.theta, groups, strict=True):
                assert theta.grad is not None
                torch.cat([next(grads).flatten() for _ in group], out=theta.grad[r])
            means.append(mean.detach())
        return torch.stack(means)

    def _batch(self, replica: int, rows: Rows) -> tuple[Tensor, Tensor]:
        return self.task.batch(self.tensors, tuple(c[replica] for c in self.constants), rows)

    def _changed_by_a_step(self) -> list[Tensor]:
        """Every tensor (R, P) that a step changes."""
        states = [
            t for o, theta in zip(self.optimizers, self.theta, strict=True) for t in o.state[theta].values()
        ]
        return [*(theta.detach() for theta in self.theta), *(t for t in states if t.dim())]

    def _capture(self, size: int) -> None:
        """Make the graph of a step on `size` samples; if that can't be, remember why."""
        scalars = [t for o in self.optimizers for s in o.state.values() for t in s.values() if not t.dim()]
        logs = [self.losses, self.norms, self.fine]
        touched = [*self._changed_by_a_step(), *scalars, self.alive, self.taken, *logs, self.index]
        before = [t.clone() for t in touched]

        def reset() -> None:
            for t, old in zip(touched, before, strict=True):
                t.copy_(old)

        after_step: list[Tensor] = []

        def remember() -> None:
            after_step.extend(t.clone() for t in touched)

        def check(graph: torch.cuda.CUDAGraph, result: None) -> None:
            graph.replay()
            for t, expected in zip(touched, after_step, strict=True):
                scale = float(expected.double().nan_to_num(0, 0, 0).abs().max())
                if not torch.allclose(
                    t.double(), expected.double(), _REPLAY, _REPLAY * scale, equal_nan=True
                ):
                    self.reason = "replayed, a graph of the step gave something else"

        # The graphs share one pool: they run one after another, and leave nothing in it.
        pools = [graph.pool() for graph in self.graphs.values()]
        try:
            self.graphs[size], _ = capture(
                partial(self._step, size),
                prepare=reset,
                after_warmup=remember,
                check=check,
                pool=pools[0] if pools else None,
            )
        except RuntimeError as error:
            self.reason = f"{error}".splitlines()[0]
        torch.cuda.synchronize()
        reset()

    @torch.no_grad()
    def evaluate(self, rows: Rows, stopped: Callable[[], bool] = lambda: False) -> list[dict[str, float]]:
        """The mean loss of each replica and, where there is one, its accuracy. rows: on the CPU, for all."""
        totals: dict[str, Tensor] = {}
        states = [model.state_dict() for model in self.models]
        weights = {k: torch.stack([state[k] for state in states]) for k in states[0]}
        for part in zip(*(torch.split(r, EVALUATED[self.device.type]) for r in rows), strict=True):
            if stopped():
                return []
            on_device = tuple(t.to(self.device) for t in part)

            def scores(
                weights: dict[str, Tensor], constants: tuple[Tensor, ...], rows: Rows = on_device
            ) -> dict[str, Tensor]:
                x, target = self.task.batch(self.tensors, constants, rows)
                out = functional_call(self.models[0], weights, (x,))
                of_samples = {
                    "loss": self.task.loss(out, target),
                    "accuracy": self.task.accuracy(out, target),
                }
                return {k: v.double().sum() for k, v in of_samples.items() if v is not None}

            if self.together:
                sums = torch.vmap(scores)(weights, self.constants)
            else:
                by_replica = [
                    scores({k: w[r] for k, w in weights.items()}, tuple(c[r] for c in self.constants))
                    for r in range(len(self.models))
                ]
                sums = {k: torch.stack([sum_of[k] for sum_of in by_replica]) for k in by_replica[0]}
            totals = {k: totals.get(k, 0) + v for k, v in sums.items()}
        means = {k: (total / len(rows[0])).tolist() for k, total in totals.items()}
        return [{k: values[r] for k, values in means.items()} for r in range(len(self.models))]
