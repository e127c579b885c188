r"""Slow, plain second implementation of momentum recurrent networks: the oracle of the tests.

Every row of the batch is run by itself, step by step. Per layer and direction, with k = 0, 1, ...
counted from the first step read (the reverse direction reads from the row's last valid step):

    a     = W x + b_ih
    v     = decay(k) * v + step * a
    n     = beta * n + (1 - beta) * a * a                      only if beta is not None
    drive = a                                                  without momentum
            v                                                  beta is None
            v / sqrt(n + eps**2)                               beta given
            v / (sqrt(n) + eps)                                beta given, printed
            U times that, or with U v in place of v            factored: True, or "printed"

The drive takes the place of W x + b_ih in the ordinary cell; b is b_hh, U is weight_hh:

    tanh, relu, sigmoid   h = act(drive + U h + b)
    modrelu               y = drive + U h;  h = sign(y) * max(|y| + b, 0)
    lstm                  (i, f, g, o) = drive + U h + b
                          c = sig(f) * c + sig(i) * tanh(g);  h = sig(o) * tanh(c)
                          with weight_hr: h = weight_hr (sig(o) * tanh(c))
    gru                   R = sig(drive_r + U_r h + b_r);  Z = sig(drive_z + U_z h + b_z)
                          N = tanh(drive_n + R * (U_n h + b_n));  h = (1 - Z) * N + Z * h
    extrapolated          y = U h + b - step_size * drive;  mu = j / (j + 3)
                          (i, f, g, o) = y + mu * (y - old y), then as lstm;  j = (j + 1) mod every

The state is (h,), for lstm (h, c), for extrapolated (h, c, y, j).
Missing biases are zero. A layer reads the concatenation [forward, reverse] of the layer below.
"""

import torch
from torch import Tensor

NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")


def momentum_step(a: Tensor, v: Tensor, n: Tensor | None, k: int, momentum: dict):
    """One update of the moments of one row; returns (drive, v, n)."""
    v = momentum["decay"](k) * v + momentum["step"] * a
    beta = momentum.get("beta")
    if beta is None:
        return v, v, None
    n = beta * n + (1 - beta) * a * a
    return v / denominator(n, momentum), v, n


def denominator(n: Tensor, momentum: dict):
    eps = momentum.get("eps", 1e-8)
    return torch.sqrt(n) + eps if momentum.get("printed", False) else torch.sqrt(n + eps**2)


def lstm(gates: Tensor, c: Tensor, weights: dict):
    i, f, g, o = gates.chunk(4)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    h = torch.sigmoid(o) * torch.tanh(c)
    return (h if weights["weight_hr"] is None else weights["weight_hr"] @ h), c


def cell_step(cell: str, drive: Tensor, state: tuple, weights: dict, settings: dict):
    """One step of the ordinary cell for one row; returns the new state."""
    h = state[0]
    r, b = weights["weight_hh"] @ h, weights["bias_hh"]
    if cell in ("tanh", "relu", "sigmoid"):
        return (getattr(torch, cell)(drive + r + b),)
    if cell == "modrelu":
        y = drive + r
        return (torch.sign(y) * torch.relu(torch.abs(y) + b),)
    if cell == "lstm":
        return lstm(drive + r + b, state[1], weights)
    if cell == "extrapolated":
        _, c, old, j = state
        y = r + b - settings["step_size"] * drive
        mu = j / (j + 3)
        return *lstm((1 + mu) * y - mu * old, c, weights), y, torch.remainder(j + 1, settings["every"])
    if cell == "gru":
        (drive_r, drive_z, drive_n), (r_r, r_z, r_n) = drive.chunk(3), (r + b).chunk(3)
        reset, update = torch.sigmoid(drive_r + r_r), torch.sigmoid(drive_z + r_z)
        new = torch.tanh(drive_n + reset * r_n)
        return ((1 - update) * new + update * h,)
    raise ValueError(f"unknown cell {cell!r}")


def widths(cell: str, gates: int, size: int):
    """The columns of each tensor of the state, for `gates` gate rows and h of `size` features."""
    if cell not in ("lstm", "extrapolated"):
        return (size,)
    return (size, gates // 4, gates, 1)[: 2 if cell == "lstm" else 4]


def run_row(xs: list, weights: dict, cell, settings, momentum: dict | None, factored, k: int, state, v, n):
    """One layer and direction over one row, in the order given; returns (outputs, state, v, n)."""
    outputs = []
    for x_t in xs:
        drive = a = weights["weight_ih"] @ x_t + weights["bias_ih"]
        if momentum is not None:
            drive, v, n = momentum_step(a, v, n, k, momentum)
        if factored == "printed" and n is not None:
            drive = (weights["weight_hh"] @ v) / denominator(n, momentum)
        elif factored:
            drive = weights["weight_hh"] @ drive
        state = cell_step(cell, drive, state, weights, settings)
        outputs.append(state[0])
        k += 1
    return outputs, state, v, n


def run(
    x,
    params,
    *,
    cell,
    settings=None,
    momentum=None,
    factored=False,
    num_layers=1,
    bidirectional=False,
    lengths=None,
    hidden=None,
    moments=None,
):
    """Run padded x (T, B, D); returns (out, hidden, moments) with out zero at the padding."""
    total, batch = x.shape[:2]
    lengths = [total] * batch if lengths is None else [int(length) for length in lengths]
    ks = [0] * batch if moments is None else [int(k) for k in moments[2]]
    suffixes = ["", "_reverse"] if bidirectional else [""]
    second = momentum is not None and momentum.get("beta") is not None

    def start(given, position, index, row, width):
        missing = given is None or given[position] is None
        return x.new_zeros(width) if missing else given[position][index, row]

    rows, row_finals = [], []
    for row in range(batch):
        below, finals = list(x[: lengths[row], row].unbind(0)), []
        for layer in range(num_layers):
            directions = []
            for suffix in suffixes:
                weights = {name: params.get(f"{name}_l{layer}{suffix}") for name in NAMES}
                gates, size = weights["weight_hh"].shape
                for name in ("bias_ih", "bias_hh"):
                    weights[name] = x.new_zeros(gates) if weights[name] is None else weights[name]
                at = len(finals), row
                sizes = enumerate(widths(cell, gates, size))
                state = tuple(start(hidden, position, *at, width) for position, width in sizes)
                v = start(moments, 0, *at, gates) if momentum is not None else None
                n = start(moments, 1, *at, gates) if second else None
                xs = below[::-1] if suffix else below
                how = cell, settings, momentum, factored
                outputs, state, v, n = run_row(xs, weights, *how, ks[row], state, v, n)
                directions.append(outputs[::-1] if suffix else outputs)
                finals.append((*state, v, n))
            below = [torch.cat(pair) for pair in zip(*directions, strict=True)]
        padding = x.new_zeros(len(suffixes) * finals[-1][0].shape[0])
        rows.append(torch.stack(below + [padding] * (total - lengths[row])))
        row_finals.append(finals)

    def collect(position):
        return torch.stack(
            [
                torch.stack([finals[index][position] for finals in row_finals])
                for index in range(num_layers * len(suffixes))
            ]
        )

    *hidden, v, n = range(len(row_finals[0][0]))
    moments = collect(v) if momentum is not None else None, collect(n) if second else None
    ks = [k + length for k, length in zip(ks, lengths, strict=True)]
    return torch.stack(rows, dim=1), tuple(map(collect, hidden)), (*moments, ks)
