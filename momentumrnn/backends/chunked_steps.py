"""The steps of LSTM, GRU and Elman cells over one chunk of time, forward and backward, without autograd.

Knows neither x nor momentum. Each step is a matrix product and a few operations in place. In shapes, `rows`
are all rows of the chunk.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ..cells import GRU, LSTM, Cell, Elman
from .time_chunks import Chunk, Scratch, Track, backwards, first_rows, forwards

# The backward functions of aten write into tensors that are given; those of autograd make new ones.
_aten = torch.ops.aten


class Piece(NamedTuple):
    """A chunk of time, and all that the steps of a cell need for it.

    u: Uᵀ, (H, G), in a forward pass, and U, (G, H), in a backward pass; b: b_hh; tracks: the state over all
    of time; saved: the tensors of `Steps.saved_widths`, the rows of this chunk.
    """

    chunk: Chunk
    u: Tensor
    b: Tensor | None
    tracks: Sequence[Track]
    saved: Sequence[Tensor]
    scratch: Scratch


class Gradients(NamedTuple):
    """Gradients of a chunk, row by row: of the drive, of U h + b_hh, and of b_hh, (rows, G) each."""

    drive: Tensor
    products: Tensor
    biases: Tensor


class Steps(ABC):
    """The steps of a cell, written by hand.

    saved_widths: widths, in hidden units, of the tensors that the backward needs besides the state;
    output_is_writable: whether users may change the output before the backward, as in torch's own layer.
    """

    saved_widths: ClassVar[tuple[int, ...]]
    output_is_writable: ClassVar[bool] = True

    @abstractmethod
    def forward(self, piece: Piece, drive: Tensor) -> None:
        """Fill the chunk's rows of `tracks` and `saved`. drive: (rows, G), is overwritten."""

    @abstractmethod
    def backward(self, piece: Piece, grad: Tensor, carried: Sequence[Tensor]) -> Gradients:
        """Gradients from that of the chunk's outputs, grad, (rows, H).

        carried: the gradient of each tensor of the state, (B, H): after the chunk's last step on entry,
        before its first on return.
        """


# For speed, slices of columns are copied before tanh: torch would hand them to MKL row by row. Views are made
# for a whole chunk at once: at small sizes a view costs as much as arithmetic.
#
# A slope is a derivative of the new state: by the input of a gate or, for slope_c, of h by c.


class LSTMSteps(Steps):
    saved_widths = (3, 1, 1)  # i f o, g, tanh(c)
    output_is_writable = False

    def forward(self, piece: Piece, drive: Tensor) -> None:
        chunk, u, b, (h, c), (ifo, g, tanh), _ = piece
        if b is not None:
            drive.add_(b)
        size = len(u)
        i, f, o = ifo.chunk(3, 1)
        inputs = (drive, drive[:, : 2 * size], drive[:, 2 * size : 3 * size], drive[:, 3 * size :])
        outputs = (ifo[:, : 2 * size], i, f, o, g, tanh, h.after_steps(chunk), c.after_steps(chunk))
        old_h, old_c = h.before_step(chunk[0]), c.before_step(chunk[0])
        for all_in, if_in, g_in, o_in, i_f, i, f, o, g, tanh, new_h, new_c in forwards(
            chunk, *inputs, *outputs
        ):
            rows = all_in.size(0)
            all_in.addmm_(first_rows(old_h, rows), u)
            torch.sigmoid(if_in, out=i_f)
            torch.sigmoid(o_in, out=o)
            g.copy_(g_in).tanh_()
            torch.mul(f, first_rows(old_c, rows), out=new_c).addcmul_(i, g)
            torch.mul(o, torch.tanh(new_c, out=tanh), out=new_h)
            old_h, old_c = new_h, new_c

    def backward(self, piece: Piece, grad: Tensor, carried: Sequence[Tensor]) -> Gradients:
        chunk, u, _, (_, c), (ifo, g, tanh), scratch = piece
        rows, size = g.shape
        i, f, o = ifo.chunk(3, 1)
        slope_c = _aten.tanh_backward.grad_input(o, tanh, grad_input=scratch("slope_c", rows, size))
        # The slopes of c by the gate inputs of i, f and g, and of h by that of o.
        slopes, d_gates = scratch("slopes", rows, 4, size), scratch("d_gates", rows, 4, size)
        _aten.sigmoid_backward.grad_input(g, i, grad_input=slopes[:, 0])
        _aten.sigmoid_backward.grad_input(c.before_steps(chunk), f, grad_input=slopes[:, 1])
        _aten.tanh_backward.grad_input(i, g, grad_input=slopes[:, 2])
        _aten.sigmoid_backward.grad_input(tanh, o, grad_input=slopes[:, 3])
        d_all = d_gates.flatten(1)
        parts = (grad, slope_c, f, slopes[:, :3], d_gates[:, :3], slopes[:, 3], d_gates[:, 3], d_all)
        for dy, to_c, f_t, slope_ifg, d_ifg, slope_o, d_o, d_gates_t in backwards(chunk, *parts):
            dh, dc = (first_rows(d, dy.size(0)) for d in carried)
            dh.add_(dy)
            dc.addcmul_(dh, to_c)
            torch.mul(dc.unsqueeze(1), slope_ifg, out=d_ifg)
            torch.mul(dh, slope_o, out=d_o)
            dc.mul_(f_t)
            torch.mm(d_gates_t, u, out=dh)
        return Gradients(d_all, d_all, d_all)


class GRUSteps(Steps):
    """See `cells.GRU`."""

    saved_widths = (3, 1)  # r z and U_n h + b_hn, n

    def forward(self, piece: Piece, drive: Tensor) -> None:
        chunk, u, b, (h,), (products, n), _ = piece
        size = len(u)
        inputs = (drive[:, : 2 * size], drive[:, 2 * size :])
        outputs = (products, products[:, : 2 * size], *products.chunk(3, 1), n, h.after_steps(chunk))
        old_h = h.before_step(chunk[0])
        for rz_in, n_in, products, rz, r, z, u_n, n, new_h in forwards(chunk, *inputs, *outputs):
            old_h = first_rows(old_h, new_h.size(0))
            torch.mm(old_h, u, out=products) if b is None else torch.addmm(b, old_h, u, out=products)
            rz.add_(rz_in).sigmoid_()
            torch.addcmul(n_in, r, u_n, out=n).tanh_()
            old_h = torch.lerp(n, old_h, z, out=new_h)

    def backward(self, piece: Piece, grad: Tensor, carried: Sequence[Tensor]) -> Gradients:
        chunk, u, _, (h,), (products, n), scratch = piece
        rows, size = n.shape
        r, z, u_n = products.chunk(3, 1)
        # The slopes of h by the gate inputs of r and z and by U_n h + b_hn. slope_n: by the gate input of n.
        slopes, slope_n = scratch("slopes", rows, 3, size), scratch("slope_n", rows, size)
        _aten.tanh_backward.grad_input(torch.rsub(z, 1), n, grad_input=slope_n)
        _aten.sigmoid_backward.grad_input(u_n, r, grad_input=slopes[:, 0])
        slopes[:, 0].mul_(slope_n)
        _aten.sigmoid_backward.grad_input(h.before_steps(chunk) - n, z, grad_input=slopes[:, 1])
        torch.mul(slope_n, r, out=slopes[:, 2])
        d_gates, d_h = scratch("d_gates", rows, 3, size), scratch("d_h", rows, size)
        d_products = d_gates.flatten(1)
        parts = (grad, z, slopes, d_gates, d_products, d_h)
        for dy, z_t, slopes_t, d_gates_t, d_products_t, dh in backwards(chunk, *parts):
            dh_old = first_rows(carried[0], dy.size(0))
            torch.add(dh_old, dy, out=dh)
            torch.mul(dh.unsqueeze(1), slopes_t, out=d_gates_t)
            torch.mul(dh, z_t, out=dh_old).addmm_(d_products_t, u)
        d_drive = scratch("d_drive", rows, 3 * size).copy_(d_products)
        torch.mul(d_h, slope_n, out=d_drive[:, 2 * size :])
        return Gradients(d_drive, d_products, d_products)


class ElmanSteps(Steps):
    """h_t = f(v_t + U h_{t-1} + b_hh), f being tanh, sigmoid or relu."""

    saved_widths = ()

    def __init__(self, nonlinearity: str) -> None:
        self.activate_ = getattr(torch, nonlinearity + "_")
        self.slope = {"tanh": _tanh_slope, "sigmoid": _sigmoid_slope, "relu": _relu_slope}[nonlinearity]

    def forward(self, piece: Piece, drive: Tensor) -> None:
        chunk, u, b, (h,), _, _ = piece
        if b is not None:
            drive.add_(b)
        old_h = h.before_step(chunk[0])
        for v, new_h in forwards(chunk, drive, h.after_steps(chunk)):
            old_h = self.activate_(torch.addmm(v, first_rows(old_h, v.size(0)), u, out=new_h))

    def backward(self, piece: Piece, grad: Tensor, carried: Sequence[Tensor]) -> Gradients:
        h = piece.tracks[0].after_steps(piece.chunk)
        slopes = self.slope(h, piece.scratch("slopes", *h.shape))
        d_inputs = _elman_backward(piece, slopes, grad, carried[0])
        return Gradients(d_inputs, d_inputs, d_inputs)


class ModReLUSteps(Steps):
    """h_t = sign(y) max(|y| + b_hh, 0), y = v_t + U h_{t-1}."""

    saved_widths = ()

    def forward(self, piece: Piece, drive: Tensor) -> None:
        chunk, u, b, (h,), _, _ = piece
        old_h = h.before_step(chunk[0])
        for v, new_h in forwards(chunk, drive, h.after_steps(chunk)):
            y = torch.addmm(v, first_rows(old_h, v.size(0)), u, out=new_h)
            modulus = torch.abs(y, out=v)
            old_h = y.sign_().mul_((modulus if b is None else modulus.add_(b)).relu_())

    def backward(self, piece: Piece, grad: Tensor, carried: Sequence[Tensor]) -> Gradients:
        h = piece.tracks[0].after_steps(piece.chunk)
        slopes = _relu_slope(h, piece.scratch("slopes", *h.shape))
        d_inputs = _elman_backward(piece, slopes, grad, carried[0])
        return Gradients(d_inputs, d_inputs, d_inputs * h.sign())


def _elman_backward(piece: Piece, slopes: Tensor, grad: Tensor, carried: Tensor) -> Tensor:
    """The gradient of v + U h, from the slopes of h by it. grad, carried: see `Steps.backward`."""
    d_inputs = piece.scratch("d_inputs", *slopes.shape)
    for dy, slope, d_input in backwards(piece.chunk, grad, slopes, d_inputs):
        dh = first_rows(carried, dy.size(0))
        torch.mul(dh.add_(dy), slope, out=d_input)
        torch.mm(d_input, piece.u, out=dh)
    return d_inputs


# Slopes of a nonlinearity from its value h.


def _tanh_slope(h: Tensor, out: Tensor) -> Tensor:
    return torch.mul(h, h, out=out).neg_().add_(1)


def _sigmoid_slope(h: Tensor, out: Tensor) -> Tensor:
    return torch.addcmul(h, h, h, value=-1, out=out)


def _relu_slope(h: Tensor, out: Tensor) -> Tensor:
    return out.copy_(h != 0)


def steps_of(cell: Cell) -> Steps | None:
    """The steps of a cell that are written by hand, or None."""
    if cell == LSTM():
        return LSTMSteps()
    if cell == GRU():
        return GRUSteps()
    if type(cell) is not Elman:
        return None
    return ModReLUSteps() if cell.nonlinearity == "modrelu" else ElmanSteps(cell.nonlinearity)
