"""The kernel of momentum_backward.cu in numpy, for all threads of a replica at once; emulator.py launches it.

Of what a thread has, threads are the first axis and its channels the next one.
"""

import numpy as np
from emulator import bfloats, low_part


class Owned:
    """A row and the channels of each thread; threads without a row are not there."""

    def __init__(self, blocks, k, B, H):
        i = np.arange(blocks * k.THREADS)
        each = 4 // k.CHANNELS * H
        i = i[i // each < B]
        self.b, self.j, self.H = i // each, i % each * k.CHANNELS, H
        self.c = np.arange(k.CHANNELS)

    def some(self, there):
        self.b, self.j = self.b[there], self.j[there]
        return self

    @property
    def place(self):
        j = self.j[:, None]
        return (j % 4 + self.c) * self.H + j // 4


class Channel:
    """The numbers of a thread's channels."""

    def __init__(self, k, r, place, width, w_ih, b_ih, decay, mu, gain, decay_columns, own_w, own_bias,
                 own_mu, own_gain, step):  # fmt: skip
        assert bool(decay) == k.TABLE != bool(mu), "a table has decays, else channels have"
        assert bool(w_ih) == (k.FEATURES > 0) >= bool(b_ih), "weights are there for features"
        self.k, self.decay, self.decay_columns = k, decay, decay_columns
        if k.FEATURES:
            at = (r * own_w * width + place) * k.FEATURES
            self.w = np.stack([w_ih[at + f] for f in range(k.FEATURES)], -1)
        self.bias = b_ih[r * own_bias * width + place] if b_ih else np.zeros(place.shape)
        self.gain = gain[r * own_gain * width + place] if gain else np.full(place.shape, step)
        self.mu = np.zeros(place.shape) if k.TABLE else mu[r * own_mu * width + place]

    def project(self, x):
        """x: threads by WIDTH."""
        return x if self.k.FEATURES == 0 else (self.w * x[:, None]).sum(-1) + self.bias

    def decay_at(self, t, b, there):
        """The decay of a step, of which channels have none of their own."""
        if not self.k.TABLE:
            return np.zeros(b.shape)
        return self.decay.load(t * self.decay_columns + (b if self.decay_columns > 1 else 0 * b), there)

    def decay_of(self, at_step):
        return at_step[:, None] if self.k.TABLE else self.mu


def inverse_root(x):
    return 1 / np.sqrt(x)


def reader(k, own, x, begins, r, own_x, N, B, width):
    """The row of a step, and what a thread reads of it: threads by WIDTH."""
    stride = k.FEATURES or width
    x += r * own_x * N * stride + (0 if k.FEATURES else own.j)

    def row(t):
        return (begins[t] if k.PACKED else t * B) + own.b

    def read(t, there):
        return np.stack([x.load(row(t) * stride + f, there) for f in range(k.WIDTH)], -1)

    return row, read


def choose(there, x, y):
    """Of threads that are there x, of the others y, whatever channels they have."""
    return np.where(there.reshape(-1, *[1] * (np.ndim(x) - 1)), x, y)


@np.errstate(all="ignore")  # inf and nan are results
def momentum_backward(
    blocks, r, k, x, w_ih, b_ih, decay, mu, gain, saved, begins, lengths, dz, dz_low, scales, dv, dn, sums,
    da, first, last, room, T, B, H, N, decay_columns, own_x, own_w, own_bias, own_mu, own_gain, step, beta,
    one_minus_beta, eps,
):  # fmt: skip
    assert first % k.SPACING == 0, "a chunk begins where moments were saved"
    assert bool(dz_low) == k.FINE, "dz_low is there if it is fine"
    assert bool(da) == k.WRITES_DA, "da is there if it is written"
    own, width = Owned(blocks, k, B, H), 4 * H
    end = np.minimum(lengths[own.b] if k.PACKED else np.full(len(own.b), T), last)
    own, end = own.some(end > first), end[end > first]
    if len(end) == 0:
        return
    b, place, shape = own.b, own.place, own.place.shape
    for pointer in (dz, dz_low, da):
        assert not pointer or pointer.memory.start % k.CHANNELS == 0, "read and written as one word"
    channels = Channel(k, r, place, width, w_ih, b_ih, decay, mu, gain, decay_columns, own_w, own_bias,
                       own_mu, own_gain, step)  # fmt: skip
    state_size, state_begin = B * width, b[:, None] * width + place
    row, read = reader(k, own, x, begins, r, own_x, N, B, width)
    saved += (r * -(-T // k.SPACING) * state_size + b * width + own.j // 4 * 4) * (1 + k.SECOND) + own.j % 4
    before_here = r * room - (begins[first] if k.PACKED else first * B)

    scaled_eps_squared = eps * eps / one_minus_beta if k.MOMENTUM_FORM == 2 else 0
    over_root, root_one_minus_beta = (
        inverse_root(one_minus_beta) if k.MOMENTUM_FORM == 2 else 1,
        np.sqrt(one_minus_beta),
    )
    to_v, to_s = dv[r * state_size + state_begin], np.zeros(shape)
    if k.SECOND:
        to_s = -2 * one_minus_beta * dn[r * state_size + state_begin]
    dw, db, dmu, dgain = np.zeros((*shape, k.FEATURES)), *np.zeros((3, *shape))

    def go_back_through_group(s, steps):
        """The steps from s on, of each thread so many, or none."""
        nonlocal to_v, to_s, dw, db, dmu, dgain
        # Nothing of the steps after these is there any more.
        held, decays, a_or_da = [None] * k.SPACING, [None] * k.SPACING, np.full((k.SPACING, *shape), np.nan)
        by_v, by_s, before = np.full((3, k.SPACING, *shape), np.nan)
        from_, any_ = saved + s // k.SPACING * state_size * (1 + k.SECOND), steps > 0
        v = np.stack([from_.load(c, any_) for c in own.c], -1)
        second = np.stack([from_.load(4 + c, any_) for c in own.c], -1) if k.SECOND else np.zeros(shape)
        every = [(m, m < steps, np.where(m < steps, s + m, 0)) for m in range(k.SPACING)]

        def a_of(m):
            return channels.project(held[m]) if k.HELD else a_or_da[m]

        for m, now, t in every:
            here = before_here + row(t)
            at, scale = (here * width + own.j)[:, None] + own.c, scales.load(here, now)[:, None] * over_root
            by_v[m] = dz.load(at, now[:, None]) * scale
            if k.FINE:
                by_v[m] += dz_low.load(at, now[:, None]) / 2048 * scale
            decays[m] = channels.decay_at(t, b, now)
            if k.HELD:
                held[m] = read(t, now)
            else:
                a_or_da[m] = choose(now, channels.project(read(t, now)), np.nan)
        for m, now, _ in every:
            a = a_of(m)
            if k.LEARNED:
                before[m] = v
            v = choose(now, channels.decay_of(decays[m]) * v + channels.gain * a, v)
            if k.SECOND:
                second = choose(now, beta * second + a * a, second)
                over = inverse_root(second + scaled_eps_squared)
                factor = over if k.MOMENTUM_FORM == 2 else 1 / (root_one_minus_beta * np.sqrt(second) + eps)
                by_v[m] *= factor
                by_s[m] = (
                    by_v[m] * (v * factor) * (over if k.MOMENTUM_FORM == 2 else root_one_minus_beta * over)
                )
        for m, now, t in reversed(every):
            a = a_of(m)
            to_v = choose(now, to_v + by_v[m], to_v)
            if k.LEARNED:
                dmu = choose(now, dmu + to_v * before[m], dmu)
                dgain = choose(now, dgain + to_v * a, dgain)
            to_a = channels.gain * to_v
            to_v = choose(now, to_v * channels.decay_of(decays[m]), to_v)
            if k.SECOND:
                to_s = choose(now, to_s + by_s[m], to_s)
                to_a = to_a - a * to_s
                to_s = choose(now, to_s * beta, to_s)
            db = choose(now, db + to_a, db)
            if k.HELD:
                dw = choose(now, dw + to_a[..., None] * held[m][:, None, : k.FEATURES], dw)
            else:
                a_or_da[m] = choose(now, to_a, np.nan)
            if k.WRITES_DA:
                to = da + (((before_here + row(t)) * width * k.PARTS + own.j)[:, None] + own.c)
                for part in range(k.PARTS):
                    to.store(part * width, bfloats(to_a)[..., 0], now[:, None])
                    to_a = low_part(to_a)
        for m, now, t in [] if k.HELD else every:
            dw = choose(now, dw + a_or_da[m][..., None] * read(t, now)[:, None], dw)

    s = (end - 1) // k.SPACING * k.SPACING
    part = end % k.SPACING
    go_back_through_group(s, part)
    s = np.where(part, s - k.SPACING, s)
    while (s >= first).any():
        go_back_through_group(np.maximum(s, first), np.where(s >= first, k.SPACING, 0))
        s = s - k.SPACING
    dv.store(r * state_size + state_begin, to_v)
    if k.SECOND:
        dn.store(r * state_size + state_begin, -0.5 / one_minus_beta * to_s)
    to = sums + (r * state_size + b[:, None] * width + own.j[:, None] + own.c) * k.SUMS
    for f, one in enumerate([*np.moveaxis(dw, -1, 0), db, *([dmu, dgain] if k.LEARNED else [])]):
        to.store(f, to[f] + one)
