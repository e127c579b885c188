"""Which backend runs a network, and why the others don't."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from ..momentum import MomentumState
from . import cuda, native, reference
from .stack import Network, Result


class Backend(Protocol):
    """A module that evaluates networks. It may change the order of evaluation, never the value."""

    def supports(self, net: Network, sizes: Sequence[int]) -> str:
        """Empty, or the reason why not, for the user to read."""

    def about(self, net: Network, sizes: Sequence[int]) -> str:
        """How it evaluates a network that it supports."""

    def run(
        self,
        net: Network,
        x: Tensor,
        sizes: Sequence[int],
        hidden: Sequence[Tensor],
        moments: MomentumState | None,
    ) -> Result: ...


# Fastest first: "auto" takes the first that can.
BACKENDS: dict[str, Backend] = {"cuda": cuda, "native": native, "reference": reference}
NAMES = ("auto", *BACKENDS)


def choose(name: str, net: Network, sizes: Sequence[int]) -> Backend:
    """The backend of that name, or for "auto" the first that can run `net`."""
    for known, backend in BACKENDS.items():
        if name in ("auto", known):
            reason = backend.supports(net, sizes)
            if not reason:
                return backend
            if name == known:
                raise RuntimeError(f"backend={name!r} can't run this: {reason}")
    raise ValueError(f"backend should be one of {', '.join(map(repr, NAMES))}, got {name!r}")


def explain(name: str, net: Network, sizes: Sequence[int]) -> str:
    """One line for each backend: whether it runs `net`, how, or why not."""
    lines, chosen = [], False
    for known, backend in BACKENDS.items():
        reason = backend.supports(net, sizes)
        if reason:
            verdict = f"can't: {reason}"
        elif chosen or name not in ("auto", known):
            verdict = f"could: {backend.about(net, sizes)}"
        else:
            verdict, chosen = f"runs: {backend.about(net, sizes)}", True
        lines.append(f"{known:<10} {verdict}")
    return "\n".join(lines)
