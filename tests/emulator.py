"""The kernels of momentumrnn/kernels in numpy, index by index, for machines without a GPU.

Names and order are those of the .cu files, so that both can be read side by side; constants, parameters, the
sizes of shared memory and the bytes that barriers wait for are read from there. What differs:

- Numbers are float64 and not rounded unless ROUND: what has 16 bits is one of them, what has 32 bits is two.
- A warp is a generator, its lanes an axis. Warps, and messages between them, take turns in random order.
- Memory is watched. Nothing is read before it is written or beyond its end; every element of an output is
  written once; and accesses of shared memory by two warps, one of which writes, need a barrier between them
  that orders them in every schedule, not in this one alone (clocks of Lamport's kind, one for each warp).
  No CTA leaves before it knows that all that others write there has come.
"""

import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from momentumrnn.kernels import nvrtc
from momentumrnn.kernels.launch import FILES

FOLDER = Path(__file__).parent.parent / "momentumrnn" / "kernels"
ROUND = False  # to 16 bits, as the kernels do

# ---- what is read from the sources


@cache
def source(name):
    """A .cu file without comments, after the one that all share."""
    return re.sub(r"//.*", "", "".join((FOLDER / f"{file}.cu").read_text() for file in ("common", name)))


@cache
def code(expression):
    python = expression.strip().replace("/", "//").replace("||", " or ").replace("&&", " and ")
    return compile(python, "constexpr", "eval")


def value(expression, names):
    """Of an integer expression in C."""
    inner = re.search(r"\(([^()]*)\)", expression)
    if inner:
        found = value(inner[1], names)
        return value(expression[: inner.start()] + str(found) + expression[inner.end() :], names)
    if "?" in expression:
        condition, choice = expression.split("?", 1)
        return value(choice.split(":", 1)[0 if value(condition, names) else 1], names)
    return int(eval(code(expression), {}, names))


def constants(file, **defines):
    """All constexpr of a file compiled with these macros, without those of templates."""
    found = dict(defines)
    for kind, text in re.findall(r"constexpr (bool|int|u32|float) (.*?);", source(file)):
        for part in text.split(",") if "decltype" not in text else ():
            name, expression = part.split(" = ")
            number = float(expression.rstrip("f")) if kind == "float" else value(expression, found)
            found[name.strip()] = number
    return SimpleNamespace(**found)


@cache
def expecting():
    (expression,) = set(re.findall(r"expect\(received[^,]*, (.*)\);", source("lstm_forward")))
    return expression


def expected(k):
    """The bytes that a barrier of the forward pass expects in a step."""
    return value(expecting(), vars(k))


@cache
def receiving():
    (expression,) = re.findall(r"u32 bytes_received\(u32 buffer\) { return (.*?); }", source("lstm_backward"))
    return expression


def bytes_received(k, buffer):
    """The bytes that a barrier of the backward pass expects in a step."""
    return value(receiving(), {**vars(k), "buffer": buffer})


@cache
def parameters(file, kernel):
    """Of a kernel: name, type, whether it is a pointer and whether to constants, in order."""
    (text,) = re.findall(rf"__global__[^;{{}}]*?\b{kernel}\(([^)]*)\)", source(file))
    pattern = r"(const )?(\w+) (\*?)(?:__restrict__ )?(\w+)"
    parts = [re.fullmatch(pattern, " ".join(part.split())).groups() for part in text.split(",")]
    return [(name, kind, bool(star), bool(const)) for const, kind, star, name in parts]


def arrays(file, k):
    """The lengths of arrays in shared memory, without the one whose length the launch says."""
    found = re.findall(r"__shared__ .*?(\w+)\[(.+?)\];", source(file))
    return {name: value(length, vars(k)) for name, length in found}


def dynamic(file, k):
    """The array whose length the launch says, and what that should be."""
    (name,) = re.findall(r"extern __shared__ .*?(\w+)\[\];", source(file))
    return name, k.LOW_BYTES + (k.INPUT_BYTES * k.THREADS if file == "lstm_backward" else 0)


# ---- numbers


def beside(*xs):
    return np.stack(xs if len(xs) == 1 else np.broadcast_arrays(*xs), -1).astype(float)


def halves(*xs):
    """Numbers side by side, as 16 bits each."""
    x = beside(*xs)
    return x.astype(np.float16).astype(float) if ROUND else x


def bfloats(*xs):
    x = beside(*xs)
    return torch.from_numpy(x).bfloat16().double().numpy() if ROUND else x


def counts_of(v, w):
    x = np.stack([v, w], -1)
    return np.rint(x * 65535) / 65535 if ROUND else x


def wide(x):
    """Floats as they lie in shared memory, two places each."""
    x = np.asarray(x, float)
    return np.stack([x, np.zeros_like(x)], -1).reshape(*x.shape[:-1], -1)


def narrow(x):
    assert not x[..., 1::2].any(), "what lies there is no float"
    return x[..., ::2]


def low_part(x):
    high = bfloats(x)[..., 0]
    return np.where(np.isfinite(high), x - high, 0.0)


def left_after(x, parts):
    for n in range(np.max(parts, initial=0)):
        x = np.where(parts > n, low_part(x), x)
    return x


def low_half_times(x, low):
    """What rounding to halves leaves, so many times; 0 where nothing is rounded."""
    return (x - halves(x)[..., 0]) * low


def scaled_low_half(x):
    return low_half_times(x, 2048.0)


def fine_tanh(x):
    if not ROUND:
        return np.tanh(x)
    (text,) = re.findall(r"float fine_tanh\(float x\) {(.*?)return", source("lstm_forward"), re.DOTALL)
    a, b, c, d, e = (float(n) for n in re.findall(r"-?\d\.\d+e-\d", text))
    s = x * x
    p = (((a * s + b) * s + c) * s + d) * s + e
    return np.where(abs(x) < 0.625, p * s * x + x, np.tanh(x))


def power_below(x):
    return np.where(x > 0, 2.0 ** (np.frexp(x)[1] - 1), 1.0)


def exponent(x):
    """The exponent of a float, as its bits have it."""
    return np.where(x == 0, 0, np.clip(np.frexp(x)[1] + 126, 0, 255)).astype(float)


def scale_for(exponent):
    return 2.0 ** (np.clip(254 - exponent, 17, 237) - 127)


# ---- a warp's instructions: 32 lanes, then the 16-bit numbers of a register or more

LANE = np.arange(32)
G, Q = LANE // 4, LANE % 4
N = np.arange(8)
# Row and column of each of a lane's numbers of A (16 x 16), B (16 x 8), D (16 x 8), and of an 8 x 8 matrix.
A_ = G[:, None] + N // 2 % 2 * 8, 2 * Q[:, None] + N // 4 * 8 + N % 2
B_ = 2 * Q[:, None] + N[:4] // 2 * 8 + N[:4] % 2, G[:, None].repeat(4, 1)
D_ = G[:, None] + N[:4] // 2 * 8, 2 * Q[:, None] + N[:4] % 2
SMALL = G[:, None].repeat(2, 1), 2 * Q[:, None] + N[:2]


def multiply(d, a, b0, b1):
    """mma.m16n8k16: d += a b."""
    left, right = np.empty((16, 16)), np.empty((16, 8))
    left[A_], right[B_] = a, np.concatenate([b0, b1], -1)
    d += (left @ right)[D_]


def load_matrices(rows):
    """ldmatrix.x4: the rows of 8 numbers that the lanes point at; four registers of two."""
    return rows.reshape(4, 8, 8)[:, *SMALL].swapaxes(0, 1)


def transpose(x):
    """movmatrix.trans."""
    matrix = np.empty((8, 8))
    matrix[SMALL] = x
    return matrix.T[SMALL]


def shuffle_xor(x, i):
    return x[LANE ^ i]


# ---- global memory


SIZES = {"int": 1, "float": 1, "float4": 4, "u16": 1, "u32": 2, "uint2": 4, "uint4": 8}  # in numbers


class Memory:
    """What a pointer to a tensor may reach, in elements of a kind; how often each was read and written."""

    def __init__(self, name, kind, tensor):
        assert tensor.is_contiguous(), f"{name} is not contiguous"
        assert kind != "int" or tensor.dtype == torch.int32, f"{name} is not of {kind}"
        assert tensor.is_complex() <= (kind[0] in "uf"), f"{name} is not of {kind}"
        self.start = tensor.storage_offset() * (1 + (tensor.is_complex() and kind[0] == "u"))
        assert self.start % SIZES[kind] == 0, f"{name} is not aligned"
        flat = tensor.reshape(-1)
        if flat.is_complex():  # words; a float is one
            flat = torch.view_as_real(flat) if kind[0] == "u" else flat.real
        flat = flat.numpy().reshape(-1)
        self.name, self.size = name, SIZES[kind]
        self.data = flat[: len(flat) // self.size * self.size].reshape(-1, self.size)
        self.reads, self.writes = np.zeros(len(self.data), int), np.zeros(len(self.data), int)


class Pointer:
    """Into a memory; an element that isn't `there` is neither read (it is 0) nor written."""

    def __init__(self, memory, offset=0):
        self.memory, self.offset = memory, offset

    def __add__(self, n):
        return Pointer(self.memory, self.offset + n)

    def __getitem__(self, index):
        return self.load(index)

    def load(self, index, there=True):
        at, there, m = *self._places(index, there), self.memory
        found = np.zeros((*there.shape, m.size), int if m.data.dtype == np.int32 else float)
        if at.size:
            found[there] = m.data[at]
            np.add.at(m.reads, at, 1)
            assert not np.isnan(found).any(), f"{m.name}: read before written"
        return found[..., 0] if m.size == 1 else found

    def store(self, index, x, there=True):
        at, there, m = *self._places(index, there), self.memory
        if at.size:
            x = np.asarray(x, float).reshape(*np.shape(x)[: None if m.size == 1 else -1], m.size)
            m.data[at] = np.broadcast_to(x, (*there.shape, m.size))[there]
            np.add.at(m.writes, at, 1)

    def raise_to(self, index, x, there=True):
        """atomicMax of floats that aren't negative."""
        at, there, m = *self._places(index, there), self.memory
        np.maximum.at(m.data[:, 0], at, np.broadcast_to(x, there.shape)[there])

    def _places(self, index, there):
        at, there = np.asarray(self.offset + index), np.asarray(there)
        if at.shape != there.shape:
            at, there = np.broadcast_arrays(at, there)
        m, at = self.memory, at[there]
        assert at.size == 0 or (at.min() >= 0 and at.max() < len(m.data)), f"{m.name}: index out of range"
        return at, there


# ---- shared memory, barriers and who knows of what


class Array:
    """An array in shared memory of one CTA: 16 bits in a place; by whom and when it was last used."""

    def __init__(self, name, length, warps):
        self.name, self.length = name, length
        self.data = np.full(length // 2, np.nan)
        self.writer, self.written = np.zeros(length // 2, int), np.zeros(length // 2, int)
        self.read = np.zeros((length // 2, warps), int)

    def places(self, address, size):
        """Of so many bytes from each address on."""
        assert not (address % size).any(), f"{self.name}: not aligned"
        assert address.min() >= 0, f"{self.name}: below its begin"
        assert address.max() + size <= self.length, f"{self.name}: beyond its end"
        return address[..., None] // 2 + np.arange(size // 2)

    def write(self, at, x, clock, writer, time):
        """By one who has this clock, and so knows that whatever was there is read."""
        assert (self.read[at] <= clock[: self.read.shape[1]]).all(), f"{self.name}: others may still read"
        assert (clock[self.writer[at]] >= self.written[at]).all(), f"{self.name}: others may still write"
        assert (np.diff(np.sort(at, None)) > 0).all(), f"{self.name}: written twice"
        self.data[at], self.writer[at], self.written[at] = x, writer, time


class Barrier:
    """An mbarrier of one arrival a phase. Phase n is over when it was armed and all bytes have come."""

    def __init__(self, number, clock):
        self.number = number
        self.phase, self.bytes, self.armed = 0, 0, None
        self.clock, self.coming = clock, clock.copy()  # of all phases that are over, and of this one

    def expect(self, size, warp):
        assert self.armed is None, "armed twice in a phase"
        self.armed = warp.number, warp.clock[warp.number]
        self.bytes += size
        self._add(warp.clock)

    def receive(self, size, clock):
        assert self.armed is not None, "bytes for a barrier that is not armed"
        warp, time = self.armed
        assert clock[warp] >= time, "sent by one who can't know that the barrier is armed"
        self.bytes -= size
        assert self.bytes >= 0, "more bytes than expected"
        self._add(clock)

    def _add(self, clock):
        np.maximum(self.coming, clock, out=self.coming)
        if self.bytes == 0:
            self.phase, self.armed = self.phase + 1, None
            self.coming[self.number] = self.phase
            self.clock = self.coming.copy()


class Meeting:
    """Where so many warps wait for one another."""

    def __init__(self, size, clock):
        self.size, self.count, self.times = size, 0, 0
        self.clock, self.coming = clock, clock.copy()

    def arrive(self, clock):
        np.maximum(self.coming, clock, out=self.coming)
        self.count += 1
        if self.count == self.size:
            self.count, self.times, self.clock = 0, self.times + 1, self.coming.copy()


class Cluster:
    """CTAs with shared memory and a generator for each warp. Clocks count the deeds of warps, then phases."""

    def __init__(self, ctas, warps, lengths, barriers, seed):
        self.ctas, self.random = ctas, np.random.default_rng(seed)
        self.warps = ctas * warps
        self.zero = np.zeros(self.warps + ctas * barriers, int)
        self.arrays = [{n: Array(n, size, self.warps) for n, size in lengths.items()} for _ in range(ctas)]
        self.barriers = [
            [Barrier(self.warps + rank * barriers + i, self.zero.copy()) for i in range(barriers)]
            for rank in range(ctas)
        ]
        self.blocks = [Meeting(warps, self.zero.copy()) for _ in range(ctas)]
        self.all = Meeting(self.warps, self.zero.copy())
        self.messages = []

    def run(self, warps, program):
        """All warps to their ends, in any order that their waits allow."""
        members = [Warp(self, n // warps, n % warps, n) for n in range(self.warps)]
        running = [(me, program(me)) for me in members]
        while running or self.messages:
            able = [i for i, (me, _) in enumerate(running) if me.ready()]
            assert able or self.messages, "all wait, for ever"
            choice = self.random.integers(len(able) + len(self.messages))
            if choice >= len(able):
                self._deliver(self.messages.pop(choice - len(able)))
                continue
            me, rest = running[able[choice]]
            me.ready = next(rest, None)
            if me.ready is None:
                del running[able[choice]]
        for rank, arrays in enumerate(self.arrays):
            clock = np.maximum.reduce([me.clock for me in members if me.rank == rank])
            for array in arrays.values():
                assert (clock[array.writer] >= array.written).all(), f"{array.name}: left too early"

    def _deliver(self, message):
        rank, name, at, x, barrier, clock = message
        barrier = self.barriers[rank][barrier]
        self.arrays[rank][name].write(at, x, clock, barrier.number, barrier.phase + 1)
        barrier.receive(2 * at.size, clock)


class Warp:
    """32 lanes of a CTA, what they may do, and all that they know of."""

    def __init__(self, cluster, rank, warp, number):
        self.cluster, self.rank, self.warp, self.number = cluster, rank, warp, number
        self.clock = cluster.zero.copy()
        self.clock[number] = 1
        self.ready = lambda: True
        self.copies = [[]]

    def load(self, name, address, size, there=True, unset=False):
        """So many bytes from each lane's address, one or several; `unset`: whatever is there will do."""
        array = self.cluster.arrays[self.rank][name]
        at = array.places(address if there is True else address[there], size)
        assert (self.clock[array.writer[at]] >= array.written[at]).all(), f"{name}: read too early"
        array.read[at, self.number] = self.clock[self.number]
        found = array.data[at]
        if there is not True:
            found, some = np.zeros((*address.shape, size // 2)), found
            found[there] = some
        assert unset or not np.isnan(found).any(), f"{name}: read before written"
        return found

    def load_floats(self, name, address, size):
        return narrow(self.load(name, address, size))

    def store(self, name, address, x):
        self._store(self.rank, name, address, x, True)

    def store_there(self, name, ctas, address, x, there):
        for rank in range(self.cluster.ctas):
            self._store(rank, name, address, x, there & (ctas == rank))

    def _store(self, rank, name, address, x, there):
        array = self.cluster.arrays[rank][name]
        if there is not True:
            there = np.broadcast_to(there, address.shape)
            address, x = address[there], x[there]
        if address.size:
            at = array.places(address, 2 * x.shape[-1])
            array.write(at, x, self.clock, self.number, self.clock[self.number])

    def send(self, name, ctas, address, x, barrier, there=True):
        """A message to each CTA that lanes send to; lanes have 2 x.shape[-1] bytes each."""
        for rank in range(self.cluster.ctas):
            here = np.broadcast_to(there & (np.asarray(ctas) == rank), LANE.shape)
            if here.any():
                at = self.cluster.arrays[rank][name].places(address[here], 2 * x.shape[-1])
                self.cluster.messages.append((rank, name, at, x[here], barrier, self.clock.copy()))
        self.clock[self.number] += 1

    def expect(self, barrier, size):
        self.cluster.barriers[self.rank][barrier].expect(size, self)
        self.clock[self.number] += 1

    def wait(self, barrier, phase):
        """Of a phase the kernel says no more than whether it is odd."""
        barrier = self.cluster.barriers[self.rank][barrier]
        yield lambda: barrier.phase % 2 != phase % 2
        assert barrier.phase == phase + 1, "waited for another phase"
        np.maximum(self.clock, barrier.clock, out=self.clock)

    def syncthreads(self):
        yield from self._meet(self.cluster.blocks[self.rank])

    def meet_cluster(self):
        yield from self._meet(self.cluster.all)

    def _meet(self, meeting):
        times = meeting.times
        meeting.arrive(self.clock)
        self.clock[self.number] += 1
        yield lambda: meeting.times > times
        np.maximum(self.clock, meeting.clock, out=self.clock)

    def copy_later(self, name, address, x, there):
        """cp.async: what is on its way is nan."""
        there = np.broadcast_to(there, LANE.shape)
        self._store(self.rank, name, address, np.full_like(x, np.nan), there)
        self.copies[-1].append((name, address, x, there))

    def end_of_copies(self):
        self.copies.append([])

    def wait_for_copies(self, latest):
        while len(self.copies) > latest + 1:
            for name, address, x, there in self.copies.pop(0):
                self._store(self.rank, name, address, x, there)


# ---- lstm_forward.cu, for one warp


def lstm_forward(
    me, k, weights, low, narrow_input, drive, bias, h0, c0, z0, j0, y, last_h, last_c, last_z, decay, mu,
    gain, v0, n0, last_v, last_n, saved_moments, saved_gates, saved_cells, begins, lengths, starts, T, B, H,
    N, tile_steps, every, decay_columns, own_weight, own_input, own_bias, own_state, own_z, own_j, own_mu,
    own_gain, own_v, step, beta, one_minus_beta, eps,
):  # fmt: skip
    CTAS, INPUT_SLICES, WARPS, SLICES, BLOCK, HIDDEN = (
        k.CTAS,
        k.INPUT_SLICES,
        k.WARPS,
        k.SLICES,
        k.BLOCK,
        k.HIDDEN,
    )
    PARTS, BUFFER, FINE, PACKED = k.PARTS, k.BUFFER, k.FINE, k.PACKED
    lane, warp, g, q, rank = LANE, me.warp, G, Q, me.rank
    thread = warp * 32 + lane
    tile, tiles, replica = me.tile, me.tiles, me.replica
    unit, row = rank * k.UNITS + warp * 8 + g, tile * k.TILE + 2 * q
    mine = (unit < H) & (row < B), (unit < H) & (row + 1 < B)
    steps, start = (int(lengths[tile * k.TILE]), int(starts[tile])) if PACKED else (T, tile * T)
    ends = [np.where(row + n < B, lengths.load(row + n, row + n < B), T) if PACKED else T for n in range(2)]
    state_size, place = B * H, row * H + unit

    def first_row_of(t):
        return int(begins[min(t, T)]) if PACKED else t * B

    weights += (((replica * own_weight * CTAS + rank) * WARPS + warp) * (SLICES + INPUT_SLICES)) * 64 + lane
    w = weights[np.arange(2 * (SLICES + INPUT_SLICES))[:, None] * 32].reshape(-1, 2, 32, 8)
    low_at = (warp * SLICES * 64 + lane) * 16
    if FINE:
        low += (((replica * own_weight * CTAS + rank) * WARPS + warp) * SLICES) * 64 + lane
        many = np.arange(2 * SLICES)[:, None]
        me.store("lows", low_at + many * 512, low[many * 32])

    h0 += replica * own_state * state_size
    c0 += replica * own_state * state_size
    for i in range(0, k.TILE * k.WIDTH, k.THREADS):
        i = i + thread
        u, b = i // 64 * 8 + i % 8, tile * k.TILE + i // 8 % 8
        x = h0.load(b * H + u, (u < H) & (b < B))
        me.store("hidden", 2 * i, halves(x))
        if FINE:
            me.store("hidden", 2 * (k.TILE * k.WIDTH + i), halves(low_half_times(x, k.LOW_SCALE)))
    c = [c0.load(place, mine[0]), c0.load(place + H, mine[1])]
    factor = -k.LOG2E * np.array([1, 1, 2, 1])
    old, j = np.zeros((2, 4, 32)), np.zeros((2, 32))
    if k.EXTRAPOLATED:
        z0 += (replica * own_z * B + row) * 4 * H + unit
        for n in range(2):
            for gate in range(4):
                old[n, gate] = factor[gate] * z0.load((n * 4 + gate) * H, mine[n])
            j[n] = j0.load(replica * own_j * B + row + n, mine[n]).astype(int) % every

    scaled_eps_squared = eps * eps / one_minus_beta
    over_root = 1 / np.sqrt(one_minus_beta) if k.MOMENTUM_FORM == 2 else 1.0
    v, s = np.zeros((2, 2, 4, 32))
    gains, mus = np.full((4, 32), step), np.zeros((4, 32))
    assert k.MOMENTUM_FORM or not k.TABLE, "a table is a momentum's"
    if k.MOMENTUM_FORM:
        assert bool(decay) == k.TABLE != bool(mu), "a table has decays, else channels have"
        for gate in range(4):
            channel = gate * H + unit
            if gain:
                given = gain.load(replica * own_gain * 4 * H + channel, unit < H)
                gains[gate] = np.where(unit < H, given, step)
            if not k.TABLE:
                mus[gate] = mu.load(replica * own_mu * 4 * H + channel, unit < H)
            for n in range(2):
                at = (replica * own_v * B + row + n) * 4 * H + channel
                if v0:
                    v[n, gate] = v0.load(at, mine[n])
                if k.MOMENTUM_FORM > 1:
                    s[n, gate] = (n0.load(at, mine[n]) if n0 else 0) / one_minus_beta
        saved_moments += (
            (replica * ((T + k.SPACING - 1) // k.SPACING) * B + row) * H + unit
        ) * k.SAVED_MOMENTS
    other_row = (row + 1 < B) & (decay_columns > 1)
    decays = np.zeros((2, 32))
    if k.TABLE:
        decay += np.minimum(row, B - 1) if decay_columns > 1 else 0 * row
        decays[:] = decay[0], decay[other_row]

    number = rank * WARPS + warp
    saved_gates += (replica * tile_steps + start) * k.BLOCKS + number * 32 * PARTS + lane
    saved_cells += (replica * (tile_steps + tiles) + start + tile) * k.BLOCKS + (number * 32 + lane) * PARTS

    def keep_cells():
        if FINE:
            assert (saved_cells.offset % 2 == 0).all(), "two floats at a time"
            for n in range(2):
                saved_cells.store(n, wide(c[n][:, None]))
        else:
            saved_cells.store(0, halves(*c))

    if k.KEEP:
        keep_cells()
    y += replica * N * H + place

    if warp == 0:
        me.expect(1, expected(k))
    yield from me.syncthreads()
    yield from me.meet_cluster()

    size = 8 if INPUT_SLICES else 16
    inputs_at = size * thread
    if INPUT_SLICES:
        narrow_input += ((replica * own_input * tile_steps + start) * INPUT_SLICES * 32 + lane) * 2
    else:
        drive += replica * own_input * N * H + place

    def fetch(t):
        nonlocal narrow_input, drive
        slot = inputs_at + t % k.AHEAD * k.PIECES * k.PIECE
        if INPUT_SLICES:
            for n in range(INPUT_SLICES):
                there = np.full(32, t < steps)
                x = np.concatenate([narrow_input.load(n * 64 + i, there) for i in range(2)], -1)
                me.copy_later("inputs", slot + n * k.PIECE, x, there)
            narrow_input += INPUT_SLICES * 64
        else:
            source = drive + first_row_of(t) * H if PACKED else drive
            for n in range(2):
                there = (t < ends[n]) & mine[n]
                me.copy_later("inputs", slot + n * k.PIECE, wide(source.load(n * H, there)), there)
            if not PACKED:
                drive += state_size
        me.end_of_copies()

    b_hh = np.zeros((4, 32))
    if not INPUT_SLICES:
        many = np.arange(2 * k.AHEAD)[:, None]
        me.store("inputs", inputs_at + many * k.PIECE, np.zeros((2 * k.AHEAD, 32, 8)))
    if (k.MOMENTUM_FORM or not INPUT_SLICES) and bias:
        bias += replica * own_bias * 4 * H + unit
        b_hh = np.stack([factor[n] * bias.load(n * H, unit < H) for n in range(4)])
    for t in range(k.AHEAD - 1):
        fetch(t)

    source, to = 16 * lane, number * BLOCK + 4 * lane

    def receive(t, z):
        slot = inputs_at + t % k.AHEAD * k.PIECES * k.PIECE
        if INPUT_SLICES:
            for n in range(INPUT_SLICES):
                # Behind the last step nothing came, and nothing is made of it.
                b = me.load("inputs", slot + n * k.PIECE, 8, unset=t == steps)
                multiply(z[0], w[SLICES + n][0], b[:, :2], b[:, 2:])
                multiply(z[1], w[SLICES + n][1], b[:, :2], b[:, 2:])
        else:
            for n in range(2):
                given = me.load_floats("inputs", slot + n * k.PIECE, 16)
                z[0, :, n] = given[:, 0]
                z[0, :, 2 + n] = given[:, 1]
                z[1, :, n] = given[:, 2]
                z[1, :, 2 + n] = given[:, 3]

    def advance(t, z):
        nonlocal saved_moments, decay
        if k.KEEP and t % k.SPACING == 0:
            for n in range(2):
                there = mine[n] & (not PACKED or t < ends[n])
                to_kept = saved_moments + n * H * k.SAVED_MOMENTS
                to_kept.store(0, v[n].T, there)
                if k.MOMENTUM_FORM > 1:
                    to_kept.store(1, s[n].T, there)
            saved_moments += state_size * k.SAVED_MOMENTS
        for i in range(8):
            n, gate = i // 4, i % 4
            a = z[gate // 2, :, gate % 2 * 2 + n]
            v[n, gate] = (decays[n] if k.TABLE else mus[gate]) * v[n, gate] + gains[gate] * a
            if k.MOMENTUM_FORM > 1:
                s[n, gate] = beta * s[n, gate] + a * a
            a[:] = v[n, gate]
            if k.MOMENTUM_FORM == 2:
                a /= np.sqrt(s[n, gate] + scaled_eps_squared)
            if k.MOMENTUM_FORM == 3:
                a /= np.sqrt(one_minus_beta) * np.sqrt(s[n, gate]) + eps
            a[:] = factor[gate] * over_root * a + b_hh[gate]
        if k.TABLE:
            decay += decay_columns if t + 1 < T else 0
            decays[:] = decay[0], decay[other_row]

    coming_z, h, gates = np.zeros((2, 32, 4)), np.zeros((2, 32)), [None, None]

    def store_final_state(n, there):
        at = replica * state_size + place + n * H
        last_h.store(at, h[n], there)
        last_c.store(at, c[n], there)
        for gate in range(4):
            channel = ((replica * B + row + n) * 4 + gate) * H + unit
            if k.EXTRAPOLATED:
                last_z.store(channel, old[n, gate] / factor[gate], there)
            if k.MOMENTUM_FORM and last_v:
                last_v.store(channel, v[n, gate], there)
            if k.MOMENTUM_FORM > 1 and last_v:
                last_n.store(channel, one_minus_beta * s[n, gate], there)

    if k.MOMENTUM_FORM:
        me.wait_for_copies(k.AHEAD - 2)
        receive(0, coming_z)
        advance(0, coming_z)

    def run(t):
        nonlocal y
        now = t & 1
        after = now ^ 1
        z, z_low = np.zeros((k.CHAINS, 2, 32, 4)), np.zeros((PARTS, 2, 32, 4))
        if k.MOMENTUM_FORM:
            z[0] = coming_z
            coming_z[:] = 0
            me.wait_for_copies(k.AHEAD - 3)
            receive(t + 1, coming_z)
        else:
            me.wait_for_copies(k.AHEAD - 2)
            receive(t, z[0])
            if not INPUT_SLICES:
                for n in range(2):
                    for gate in range(4):
                        m, e = gate // 2, gate % 2 * 2 + n
                        z[0, m, :, e] = factor[gate] * z[0, m, :, e] + b_hh[gate]
        fetch(t + k.AHEAD - 1)
        if PACKED:
            y += (first_row_of(t) - (first_row_of(t - 1) if t > 0 else 0)) * H

        if CTAS == 1:
            yield from me.syncthreads()
        else:
            yield from me.wait(now, (t - 1) >> 1)
        for i in range(0, SLICES, 2):
            b = load_matrices(me.load("hidden", source + now * BUFFER + i * 2 * BLOCK, 16))
            multiply(z[0, 0], w[i][0], b[:, 0], b[:, 1])
            multiply(z[0, 1], w[i][1], b[:, 0], b[:, 1])
            multiply(z[k.CHAINS - 1, 0], w[i + 1][0], b[:, 2], b[:, 3])
            multiply(z[k.CHAINS - 1, 1], w[i + 1][1], b[:, 2], b[:, 3])
            if FINE:
                b_low = load_matrices(me.load("hidden", source + now * BUFFER + HIDDEN + i * 2 * BLOCK, 16))
                w_low = me.load("lows", low_at + (2 * i + np.arange(4)[:, None]) * 512, 16)
                for n in range(2):
                    for m in range(2):
                        multiply(z_low[0, m], w[i + n][m], b_low[:, 2 * n], b_low[:, 2 * n + 1])
                        multiply(z_low[1, m], w_low[2 * n + m], b[:, 2 * n], b[:, 2 * n + 1])

        if CTAS > 1 and warp == 0:
            me.expect(now, expected(k))

        for n in range(2):
            sums = []
            for gate in range(4):
                m, e = gate // 2, gate % 2 * 2 + n
                low_sum = (z_low[0, m, :, e] + z_low[FINE, m, :, e]) / k.LOW_SCALE
                one = z[0, m, :, e] + (low_sum if FINE else z[k.CHAINS - 1, m, :, e])
                sums.append(one)
                if k.EXTRAPOLATED:
                    ahead = j[n] / (j[n] + 3)
                    sums[gate] = one + ahead * (one - old[n, gate])
                    old[n, gate] = one
            i_, f_, g_, o_ = (1 / (1 + 2.0 ** np.minimum(x, 30)) for x in sums)
            if FINE:
                g_ = fine_tanh(-0.5 / k.LOG2E * sums[2])
            gates[n] = i_, f_, g_, o_
            c[n] = f_ * c[n] + i_ * (g_ if FINE else 2 * g_ - 1)
            h[n] = o_ * (fine_tanh(c[n]) if FINE else np.tanh(c[n]))
            if k.EXTRAPOLATED:
                j[n] = np.where(j[n] + 1 == every, 0, j[n] + 1)

        turned = [transpose(halves(*h))]
        if FINE:
            turned.append(transpose(halves(*(low_half_times(x, k.LOW_SCALE) for x in h))))
        for part in range(PARTS):
            at = to + after * BUFFER + part * HIDDEN
            if CTAS == 1:
                me.store("hidden", at, turned[part])
            else:
                for i in range(CTAS):
                    me.send("hidden", (rank + i) % CTAS, at, turned[part], after)

    def put(t):
        nonlocal y, saved_gates, saved_cells
        y.store(0, h[0], mine[0] & (not PACKED or t < ends[0]))
        y.store(H, h[1], mine[1] & (not PACKED or t < ends[1]))
        if not PACKED:
            y += state_size
        if k.KEEP:
            if FINE:
                for n in range(2):
                    saved_gates.store(n * 32, wide(np.stack(gates[n], -1)))
            else:
                pairs = [counts_of(*pair) for i_, f_, g_, o_ in gates for pair in ((i_, f_), (g_, o_))]
                saved_gates.store(0, np.concatenate(pairs, -1))
            saved_gates += k.BLOCKS
            saved_cells += k.BLOCKS
            keep_cells()
        if PACKED:
            for n in range(2):
                store_final_state(n, mine[n] & (t + 1 == ends[n]))

    for t in range(steps):
        yield from run(t)
        if t + 1 == steps:
            break
        put(t)
        if k.MOMENTUM_FORM:
            advance(t + 1, coming_z)
    put(steps - 1)
    if not PACKED:
        for n in range(2):
            store_final_state(n, mine[n])
    if CTAS > 1:
        yield from me.wait(steps & 1, (steps - 1) >> 1)


# ---- lstm_backward.cu, for one warp


def lstm_backward(
    me, k, weights, low, saved_gates, saved_cells, dy, last_dh, last_dc, last_dz, j0, dz, dz_low, scales,
    largest, first_dh, first_dc, first_dz, begins, lengths, starts, T, first, last, B, H, N, tile_steps, room,
    every, own_weight, own_j,
):  # fmt: skip
    CTAS, WARPS, THREADS, TILES, SLICES, CHAINS = k.CTAS, k.WARPS, k.THREADS, k.TILES, k.SLICES, k.CHAINS
    ROW, GATHERED, SLOT, SLOTS, MAXIMA, AHEAD = k.ROW, k.GATHERED, k.SLOT, k.SLOTS, k.MAXIMA, k.AHEAD
    PARTS, BUFFER, FINE, PACKED, EXTRAPOLATED = k.PARTS, k.BUFFER, k.FINE, k.PACKED, k.EXTRAPOLATED
    lane, warp, g, q, rank = LANE, me.warp, G, Q, me.rank
    thread = warp * 32 + lane
    tile, tiles, replica = me.tile, me.tiles, me.replica
    unit, row = rank * k.UNITS + warp * 8 + g, tile * k.TILE + 2 * q
    mine = (unit < H) & (row < B), (unit < H) & (row + 1 < B)
    state_size = B * H
    place = replica * state_size + row * H + unit
    length, start = (int(lengths[tile * k.TILE]), int(starts[tile])) if PACKED else (T, tile * T)
    ends = [
        np.where(row + n < B, lengths.load(row + n, row + n < B), T) if PACKED else np.full(32, T)
        for n in range(2)
    ]
    end = min(last, length)
    steps = end - first
    joins = [end - np.minimum(ends[n], last) for n in range(2)]
    given_dh, given_dc, pending = np.zeros((2, 32)), np.zeros((2, 32)), np.zeros((2, 4, 32))
    gates_place = (replica * B + row) * 4 * H + unit
    for n in range(2):
        if last_dh:
            given_dh[n] = last_dh.load(place + n * H, mine[n])
        if last_dc:
            given_dc[n] = last_dc.load(place + n * H, mine[n])

    def given_dz(n, gate):
        return last_dz.load(gates_place + (n * 4 + gate) * H, mine[n]) if last_dz else np.zeros(32)

    def store_first_gradients(n, dh, dc, dz, there=True):
        first_dh.store(place + n * H, dh, mine[n] & there)
        first_dc.store(place + n * H, dc, mine[n] & there)
        for gate in range(4 * EXTRAPOLATED):
            first_dz.store(gates_place + (n * 4 + gate) * H, dz[gate], mine[n] & there)

    def pass_given_gradients_on(n, there=True):
        store_first_gradients(
            n, given_dh[n], given_dc[n], [given_dz(n, gate) for gate in range(4 * EXTRAPOLATED)], there
        )

    if PACKED and steps <= 0:
        pass_given_gradients_on(0)
        pass_given_gradients_on(1)
        return
    rows_before = int(begins[first]) if PACKED else first * B

    def first_row_of(t):
        return int(begins[max(t, 0)]) if PACKED else t * B

    weights += ((replica * own_weight * CTAS + rank) * WARPS + warp) * TILES * SLICES * 32 + lane
    w = weights[np.arange(TILES * SLICES)[:, None] * 32].reshape(TILES, SLICES, 32, 8)
    low_at = k.INPUT_BYTES * THREADS + (warp * TILES * SLICES * 32 + lane) * 16
    if FINE:
        low += ((replica * own_weight * CTAS + rank) * WARPS + warp) * TILES * SLICES * 32 + lane
        many = np.arange(TILES * SLICES)[:, None]
        me.store("inputs", low_at + many * 512, low[many * 32])

    received, other = warp, WARPS
    me.expect(received, bytes_received(k, 0))

    gates_at, cells_at = 16 * thread, AHEAD * PARTS * 16 * THREADS + 4 * PARTS * thread
    dy_at = AHEAD * PARTS * 20 * THREADS + 4 * thread
    many = np.arange(k.INPUT_BYTES // 4)[:, None]
    me.store("inputs", (many * THREADS + thread) * 4, np.zeros((k.INPUT_BYTES // 4, 32, 2)))
    many = np.arange(SLOTS // 4 // THREADS)[:, None]
    me.store("slots", SLOTS + (many * THREADS + thread) * 4, np.zeros((len(many), 32, 2)))
    yield from me.syncthreads()
    number = rank * WARPS + warp
    saved_gates += (replica * tile_steps + start + end - 1) * k.BLOCKS + number * 32 * PARTS + lane
    saved_cells += (replica * (tile_steps + tiles) + start + tile + end) * k.BLOCKS + (
        number * 32 + lane
    ) * PARTS

    def two_cells(there=True):
        """A word of two halves, or two words, in numbers of 16 bits."""
        return np.concatenate([saved_cells.load(i, there) for i in range(PARTS)], -1)

    def cells_of(words):
        return narrow(words) if FINE else words

    c = list(cells_of(two_cells()).T.copy())
    saved_cells += -k.BLOCKS
    if dy:
        dy += replica * N * H + row * H + unit + (0 if PACKED else (end - 1) * state_size)

    def fetch_dy(s):
        nonlocal dy
        if dy:
            source = dy + first_row_of(end - 1 - s) * H if PACKED else dy
            for n in range(2):
                there = (s < steps) & (s >= joins[n]) & mine[n]
                at = dy_at + s % 8 * 8 * THREADS + n * 4 * THREADS
                me.copy_later("inputs", at, wide(source.load(n * H, there)[:, None]), there)
            if not PACKED:
                dy += -state_size

    def fetch(s):
        nonlocal saved_gates, saved_cells
        there = np.full(32, s < steps)
        for part in range(PARTS):
            at = gates_at + (s % AHEAD * PARTS + part) * 16 * THREADS
            me.copy_later("inputs", at, saved_gates.load(part * 32, there), there)
        me.copy_later("inputs", cells_at + s % AHEAD * 4 * PARTS * THREADS, two_cells(there), there)
        saved_gates += -k.BLOCKS
        saved_cells += -k.BLOCKS
        fetch_dy(s + 3)
        me.end_of_copies()

    for s in range(3):
        fetch_dy(s)
    for s in range(AHEAD - 1):
        fetch(s)

    part, dc, j = np.zeros((2, 32)), np.zeros((2, 32)), np.zeros((2, 32))
    largest_dz = np.zeros((2, 32))
    for n in range(2):
        if EXTRAPOLATED:
            first_j = j0.load(replica * own_j * B + row + n, mine[n]).astype(int)
            j[n] = np.where(mine[n], (first_j + end - 1) % every, 0)
            for gate in range(4):
                largest_dz[n] = np.maximum(largest_dz[n], abs(given_dz(n, gate)))
        if not PACKED:
            part[n], dc[n] = given_dh[n], given_dc[n]
            for gate in range(4 * EXTRAPOLATED):
                pending[n, gate] = given_dz(n, gate)

    def exponents(*sizes):
        return np.stack([exponent(np.maximum.reduce([abs(x[n]) for x in sizes])) for n in range(2)], -1)

    def maxima_of(turn, unset=False):
        e = np.zeros((32, 2))
        for i in range((CTAS * WARPS + 7) // 8):
            there = 8 * i + g < CTAS * WARPS
            at = turn * MAXIMA + (8 * i + g) * 16 + 4 * q
            e = np.fmax(e, me.load("maxima", at, 4, there, unset))
        return e

    def over_lanes(a):
        for i in (4, 8, 16):
            a = np.maximum(a, shuffle_xor(a, i))
        return a

    warp_maxima_at = (rank * WARPS + warp) * 16 + 4 * q

    def load_two(s):
        """dy of two steps, from s on, of two rows."""
        two = np.empty((2, 2, 32))
        for i in range(2):
            at = dy_at + (s + i) % 8 * 8 * THREADS
            for n in range(2):
                two[i, n] = me.load_floats("inputs", at + n * 4 * THREADS, 4)[:, 0]
        return two

    def exponents_of(two):
        return exponents(two[0], two[1])

    me.wait_for_copies(0)
    dy_here = load_two(0)
    will_join = exponents(given_dh, given_dc, largest_dz)
    last_seen = will_join
    seen = np.maximum(last_seen, np.maximum(exponents_of(dy_here), exponents_of(load_two(2))))
    seen = over_lanes(seen)
    yield from me.meet_cluster()
    me.store_there("maxima", g, warp_maxima_at + 2 * MAXIMA, seen, g < CTAS)
    yield from me.meet_cluster()
    row_exponents = over_lanes(maxima_of(2))

    slot_at = 8 * thread
    to = (2 * q * ROW + 4 * (warp * 8 + g)) * 2
    source = ((lane % 8) * ROW + 8 * (lane // 8)) * 2

    def receive(dh, s):
        buffer = s & 1
        if CTAS > 1:
            yield from me.wait(received + other * buffer, s >> 1)
            parts = [me.load_floats("slots", slot_at + buffer * SLOTS + i * SLOT, 8) for i in range(CTAS - 1)]
            d = 1
            while d < CTAS - 1:
                for i in range(0, CTAS - 1 - d, 2 * d):
                    parts[i] = parts[i] + parts[i + d]
                d *= 2
            dh += parts[0].T

    last_row = replica * room + row - rows_before + first_row_of(end - 1)
    to_dz, to_low = dz + (last_row * H + unit), FINE and dz_low + (last_row * H + unit)
    to_scale = scales + last_row
    stores_scale = (unit == 0) & (row < B), (unit == 0) & (row + 1 < B)
    largest_inverse_scale = np.zeros(32)
    dy_coming = dy_here
    scale, scaled, scaled_low = [None] * 2, [None] * 2, [None] * 2

    def run(s):
        nonlocal part, dy_here, dy_coming, seen, last_seen, row_exponents
        buffer = s & 1
        tanh_c = np.tanh(c)
        me.wait_for_copies(AHEAD - 2)
        kept = [
            me.load("inputs", gates_at + (s % AHEAD * PARTS + i) * 16 * THREADS, 16) for i in range(PARTS)
        ]
        before = cells_of(me.load("inputs", cells_at + s % AHEAD * 4 * PARTS * THREADS, 4 * PARTS))
        dy_now = dy_here[buffer]
        turn = s // 2 % 2
        if buffer == 0:
            sent = maxima_of(turn ^ 1, unset=s == 0)
            dy_coming = load_two(s + 2)
            seen = np.maximum(last_seen, np.maximum(exponents_of(dy_here), exponents_of(dy_coming)))
            seen, sent = over_lanes(seen), over_lanes(sent)
            row_exponents = sent if s > 0 else row_exponents
        else:
            dy_here = dy_coming
        dh, through_c, to_gates, forget = np.empty((2, 32)), [], [], []
        for n in range(2):
            if FINE:
                i_, f_, g_, o_ = narrow(kept[n]).T
            else:
                i_, f_, g_, o_ = kept[0].T[4 * n : 4 * n + 4]
                g_ = 2 * g_ - 1
            c[n] = before[:, n]
            through_c.append(o_ * (1 - tanh_c[n] ** 2))
            slopes = i_ - i_ * i_, f_ - f_ * f_, 1 - g_ * g_, o_ - o_ * o_
            to_gates.append((g_ * slopes[0], c[n] * slopes[1], i_ * slopes[2], tanh_c[n] * slopes[3]))
            forget.append(f_)
            dh[n] = part[n] + dy_now[n]
        fetch(s + AHEAD - 1)
        scale[:] = scale_for(row_exponents[:, 0]), scale_for(row_exponents[:, 1])

        yield from receive(dh, s - 1)
        if buffer == 0:
            if CTAS > 1:
                me.send("maxima", g, warp_maxima_at + turn * MAXIMA, seen, received, g < CTAS)
            else:
                me.store_there("maxima", g, warp_maxima_at + turn * MAXIMA, seen, g == 0)
        if PACKED:
            for n in range(2):
                now, early = s == joins[n], s <= joins[n]
                dh[n] = np.where(early, np.where(now, dy_now[n] + given_dh[n], 0), dh[n])
                dc[n] = np.where(early, np.where(now, given_dc[n], 0), dc[n])
                for gate in range(4 * EXTRAPOLATED):
                    given = np.where(now, given_dz(n, gate), 0)
                    pending[n, gate] = np.where(early, given, pending[n, gate])
        for n in range(2):
            dc[n] += dh[n] * through_c[n]
            by_dc, by_dh = dc[n] * scale[n], dh[n] * scale[n]
            to_i, to_f, to_g, to_o = to_gates[n]
            d = [by_dc * to_i, by_dc * to_f, by_dc * to_g, by_dh * to_o]
            if EXTRAPOLATED:
                ahead = j[n] / (j[n] + 3)
                for gate in range(4):
                    dg = d[gate]
                    d[gate] = scale[n] * pending[n, gate] + (1 + ahead) * dg
                    pending[n, gate] = -ahead / scale[n] * dg
                j[n] = np.where(j[n] == 0, every - 1, j[n] - 1)
            scaled[n] = halves(*d)
            me.store("gathered", to + buffer * BUFFER + n * ROW * 2, scaled[n])
            if FINE:
                scaled_low[n] = halves(*(low_half_times(x, k.LOW_SCALE) for x in d))
                me.store("gathered", to + buffer * BUFFER + GATHERED + n * ROW * 2, scaled_low[n])
        yield from me.syncthreads()

        sums, low_sums = np.zeros((TILES, CHAINS, 32, 4)), np.zeros((TILES, 32, 4))
        b = [
            load_matrices(me.load("gathered", source + buffer * BUFFER + s_ * 64, 16))
            for s_ in range(SLICES // 2)
        ]
        for n in range(SLICES):
            one, two = 2 * (n & 1), 2 * (n & 1) + 1
            for m in range(TILES):
                multiply(sums[m, n % CHAINS], w[m][n], b[n // 2][:, one], b[n // 2][:, two])
            if FINE:
                at = source + buffer * BUFFER + GATHERED + n // 2 * 64
                b_low = load_matrices(me.load("gathered", at, 16))
                w_low = me.load("inputs", low_at + (np.arange(TILES)[:, None] * SLICES + n) * 512, 16)
                for m in range(TILES):
                    multiply(low_sums[m], w[m][n], b_low[:, one], b_low[:, two])
                    multiply(low_sums[m], w_low[m], b[n // 2][:, one], b[n // 2][:, two])
        if CTAS > 1:
            me.expect(received + other * (buffer ^ 1), bytes_received(k, buffer ^ 1))
        for i in range(CTAS):
            whole = sums[i // 2].sum(0) + low_sums[i // 2] / k.LOW_SCALE
            x, y = (whole[:, i % 2 * 2 + n] / scale[n] for n in range(2))
            if i == CTAS - 1:
                part = np.stack([x, y])
            else:
                there = (rank + i + 1) % CTAS
                xy = wide(np.stack([x, y], -1))
                me.send("slots", there, slot_at + buffer * SLOTS + i * SLOT, xy, received + other * buffer)

        last_seen = exponents(dh, dc)
        if PACKED:
            counts_given = np.stack([s <= joins[0], s <= joins[1]], -1)
            counts_only_given = np.stack([s < joins[0], s < joins[1]], -1)
            last_seen = np.maximum(
                np.where(counts_only_given, 0, last_seen), np.where(counts_given, will_join, 0)
            )
        for n in range(2):
            dc[n] *= forget[n]

    def put(s):
        nonlocal to_dz, to_low, to_scale, largest_inverse_scale
        for n in range(2):
            now = not PACKED or s >= joins[n]
            to_dz.store(n * H, scaled[n], mine[n] & now)
            if FINE:
                to_low.store(n * H, scaled_low[n], mine[n] & now)
            to_scale.store(n, 1 / scale[n], stores_scale[n] & now)
            largest_inverse_scale = np.where(
                stores_scale[n] & now,
                np.maximum(largest_inverse_scale, 1 / scale[n]),
                largest_inverse_scale,
            )
        rows_back = first_row_of(end - 1 - s) - first_row_of(end - 2 - s) if PACKED else B
        to_dz += -rows_back * H
        to_scale += -rows_back
        if FINE:
            to_low += -rows_back * H

    for s in range(steps):
        yield from run(s)
        if s + 1 == steps:
            break
        put(s)
    put(steps - 1)
    largest.raise_to(replica, largest_inverse_scale, largest_inverse_scale > 0)

    yield from receive(part, steps - 1)
    for n in range(2):
        not_joined = (joins[n] >= steps) & bool(PACKED)
        if not_joined.any():
            pass_given_gradients_on(n, not_joined)
        store_first_gradients(n, part[n], dc[n], pending[n], ~not_joined)


# ---- pack.cu and weight_gradients.cu, for all threads of a replica at once


class Rows:
    def __init__(self, begins, lengths, T, B):
        self.begins, self.lengths, self.T, self.B = begins, lengths, T, B

    def of(self, t, there=True):
        return self.begins.load(t, there) if self.begins else t * self.B

    def length(self, b, there=True):
        return self.lengths.load(b, there) if self.lengths else self.T + 0 * b

    def step(self, row):
        if not self.begins:
            return row // self.B
        low, high = 0 * row, self.T + 0 * row
        while (high - low > 1).any():
            on, middle = high - low > 1, (low + high) // 2
            below = self.begins.load(middle, on) <= row
            low, high = np.where(on & below, middle, low), np.where(on & ~below, middle, high)
        return low


class Columns:
    def __init__(self, k, fine):
        self.k, self.fine = k, fine
        self.each, self.ones = (k.FINE_COLUMNS, k.FINE_ONES) if fine else (k.COLUMNS, k.ONES)

    def of_x(self, i):
        return (self.k.FINE_PARTS_OF_X if self.fine else self.k.PARTS_OF_X) >> 4 * i & 15

    def of_w(self, i):
        return (self.k.FINE_PARTS_OF_W if self.fine else self.k.PARTS_OF_W) >> 4 * i & 15

    def input(self, x, i):
        there = (i == 0) | np.isfinite(bfloats(x)[..., 0])
        return np.where(there, left_after(x, self.of_x(i)), 0.0)

    def column(self, features, F, column, there=True):
        each = self.each
        inside = there & (column < each * F)
        x = self.input(features.load(column // each, inside), column % each)
        ones = there & (column >= each * F) & (column < each * F + self.ones)
        return np.where(inside, x, np.where(ones, 1.0, 0.0))


class InputWeights:
    def __init__(self, w_ih, b_ih, b_hh, D, filtered, columns):
        self.w_ih, self.b_ih, self.b_hh, self.D = w_ih, b_ih, b_hh, D
        self.filtered, self.columns = filtered, columns

    def at(self, gate_unit, column, factor, there=True):
        each = self.columns.each
        ones, d = each * (self.D + bool(self.filtered and self.b_ih)), column // each
        there = there & (column < ones + self.columns.ones)
        w = np.zeros(np.broadcast_shapes(gate_unit.shape, column.shape))
        bias, given = there & (column >= ones), there & (column < ones)
        if self.b_hh:
            w += self.b_hh.load(gate_unit, bias)
        if self.b_ih and not self.filtered:
            w += self.b_ih.load(gate_unit, bias)
        if self.w_ih:
            w += self.w_ih.load(gate_unit * self.D + d, given & (d < self.D))
        if self.b_ih:
            w += self.b_ih.load(gate_unit, given & (d >= self.D))
        parts = np.where(column < ones, self.columns.of_w(column % each), column - ones)
        return left_after(w * factor, np.where(there, parts, 0))


def pack_forward(
    i, r, k, w_hh, w_ih, b_ih, b_hh, packed, low, ctas, input_slices, H, D, filtered, plain, own_hh, own_ih,
    own_b_ih, own_b_hh,
):  # fmt: skip
    slices = 2 * ctas + input_slices
    count = ctas * k.WARPS * slices * 64
    i = i[i < count]
    lane, m, s, warp = i % 32, i // 32 % 2, i // 64 % slices, i // 64 // slices
    unit = warp * 8 + lane // 4
    w_hh += r * own_hh * 4 * H * H
    inputs = InputWeights(
        w_ih and w_ih + r * own_ih * 4 * H * D,
        b_ih and b_ih + r * own_b_ih * 4 * H,
        b_hh and b_hh + r * own_b_hh * 4 * H,
        D,
        filtered,
        Columns(k, low is not None),
    )
    a, low_parts = [], []
    for part in range(4):
        gate = 2 * m + part % 2
        factor = np.where(gate == 2, -2 * k.LOG2E, -k.LOG2E)
        v = []
        for n in range(2):
            column, gate_unit = s * 16 + 2 * (lane % 4) + part // 2 * 8 + n, gate * H + unit
            further = s >= 2 * ctas
            inside = (unit < H) & ~further & (column < H)
            by = 1.0 if plain else factor
            one = inputs.at(gate_unit, np.maximum(column - k.WARPS * 8 * ctas, 0), by, (unit < H) & further)
            v.append(np.where(further, one, factor * w_hh.load(gate_unit * H + column, inside)))
        a.append(np.where((s < 2 * ctas)[:, None], halves(*v), bfloats(*v)))
        low_parts.append(halves(*map(scaled_low_half, v)))
    packed.store(r * count + i, np.concatenate(a, -1))
    if low:
        at = ((r * ctas * k.WARPS + warp) * 2 * ctas + s) * 64 + m * 32 + lane
        low.store(at, np.concatenate(low_parts, -1), s < 2 * ctas)


def pack_backward(i, r, k, w_hh, packed, low, ctas, H):
    tiles = (ctas + 1) // 2
    count = ctas * k.WARPS * tiles * 8 * 32
    i = i[i < count]
    lane, s, m = i % 32, i // 32 % 8, i // 256 % tiles
    warp, rank = i // 256 // tiles % k.WARPS, i // 256 // tiles // k.WARPS
    w_hh += r * 4 * H * H
    a, low_parts = [], []
    for part in range(4):
        after = 2 * m + part % 2
        to = (rank + after + 1) % ctas * (k.WARPS * 8) + warp * 8 + lane // 4
        column = s * 16 + 2 * (lane % 4) + part // 2 * 8
        gate, unit = column % 4, rank * (k.WARPS * 8) + column // 4
        there = (after < ctas) & (to < H) & (unit < H)
        u = w_hh + ((gate * H + unit) * H + to)
        v = u.load(0, there), u.load(H * H, there)
        a.append(halves(*v))
        low_parts.append(halves(*map(scaled_low_half, v)))
    packed.store(r * count + i, np.concatenate(a, -1))
    if low:
        low.store(r * count + i, np.concatenate(low_parts, -1))


def pack_input(i, r, k, x, packed, begins, lengths, starts, T, B, N, tile_steps, F, input_slices, fine):
    rows, columns = Rows(begins, lengths, T, B), Columns(k, fine)
    tiles = (B + k.TILE - 1) // k.TILE
    s, b = i % input_slices, i // input_slices % (k.TILE * tiles)
    t = i // input_slices // (k.TILE * tiles)
    on = t < rows.length(b // k.TILE * k.TILE)
    s, b, t = s[on], b[on], t[on]
    tile = b // k.TILE
    there = (b < B) & (t < rows.length(b, b < B))
    x += (r * N + rows.of(t) + b) * F
    pair = []
    for n in range(8):
        column = s * 16 + n // 2 * 2 + n % 2 * 8
        pair.append(bfloats(columns.column(x, F, column, there), columns.column(x, F, column + 1, there)))
    start = starts[tile] if starts else tile * T
    packed += ((r * tile_steps + start + t) * input_slices + s) * 16 + b % k.TILE * 2
    packed.store(0, np.concatenate(pair[:4], -1))
    packed.store(1, np.concatenate(pair[4:], -1))


def pack_input_weights(
    i, r, k, w_ih, b_ih, b_hh, packed, H, D, filtered, width, fine, own_ih, own_b_ih, own_b_hh
):
    pairs = width // 2
    i = i[i < 4 * H * pairs]
    weights = InputWeights(
        w_ih + r * own_ih * 4 * H * D,
        b_ih and b_ih + r * own_b_ih * 4 * H,
        b_hh and b_hh + r * own_b_hh * 4 * H,
        D,
        filtered,
        Columns(k, fine),
    )
    interleaved, column = i // pairs, i % pairs * 2
    gate_unit = interleaved % 4 * H + interleaved // 4
    pair = bfloats(weights.at(gate_unit, column, 1.0), weights.at(gate_unit, column + 1, 1.0))
    packed.store(r * 4 * H * pairs + i, pair)


def filter_input(
    block, r, k, x, decay, factors, v, packed, largest, begins, lengths, T, B, N, D, F, decay_columns,
    backwards, block_columns, width, fine, step,
):  # fmt: skip
    """For one block."""
    rows, columns = Rows(begins, lengths, T, B), Columns(k, fine)
    thread = np.arange(k.FILTER_THREADS)
    lane, segment, segments = (
        thread % block_columns,
        thread // block_columns,
        k.FILTER_THREADS // block_columns,
    )
    column = block * block_columns + lane
    b, d = column // F, column % F
    steps, length = np.where(b < B, rows.length(b, b < B), 0), (T + segments - 1) // segments
    begin = segment * length
    end = np.minimum(begin + length, steps)
    direction, start = (-1, steps - 1 - begin) if backwards else (1, begin)
    given = d < D

    def at(t, there):
        return r * N + rows.of(t, there) + b

    def fetch(s):
        inputs, decays = [], []
        for i in range(8):
            t, now = start + (s + i - begin) * direction, s + i < end
            other = t + backwards
            value = np.where(now & given, x.load(at(t, now) * D + d, now & given), 1.0)
            if factors:
                value = value * np.where(now, factors.load(at(t, now), now), 1.0)
            inputs.append(value)
            there = now & (other < steps)
            place = other * B + b if decay_columns > 1 else other
            decays.append(decay.load(place, there) if decay else np.zeros(len(thread)))
        return inputs, decays

    def write(t, x, now):
        row, each = packed + at(t, now) * width, columns.each
        for i in range(each):
            row.store(each * d + i, bfloats(columns.input(x, np.array(i)))[..., 0], now)
        for i in range(each * F, width):
            row.store(i, 1.0 if i < each * F + columns.ones else 0.0, now & (d == 0))

    carried = np.zeros(len(thread))
    at_hand = None
    if decay:
        sum_, product = np.zeros(len(thread)), np.ones(len(thread))
        for s in range(0, length, 8):
            at_hand = inputs, decays = fetch(begin + s)
            for i in range(8):
                now = (begin + s + i < end) & (s + i < length)
                sum_ = np.where(now, decays[i] * sum_ + step * inputs[i], sum_)
                product = np.where(now, product * decays[i], product)
        segment_sums = sum_.reshape(segments, block_columns)
        segment_decays = product.reshape(segments, block_columns)
        sums = np.zeros((segments + 1, block_columns))
        for n in range(segments):
            sums[n + 1] = segment_decays[n] * sums[n] + segment_sums[n]
        carried = sums[:-1].reshape(-1)
    top = np.zeros(len(thread))
    for s in range(0, length, 8):
        inputs, decays = fetch(begin + s) if not decay or length > 8 else at_hand
        for i in range(8):
            now = (begin + s + i < end) & (s + i < length)
            carried = np.where(now, decays[i] * carried + step * inputs[i], carried)
            t = start + (s + i) * direction
            if v:
                v.store(at(t, now) * F + d, carried, now)
            if packed:
                write(t, carried, now)
            top = np.where(now, np.maximum(top, abs(carried)), top)
    if largest:
        tops = top.reshape(segments, block_columns).max(0)
        largest.raise_to(r * F + d, tops[lane], (segment == 0) & (b < B))


def pack_gradient_operand(
    i, r, k, y, h0, x, scales, largest_scale, largest_x, packed, begins, before, rows, room, T, B, N, H, F,
    columns, fine, own_state, own_input,
):  # fmt: skip
    eights = columns // 8
    i = i[i < rows * eights]
    every = Rows(begins, None, T, B)
    row, column = before + i // eights, i % eights * 8
    t = every.step(row)
    b = row - every.of(t)
    factor = scales[r * room + i // eights] / largest_scale[r][0]
    later = t > 0
    y += (r * N + every.of(t - 1, later) + b) * H
    h0 += (r * own_state * B + b) * H
    x += (r * own_input * N + row) * F
    # Then it reads h four floats at a time.
    if H % 4 == 0 and H >= 8:
        assert y.memory.start % 4 == h0.memory.start % 4 == 0, "h is not aligned"
    v = []
    for n in range(8):
        d = column + n - H
        h = y.load(column + n, later & (d < 0)) + h0.load(column + n, ~later & (d < 0))
        inside = (d >= 0) & (d < F)
        feature = x.load(d, inside)
        if F:
            tops = largest_x.load(r * own_input * F + d, inside)[..., 0]
            feature = feature / power_below(tops)
        v.append(np.where(d < 0, h, np.where(d < F, feature, d == F)) * factor)
    packed += (r * room + i // eights) * eights * (2 if fine else 1) + i % eights
    packed.store(0, halves(*v))
    if fine:
        packed.store(eights, halves(*map(scaled_low_half, v)))


def finish_weight_gradients(
    i, r, k, products, largest_scales, largest_x, dw_hh, dw_ih, db_ih, db_hh, chunks, R, H, D, F, columns,
    own_input,
):  # fmt: skip
    width = H + F + 1
    i = i[i < 4 * H * width]
    gate_unit, column = i // width, i % width
    interleaved, d = gate_unit % H * 4 + gate_unit // H, column - H
    sum_ = np.zeros(len(i))
    for c in range(chunks):
        product = products[((c * R + r) * 4 * H + interleaved) * columns + column]
        sum_ += product * largest_scales[c * R + r][0]
    inside = (d >= 0) & (d < F)
    if F:
        sum_ *= np.where(inside, power_below(largest_x.load(r * own_input * F + d, inside)[..., 0]), 1.0)
    place = r * 4 * H + gate_unit
    for pointer, at, there in (
        (dw_hh, place * H + column, d < 0),
        (dw_ih, place * D + d, (d >= 0) & (d < D)),
        (db_ih, place, (d >= D) & (d == (D if F > D else F))),
        (db_hh, place, (d >= D) & (d == F)),
    ):
        if pointer:
            pointer.store(at, sum_, there)


def pack_w_ih(i, r, k, w_ih, largest, packed, powers, H, D, columns, fine):
    i = i[i < 4 * H * columns]
    interleaved, d = i // columns, i % columns
    gate_unit = interleaved % 4 * H + interleaved // 4
    w, power = w_ih.load((r * 4 * H + gate_unit) * D + d, d < D), power_below(largest[r])
    packed += (r * 4 * H + interleaved) * columns * (2 if fine else 1) + d
    packed.store(0, halves(w / power)[..., 0])
    if fine:
        packed.store(columns, halves(scaled_low_half(w / power))[..., 0])
    powers.store(r + 0 * i, power, i == 0)


def unpack_drive_gradient(i, r, k, dz, dz_low, scales, dx, before, rows, room, N, H):
    i = i[i < rows * H]
    row, unit = i // H, i % H
    factor, place = scales[r * room + row], r * room * H + i
    packed = dz[place]
    if dz_low:
        packed = packed + dz_low[place] / 2048
    dx += (r * N + before + row) * 4 * H + unit
    for n in range(4):
        dx.store(n * H, factor * packed[:, n])


# ---- launches


# What a kernel adds to, or leaves where rows have ended.
CHANGED = {("momentum_backward", name) for name in ("dv", "dn", "sums")} | {("lstm_forward", "saved_moments")}
# What has more rows than a chunk of time.
CHUNKED = {("lstm_backward", name) for name in ("dz", "dz_low", "scales")}
CHUNKED |= {("pack_gradient_operand", "packed"), ("unpack_drive_gradient", "dx"), ("momentum_backward", "da")}


class Kernel:
    """Stands for `nvrtc.Kernel`: takes tensors of float64 where that takes float32, half or bfloat16."""

    def __init__(self, machine, name, defines):
        self.machine, self.name = machine, name
        self.file = FILES[name]
        self.k = constants(self.file, **{n: int(v) for n, v in defines.items()})

    def __call__(self, grid, block, arguments, shared=0):
        described = parameters(self.file, self.name)
        assert [name for name, *_ in described] == list(nvrtc.signature(source(self.file), self.name).kinds)
        assert {name for name, *_ in described} == set(arguments), f"{self.name} takes other arguments"
        memories, named = {}, {}
        self.replicas = grid[1]
        for name, kind, pointer, _ in described:
            arg = arguments[name]
            assert pointer == (arg is None or isinstance(arg, torch.Tensor)), f"{name} is of another kind"
            if isinstance(arg, torch.Tensor):
                memories[name] = Memory(name, kind, arg)
                arg = Pointer(memories[name])
            elif not pointer:
                assert isinstance(arg, int) or kind == "float", f"{name} should be an int"
                arg = int(arg) if kind == "int" else arg
            named[name] = arg
        self._run(grid, block, named, shared)
        for name, _, pointer, const in described:
            if pointer and not const and name in memories and "largest" not in name:
                writes = memories[name].writes
                assert (writes <= 1).all(), f"{self.name} writes an element of {name} twice"
                if (self.name, name) not in CHANGED:
                    due = self._due(name, len(writes), named)
                    assert (writes == due).all(), f"{self.name} leaves parts of {name}, or writes too many"
        self.machine.launches.append((self.name, grid, memories))

    def _due(self, name, length, named):
        """How often each element should be written: once, if it is one of a chunk's rows."""
        if (self.name, name) not in CHUNKED:
            return np.ones(length, int)
        room, before = (
            (named["N"], named["before"]) if self.name == "unpack_drive_gradient" else (named["room"], 0)
        )
        rows = named["rows"] if "rows" in named else (named["last"] - named["first"]) * named["B"]
        if "last" in named and named["begins"]:
            rows = named["begins"][named["last"]] - named["begins"][named["first"]]
        row = np.arange(length) * (self.replicas * room) // length % room
        return ((row >= before) & (row < before + rows)).astype(int)

    def _run(self, grid, block, named, shared):
        k = self.k
        blocks, replicas, one = grid
        assert one == 1
        if self.file == "momentum_backward":
            import momentum_emulator  # which imports this file

            assert block == k.THREADS
            for r in range(replicas):
                k.replicas = replicas
                getattr(momentum_emulator, self.name)(blocks, r, k, **named)
            return
        run = globals()[self.name]
        if self.file in ("lstm_forward", "lstm_backward"):
            assert block == k.THREADS
            assert blocks % k.CTAS == 0
            lengths = arrays(self.file, k)
            barriers = lengths.pop("barriers")
            name, size = dynamic(self.file, k)
            assert shared == size, f"{self.name} needs {size} bytes of shared memory, not {shared}"
            lengths[name] = size
            for replica in range(replicas):
                for tile in range(blocks // k.CTAS):
                    cluster = Cluster(k.CTAS, k.WARPS, lengths, barriers, self.machine.seed)

                    def program(me, tile=tile, replica=replica):
                        me.tile, me.tiles, me.replica = tile, blocks // k.CTAS, replica
                        return run(me, k, **named)

                    cluster.run(k.WARPS, program)
        elif self.name == "filter_input":
            assert block == k.FILTER_THREADS
            for r in range(replicas):
                for b in range(blocks):
                    run(b, r, k, **named)
        else:
            for r in range(replicas):
                run(np.arange(blocks * block), r, k, **named)


class Machine:
    """Has kernels to put in place of `launch.kernel`, and writes down what was launched."""

    def __init__(self, seed=0):
        self.seed, self.launches = seed, []

    def kernel(self, name, device, **defines):
        return Kernel(self, name, defines)

    def launched(self, name):
        return [memories for launch, _, memories in self.launches if launch == name]


class Torch:
    """Stands for torch in `kernels`: all is float64, and a word of 32 bits is a pair, that is complex."""

    float16 = bfloat16 = torch.float64
    int32 = torch.complex128

    def __getattr__(self, name):
        return getattr(torch, name)

    def mm(self, a, b, out_dtype):
        return a @ b

    bmm = mm
