"""Which backend runs a network, and why the others don't."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from ..momentum import MomentumState
from . import cuda, native, reference
from .stack import Network, Result


class Backend(Protocol):
    """A module that evaluates networks. It may change the order of evaluation, never the value."""

    def refusal(self, net: Network, sizes: Sequence[int]) -> str:
        """Why it can't run a network, in words for the user; empty if it can."""

    def describe(self, net: Network, sizes: Sequence[int]) -> str:
        """How it evaluates a network that it supports."""

    def run(
        self,
        net: Network,
        x: Tensor,
        sizes: Sequence[int],
        hidden: Sequence[Tensor],
        moments: MomentumState | None,
    ) -> Result:
        """h of every step, (N, ...), and the final state. x: packed, (N, D), or (T, B, D) in any strides."""
        ...


# The fastest first: "auto" takes the first one that can run a network.
BACKENDS: dict[str, Backend] = {"cuda": cuda, "native": native, "reference": reference}
NAMES = ("auto", *BACKENDS)


def choose(name: str, net: Network, sizes: Sequence[int]) -> Backend:
    """The backend of that name, or for "auto" the first one that can run `net`."""
    for known, backend in BACKENDS.items():
        if name in ("auto", known):
            refusal = backend.refusal(net, sizes)
            if not refusal:
                return backend
            if name == known:
                raise RuntimeError(f"backend={name!r} can't run this: {refusal}")
    raise ValueError(f"backend should be one of {', '.join(map(repr, NAMES))}, got {name!r}")


def compiles(name: str, net: Network, sizes: Sequence[int]) -> bool:
    """Whether that backend runs `net` as an operator, which torch.compile can put into its graph."""
    return name in ("auto", "cuda") and not cuda.refusal(net, sizes)


def explain(name: str, net: Network, sizes: Sequence[int]) -> str:
    """One line for each backend: whether it runs `net`, how, or why not."""
    lines, chosen = [], False
    for known, backend in BACKENDS.items():
        refusal = backend.refusal(net, sizes)
        if refusal:
            verdict = f"can't: {refusal}"
        elif chosen or name not in ("auto", known):
            verdict = f"could: {backend.describe(net, sizes)}"
        else:
            verdict, chosen = f"runs: {backend.describe(net, sizes)}", True
        lines.append(f"{known:<10} {verdict}")
    return "\n".join(lines)
