"""The kernels of momentumrnn/kernels in numpy, index by index, for machines without a GPU.

Names and order are those of the .cu files, so that both can be read side by side; constants, parameters, the
sizes of shared memory and the bytes that barriers wait for are read from there. What differs:

- Numbers are float64 and not rounded unless ROUND: what has 16 bits is one of them, what has 32 bits is two.
- A warp is a generator, its lanes an axis. Warps, and messages between them, take turns in random order.
- Memory is watched. Nothing is read before it is written or beyond its end; every element of an output is
  written once; and accesses of shared memory by two warps, one of which writes, need a barrier between them
  that orders them in every schedule, not in this one alone (clocks of Lamport's kind, one for each warp).
"""

import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

FOLDER = Path(__file__).parent.parent / "momentumrnn" / "kernels"
ROUND = False  # to 16 bits, as the kernels do

# ---- what is read from the sources


@cache
def source(name):
    """A .cu file without comments."""
    return re.sub(r"//.*", "", (FOLDER / f"{name}.cu").read_text())


def value(expression, names):
    """Of an integer expression in C."""
    python = re.sub(r"([^()?:]+)\?([^()?:]+):([^()?:]+)", r"(\2 if \1 else \3)", expression)
    return int(eval(python.strip().replace("/", "//"), {}, names))


def constants(file, **defines):
    """All constexpr of a file compiled with these macros."""
    found = dict(defines)
    for kind, name, expression in re.findall(r"constexpr (int|u32|float) (\w+) = (.*?);", source(file)):
        found[name] = float(expression.rstrip("f")) if kind == "float" else value(expression, found)
    return SimpleNamespace(**found)


def expected(k):
    """The bytes that a barrier of the forward pass expects in a step."""
    (expression,) = set(re.findall(r"expect\(received[^,]*, (.*)\);", source("lstm_forward")))
    return value(expression, vars(k))


def messages(k, buffer):
    """The bytes that a barrier of the backward pass expects in a step."""
    (expression,) = re.findall(r"u32 messages\(u32 buffer\) { return (.*?); }", source("lstm_backward"))
    return value(expression, {**vars(k), "buffer": buffer})


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


# ---- numbers


def halves(*xs):
    """Numbers side by side, as 16 bits each."""
    x = np.stack(np.broadcast_arrays(*xs), -1).astype(float)
    return x.astype(np.float16).astype(float) if ROUND else x


def bfloats(*xs):
    x = np.stack(np.broadcast_arrays(*xs), -1).astype(float)
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
    return x - bfloats(x)[..., 0]


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


SIZES = {"float": 1, "float4": 4, "u16": 1, "u32": 2, "uint2": 4, "uint4": 8}  # in numbers


class Memory:
    """What a pointer to a tensor may reach, in elements of a kind; how often each was read and written."""

    def __init__(self, name, kind, tensor):
        assert tensor.is_contiguous(), f"{name} is not contiguous"
        assert tensor.is_complex() <= (kind[0] == "u"), f"{name} is not of {kind}"
        self.start = tensor.storage_offset() * (1 + tensor.is_complex())
        assert self.start % SIZES[kind] == 0, f"{name} is not aligned"
        flat = tensor.reshape(-1)
        flat = (torch.view_as_real(flat) if flat.is_complex() else flat).numpy().reshape(-1)
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
        found = np.zeros((*there.shape, m.size))
        found[there] = m.data[at]
        np.add.at(m.reads, at, 1)
        assert not np.isnan(found).any(), f"{m.name}: read before written"
        return found[..., 0] if m.size == 1 else found

    def store(self, index, x, there=True):
        at, there, m = *self._places(index, there), self.memory
        x = np.asarray(x, float).reshape(*np.shape(x)[: None if m.size == 1 else -1], m.size)
        m.data[at] = np.broadcast_to(x, (*there.shape, m.size))[there]
        np.add.at(m.writes, at, 1)

    def raise_to(self, index, x, there=True):
        """atomicMax of floats that aren't negative."""
        at, there, m = *self._places(index, there), self.memory
        np.maximum.at(m.data[:, 0], at, np.broadcast_to(x, there.shape)[there])

    def _places(self, index, there):
        at, there = np.broadcast_arrays(self.offset + index, there)
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
        address = np.asarray(address)
        assert (address % size == 0).all(), f"{self.name}: not aligned"
        assert (address >= 0).all(), f"{self.name}: below its begin"
        assert (address + size <= self.length).all(), f"{self.name}: beyond its end"
        return address[..., None] // 2 + np.arange(size // 2)

    def write(self, at, x, clock, writer, time):
        """By one who has this clock, and so knows that whatever was there is read."""
        assert (self.read[at] <= clock[: self.read.shape[1]]).all(), f"{self.name}: others may still read"
        assert (clock[self.writer[at]] >= self.written[at]).all(), f"{self.name}: others may still write"
        assert len(np.unique(at)) == at.size, f"{self.name}: written twice"
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
        while running:
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
                left = all(other.rank != me.rank for other, _ in running)
                assert not left or all(rank != me.rank for rank, *_ in self.messages), "left too early"

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
        """So many bytes from each lane's address; `unset`: whatever is there will do."""
        array, there = self.cluster.arrays[self.rank][name], np.broadcast_to(there, LANE.shape)
        at = array.places(np.broadcast_to(address, LANE.shape)[there], size)
        assert (self.clock[array.writer[at]] >= array.written[at]).all(), f"{name}: read too early"
        array.read[at, self.number] = self.clock[self.number]
        found = np.zeros((32, size // 2))
        found[there] = array.data[at]
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
        array, there = self.cluster.arrays[rank][name], np.broadcast_to(there, LANE.shape)
        at = array.places(address[there], 2 * x.shape[-1])
        array.write(at, x[there], self.clock, self.number, self.clock[self.number])

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
    me, k, weights, extra, drive, bias, h0, c0, y, last_h, last_c, kept_gates, kept_cells, T, B, H,
    each_weight, each_input, each_bias, each_state,
):  # fmt: skip
    CTAS, EXTRA, WARPS, SLICES, BLOCK, HIDDEN = k.CTAS, k.EXTRA, k.WARPS, k.SLICES, k.BLOCK, k.HIDDEN
    lane, warp, g, q, rank = LANE, me.warp, G, Q, me.rank
    thread = warp * 32 + lane
    tile, tiles, replica = me.tile, me.tiles, me.replica
    unit, row = rank * k.UNITS + warp * 8 + g, tile * 8 + 2 * q
    mine = (unit < H) & (row < B), (unit < H) & (row + 1 < B)
    states, place = B * H, row * H + unit

    weights += (((replica * each_weight * CTAS + rank) * WARPS + warp) * (SLICES + EXTRA)) * 64 + lane
    w = [[weights[(2 * s + m) * 32] for m in range(2)] for s in range(SLICES + EXTRA)]

    h0 += replica * each_state * states
    c0 += replica * each_state * states
    for i in range(0, 8 * k.WIDTH, k.THREADS):
        i = i + thread
        u, b = i // 64 * 8 + i % 8, tile * 8 + i // 8 % 8
        me.store("hidden", 2 * i, halves(h0.load(b * H + u, (u < H) & (b < B))))
    c = [c0.load(place, mine[0]), c0.load(place + H, mine[1])]

    warps, number = (H + 7) // 8, rank * WARPS + warp
    keeps = k.KEEP and number < warps
    block, blocks = (tile * warps + number) * 32 + lane, tiles * warps * 32
    kept_gates += replica * T * blocks + block
    kept_cells += replica * (T + 1) * blocks + block
    if keeps:
        kept_cells.store(0, halves(*c))
    y += replica * T * states + place

    if warp == 0:
        me.expect(0, expected(k))
        me.expect(1, expected(k))
    yield from me.syncthreads()
    yield from me.meet_cluster()

    size = 8 if EXTRA else 16
    own = size * thread
    if EXTRA:
        extra += ((replica * each_input * T * tiles + tile) * EXTRA * 32 + lane) * 2
    else:
        drive += replica * each_input * T * states + place

    def fetch(t):
        nonlocal extra, drive
        slot = own + t % k.AHEAD * k.PIECES * k.PIECE
        if EXTRA:
            for n in range(EXTRA):
                there = np.full(32, t < T)
                x = np.concatenate([extra.load(n * 64 + i, there) for i in range(2)], -1)
                me.copy_later("inputs", slot + n * k.PIECE, x, there)
            extra += tiles * EXTRA * 64
        else:
            for j in range(2):
                there = (t < T) & mine[j]
                me.copy_later("inputs", slot + j * k.PIECE, wide(drive.load(j * H, there)), there)
            drive += states
        me.end_of_copies()

    b_hh = np.zeros((4, 32))
    factor = -k.LOG2E * np.array([1, 1, 2, 1])
    if not EXTRA:
        for i in range(2 * k.AHEAD):
            me.store("inputs", own + i * k.PIECE, np.zeros((32, 8)))
        if bias:
            bias += replica * each_bias * 4 * H + unit
            b_hh = np.stack([factor[n] * bias.load(n * H, unit < H) for n in range(4)])
    for t in range(k.AHEAD - 1):
        fetch(t)

    source, to = 16 * lane, number * BLOCK + 4 * lane

    for t in range(T):
        now = t & 1
        after = now ^ 1
        z = np.zeros((2, 2, 32, 4))
        me.wait_for_copies(k.AHEAD - 2)
        slot = own + t % k.AHEAD * k.PIECES * k.PIECE
        if EXTRA:
            for n in range(EXTRA):
                b = me.load("inputs", slot + n * k.PIECE, 8)
                multiply(z[0, 0], w[SLICES + n][0], b[:, :2], b[:, 2:])
                multiply(z[0, 1], w[SLICES + n][1], b[:, :2], b[:, 2:])
        else:
            for j in range(2):
                v = me.load_floats("inputs", slot + j * k.PIECE, 16)
                z[0, 0, :, j] = factor[0] * v[:, 0] + b_hh[0]
                z[0, 0, :, 2 + j] = factor[1] * v[:, 1] + b_hh[1]
                z[0, 1, :, j] = factor[2] * v[:, 2] + b_hh[2]
                z[0, 1, :, 2 + j] = factor[3] * v[:, 3] + b_hh[3]
        fetch(t + k.AHEAD - 1)

        if CTAS == 1:
            yield from me.syncthreads()
        elif t > 0:
            yield from me.wait(now, (t - 1) // 2)
        for s in range(0, SLICES, 2):
            h = load_matrices(me.load("hidden", source + now * HIDDEN + s * 2 * BLOCK, 16))
            multiply(z[0, 0], w[s][0], h[:, 0], h[:, 1])
            multiply(z[0, 1], w[s][1], h[:, 0], h[:, 1])
            multiply(z[1, 0], w[s + 1][0], h[:, 2], h[:, 3])
            multiply(z[1, 1], w[s + 1][1], h[:, 2], h[:, 3])

        if CTAS > 1 and t > 0 and warp == 0:
            me.expect(now, expected(k))

        gates, h = [], []
        for j in range(2):
            sums = z[0, 0, :, j] + z[1, 0, :, j], z[0, 0, :, 2 + j] + z[1, 0, :, 2 + j]
            sums += z[0, 1, :, j] + z[1, 1, :, j], z[0, 1, :, 2 + j] + z[1, 1, :, 2 + j]
            i_, f_, g_, o_ = (1 / (1 + 2.0 ** np.minimum(x, 30)) for x in sums)
            gates.append((i_, f_, g_, o_))
            c[j] = f_ * c[j] + i_ * (2 * g_ - 1)
            h.append(o_ * np.tanh(c[j]))

        if t + 1 < T:
            turned = transpose(halves(*h))
            if CTAS == 1:
                me.store("hidden", to + after * HIDDEN, turned)
            else:
                for i in range(CTAS):
                    me.send("hidden", (rank + i) % CTAS, to + after * HIDDEN, turned, after)

        y.store(0, h[0], mine[0])
        y.store(H, h[1], mine[1])
        y += states
        if keeps:
            pairs = [counts_of(*pair) for i_, f_, g_, o_ in gates for pair in ((i_, f_), (g_, o_))]
            kept_gates.store(0, np.concatenate(pairs, -1))
            kept_gates += blocks
            kept_cells += blocks
            kept_cells.store(0, halves(*c))
        if t + 1 == T:
            last_h += replica * states + place
            last_c += replica * states + place
            for j in range(2):
                last_h.store(j * H, h[j], mine[j])
                last_c.store(j * H, c[j], mine[j])
    yield from me.meet_cluster()


# ---- lstm_backward.cu, for one warp


def lstm_backward(
    me, k, weights, kept_gates, kept_cells, dy, last_dh, last_dc, dz, scales, largest, first_dh, first_dc,
    T, first, last, B, H, each_weight,
):  # fmt: skip
    CTAS, WARPS, THREADS, TILES, SLICES, CHAINS = k.CTAS, k.WARPS, k.THREADS, k.TILES, k.SLICES, k.CHAINS
    ROW, GATHERED, SLOT, SLOTS, MAXIMA, AHEAD = k.ROW, k.GATHERED, k.SLOT, k.SLOTS, k.MAXIMA, k.AHEAD
    lane, warp, g, q, rank = LANE, me.warp, G, Q, me.rank
    thread = warp * 32 + lane
    tile, tiles, replica, steps = me.tile, me.tiles, me.replica, last - first
    unit, row = rank * k.UNITS + warp * 8 + g, tile * 8 + 2 * q
    mine = (unit < H) & (row < B), (unit < H) & (row + 1 < B)
    states, place = B * H, row * H + unit

    weights += ((replica * each_weight * CTAS + rank) * WARPS + warp) * TILES * SLICES * 32 + lane
    w = [[weights[(m * SLICES + s) * 32] for s in range(SLICES)] for m in range(TILES)]

    received, other = warp, WARPS
    me.expect(received, messages(k, 0))
    me.expect(received + other, messages(k, 1))

    own_gates, own_cells = 16 * thread, AHEAD * 16 * THREADS + 4 * thread
    own_dy = AHEAD * 20 * THREADS + 4 * thread
    for i in range(k.INPUTS // 4):
        me.store("inputs", (i * THREADS + thread) * 4, np.zeros((32, 2)))
    yield from me.syncthreads()
    warps, number = (H + 7) // 8, rank * WARPS + warp
    kept_here = np.full(32, number < warps)
    block, blocks = (tile * warps + number) * 32 + lane, tiles * warps * 32
    kept_gates += (replica * T + last - 1) * blocks + block
    kept_cells += (replica * (T + 1) + last) * blocks + block
    c = list(kept_cells.load(0, kept_here).T)
    kept_cells += -blocks
    if dy:
        dy += (replica * T + last - 1) * states + place

    def fetch_dy(s):
        nonlocal dy
        if dy:
            for j in range(2):
                there = (s < steps) & mine[j]
                at = own_dy + s % 8 * 8 * THREADS + j * 4 * THREADS
                me.copy_later("inputs", at, wide(dy.load(j * H, there)[:, None]), there)
            dy += -states

    def fetch(s):
        nonlocal kept_gates, kept_cells
        there = (s < steps) & kept_here
        me.copy_later("inputs", own_gates + s % AHEAD * 16 * THREADS, kept_gates.load(0, there), there)
        me.copy_later("inputs", own_cells + s % AHEAD * 4 * THREADS, kept_cells.load(0, there), there)
        kept_gates += -blocks
        kept_cells += -blocks
        fetch_dy(s + 3)
        me.end_of_copies()

    for s in range(3):
        fetch_dy(s)
    for s in range(AHEAD - 1):
        fetch(s)

    part, dc = np.zeros((2, 32)), np.zeros((2, 32))
    for d, given in ((part, last_dh), (dc, last_dc)):
        if given:
            given += replica * states + place
            d[:] = [given.load(j * H, mine[j]) for j in range(2)]

    def exponents(x, y):
        return np.stack([exponent(np.maximum(abs(x[j]), abs(y[j]))) for j in range(2)], -1)

    def exponents_of_dy(s):
        at = own_dy + s % 8 * 8 * THREADS
        return np.stack([exponent(dy_at(at + j * 4 * THREADS)) for j in range(2)], -1)

    def dy_at(address):
        return me.load_floats("inputs", address, 4)[:, 0]

    def sent_in(place, unset=False):
        e = np.zeros((32, 2))
        for i in range((CTAS * WARPS + 7) // 8):
            there = 8 * i + g < CTAS * WARPS
            at = place * MAXIMA + (8 * i + g) * 16 + 4 * q
            e = np.fmax(e, me.load("maxima", at, 4, there, unset))
        return e

    def over_lanes(a):
        for i in (4, 8, 16):
            a = np.maximum(a, shuffle_xor(a, i))
        return a

    def to_come(s):
        return np.maximum.reduce([exponents_of_dy(s + i) for i in range(4)])

    own_maxima = (rank * WARPS + warp) * 16 + 4 * q
    me.wait_for_copies(0)
    last_seen = exponents(part, dc)
    seen = over_lanes(np.maximum(last_seen, to_come(0)))
    yield from me.meet_cluster()
    me.store_there("maxima", g, own_maxima + 2 * MAXIMA, seen, g < CTAS)
    yield from me.meet_cluster()
    rows = over_lanes(sent_in(2))

    own_slot = 8 * thread
    to = (2 * q * ROW + 4 * (warp * 8 + g)) * 2
    source = ((lane % 8) * ROW + 8 * (lane // 8)) * 2

    def receive(dh, s):
        buffer = s & 1
        if CTAS > 1:
            yield from me.wait(received + other * buffer, s // 2)
            parts = [
                me.load_floats("slots", own_slot + buffer * SLOTS + i * SLOT, 8) for i in range(CTAS - 1)
            ]
            d = 1
            while d < CTAS - 1:
                for i in range(0, CTAS - 1 - d, 2 * d):
                    parts[i] = parts[i] + parts[i + d]
                d *= 2
            dh += parts[0].T

    dz += (replica * steps + steps - 1) * states + place
    scales += (replica * steps + steps - 1) * B + row
    notes = (unit == 0) & (row < B), (unit == 0) & (row + 1 < B)
    top = np.zeros(32)

    for s in range(steps):
        buffer = s & 1
        tanh_c = np.tanh(c)
        me.wait_for_copies(AHEAD - 2)
        kept = me.load("inputs", own_gates + s % AHEAD * 16 * THREADS, 16)
        before = me.load("inputs", own_cells + s % AHEAD * 4 * THREADS, 4)
        at = own_dy + s % 8 * 8 * THREADS
        dy_now = dy_at(at), dy_at(at + 4 * THREADS)
        turn = s // 2 % 2
        if buffer == 0:
            sent = sent_in(turn ^ 1, unset=s == 0)
            seen = over_lanes(np.maximum(last_seen, to_come(s)))
            if s > 0:
                rows = over_lanes(sent)
        dh, through_c, to_gates, forget = np.empty((2, 32)), [], [], []
        for j in range(2):
            i_, f_, g_, o_ = kept.T[4 * j : 4 * j + 4]
            g_ = 2 * g_ - 1
            c[j] = before[:, j]
            through_c.append(o_ * (1 - tanh_c[j] ** 2))
            slopes = i_ - i_ * i_, f_ - f_ * f_, 1 - g_ * g_, o_ - o_ * o_
            to_gates.append((g_ * slopes[0], c[j] * slopes[1], i_ * slopes[2], tanh_c[j] * slopes[3]))
            forget.append(f_)
            dh[j] = part[j] + dy_now[j]
        fetch(s + AHEAD - 1)
        scale = scale_for(rows[:, 0]), scale_for(rows[:, 1])

        if s > 0:
            yield from receive(dh, s - 1)
        if buffer == 0:
            if CTAS > 1:
                me.send("maxima", g, own_maxima + turn * MAXIMA, seen, received, g < CTAS)
            else:
                me.store_there("maxima", g, own_maxima + turn * MAXIMA, seen, g < CTAS)
        scaled = []
        for j in range(2):
            dc[j] += dh[j] * through_c[j]
            by_dc, by_dh = dc[j] * scale[j], dh[j] * scale[j]
            to_i, to_f, to_g, to_o = to_gates[j]
            scaled.append(halves(by_dc * to_i, by_dc * to_f, by_dc * to_g, by_dh * to_o))
            me.store("gathered", to + buffer * GATHERED + j * ROW * 2, scaled[j])
        yield from me.syncthreads()

        b = [
            load_matrices(me.load("gathered", source + buffer * GATHERED + s_ * 64, 16))
            for s_ in range(SLICES // 2)
        ]
        sums = np.zeros((TILES, CHAINS, 32, 4))
        for n in range(SLICES):
            for m in range(TILES):
                multiply(
                    sums[m, n % CHAINS], w[m][n], b[n // 2][:, 2 * (n & 1)], b[n // 2][:, 2 * (n & 1) + 1]
                )
        if CTAS > 1 and s > 0:
            me.expect(received + other * (buffer ^ 1), messages(k, buffer ^ 1))
        for i in range(CTAS):
            x, y = (sums[i // 2, :, :, i % 2 * 2 + j].sum(0) / scale[j] for j in range(2))
            if i == CTAS - 1:
                part = np.stack([x, y])
            else:
                there = (rank + i + 1) % CTAS
                xy = wide(np.stack([x, y], -1))
                me.send("slots", there, own_slot + buffer * SLOTS + i * SLOT, xy, received + other * buffer)

        for j in range(2):
            dz.store(j * H, scaled[j], mine[j])
        dz += -states
        for j in range(2):
            scales.store(j, 1 / scale[j], notes[j])
            top = np.where(notes[j], np.maximum(top, 1 / scale[j]), top)
        scales += -B

        last_seen = exponents(dh, dc)
        for j in range(2):
            dc[j] *= forget[j]
    largest.raise_to(replica, top, top > 0)

    yield from receive(part, steps - 1)
    first_dh += replica * states + place
    first_dc += replica * states + place
    for j in range(2):
        first_dh.store(j * H, part[j], mine[j])
        first_dc.store(j * H, dc[j], mine[j])
    yield from me.meet_cluster()


# ---- around.cu, for all threads of a replica at once


class Columns:
    def __init__(self, w_ih, b_ih, b_hh, D, driven):
        self.w_ih, self.b_ih, self.b_hh, self.D, self.driven = w_ih, b_ih, b_hh, D, driven
        self.features = D + bool(driven and b_ih)

    def weight(self, gate_unit, column, factor, there=True):
        ones, d = 3 * self.features, column // 3
        w = np.zeros(np.broadcast_shapes(gate_unit.shape, column.shape))
        bias = there & (column >= ones) & (column < ones + 2)
        if self.b_hh:
            w += self.b_hh.load(gate_unit, bias)
        if self.b_ih and not self.driven:
            w += self.b_ih.load(gate_unit, bias)
        given = there & (column < ones)
        if self.w_ih:
            w += self.w_ih.load(gate_unit * self.D + d, given & (d < self.D))
        if self.features > self.D:
            w += self.b_ih.load(gate_unit, given & (d >= self.D))
        w = w * factor
        return np.where((column == ones + 1) | ((column < ones) & (column % 3 == 2)), low_part(w), w)


def input_column(features, F, column, there=True):
    x = features.load(column // 3, there & (column < 3 * F))
    x = np.where((column % 3 == 1) & (column < 3 * F), low_part(x), x)
    return np.where(there & (column >= 3 * F) & (column < 3 * F + 2), 1.0, x)


def pack_forward(
    i, r, k, w_hh, w_ih, b_ih, b_hh, packed, ctas, extra, H, D, driven, each_hh, each_ih, each_b_ih, each_b_hh
):
    slices = 2 * ctas + extra
    count = ctas * 4 * slices * 64
    i = i[i < count]
    lane, m, s, warp = i % 32, i // 32 % 2, i // 64 % slices, i // 64 // slices
    unit = warp * 8 + lane // 4
    w_hh += r * each_hh * 4 * H * H
    columns = Columns(
        w_ih and w_ih + r * each_ih * 4 * H * D,
        b_ih and b_ih + r * each_b_ih * 4 * H,
        b_hh and b_hh + r * each_b_hh * 4 * H,
        D,
        driven,
    )
    a = []
    for part in range(4):
        gate = 2 * m + part % 2
        factor = np.where(gate == 2, -2 * k.LOG2E, -k.LOG2E)
        v = []
        for n in range(2):
            column, gate_unit = s * 16 + 2 * (lane % 4) + part // 2 * 8 + n, gate * H + unit
            further = s >= 2 * ctas
            inside = (unit < H) & ~further & (column < H)
            one = columns.weight(gate_unit, column - 32 * ctas, factor, (unit < H) & further)
            v.append(np.where(further, one, factor * w_hh.load(gate_unit * H + column, inside)))
        a.append(np.where((s < 2 * ctas)[:, None], halves(*v), bfloats(*v)))
    packed.store(r * count + i, np.concatenate(a, -1))


def pack_backward(i, r, k, w_hh, packed, ctas, H):
    tiles = (ctas + 1) // 2
    count = ctas * 4 * tiles * 8 * 32
    i = i[i < count]
    lane, s, m = i % 32, i // 32 % 8, i // 256 % tiles
    warp, rank = i // 256 // tiles % 4, i // 256 // tiles // 4
    w_hh += r * 4 * H * H
    a = []
    for part in range(4):
        after = 2 * m + part % 2
        to = (rank + after + 1) % ctas * 32 + warp * 8 + lane // 4
        column = s * 16 + 2 * (lane % 4) + part // 2 * 8
        gate, unit = column % 4, rank * 32 + column // 4
        there = (after < ctas) & (to < H) & (unit < H)
        u = w_hh + ((gate * H + unit) * H + to)
        a.append(halves(u.load(0, there), u.load(H * H, there)))
    packed.store(r * count + i, np.concatenate(a, -1))


def spread(i, r, k, x, packed, T, B, F, extra):
    tiles = (B + 7) // 8
    i = i[i // extra // (8 * tiles) < T]
    s, rows = i % extra, i // extra
    b, t = rows % (8 * tiles), rows // (8 * tiles)
    x += ((r * T + t) * B + b) * F
    pair = []
    for n in range(8):
        column = s * 16 + n // 2 * 2 + n % 2 * 8
        pair.append(bfloats(input_column(x, F, column, b < B), input_column(x, F, column + 1, b < B)))
    packed += (((r * T + t) * tiles + b // 8) * extra + s) * 16 + b % 8 * 2
    packed.store(0, np.concatenate(pair[:4], -1))
    packed.store(1, np.concatenate(pair[4:], -1))


def split_input(i, r, k, x, packed, rows, F, columns):
    pairs = columns // 2
    i = i[i < rows * pairs]
    x += (r * rows + i // pairs) * F
    column = i % pairs * 2
    packed.store(r * rows * pairs + i, bfloats(input_column(x, F, column), input_column(x, F, column + 1)))


def split_weights(i, r, k, w_ih, b_ih, b_hh, packed, H, D, driven, columns, each_ih, each_b_ih, each_b_hh):
    pairs = columns // 2
    i = i[i < 4 * H * pairs]
    weights = Columns(
        w_ih + r * each_ih * 4 * H * D,
        b_ih and b_ih + r * each_b_ih * 4 * H,
        b_hh and b_hh + r * each_b_hh * 4 * H,
        D,
        driven,
    )
    woven, column = i // pairs, i % pairs * 2
    gate_unit = woven % 4 * H + woven // 4
    pair = bfloats(weights.weight(gate_unit, column, 1.0), weights.weight(gate_unit, column + 1, 1.0))
    packed.store(r * 4 * H * pairs + i, pair)


def filter(
    block, r, k, x, decay, factors, v, packed, largest, T, B, D, F, decays, backwards, columns, width, step
):
    """For one block."""
    thread = np.arange(k.FILTERS)
    lane, segment, segments = thread % columns, thread // columns, k.FILTERS // columns
    column = block * columns + lane
    b, d = column // F, column % F
    length = (T + segments - 1) // segments
    begin = segment * length
    end = np.where(b < B, np.minimum(begin + length, T), 0)
    turn, start = (-1, T - 1 - begin) if backwards else (1, begin)
    given = d < D
    row = (r * T + start) * B + b
    x += row * D + d
    factors = factors and factors + row
    v = v and v + (row * F + d)
    if decay:
        decay += (start + backwards) * B + b if decays > 1 else start + backwards

    def fetch(s):
        inputs, fades = [], []
        for i in range(8):
            n, now = (s + i - begin) * turn, s + i < end
            value = np.where(now & given, x.load(n * (B * D), now & given), 1.0)
            if factors:
                value = value * np.where(now, factors.load(n * B, now), 1.0)
            inputs.append(value)
            there = now & (start + n + backwards < T)
            fades.append(decay.load(n * B if decays > 1 else n, there) if decay else np.zeros(len(thread)))
        return inputs, fades

    def write(t, x, now):
        row = packed + ((r * T + t) * B + b) * width
        row.store(3 * d, bfloats(x)[..., 0], now)
        row.store(3 * d + 2, bfloats(x)[..., 0], now)
        row.store(3 * d + 1, bfloats(low_part(x))[..., 0], now)
        for i in range(3 * F, width):
            row.store(i, 1.0 if i < 3 * F + 2 else 0.0, now & (d == 0))

    carried = np.zeros(len(thread))
    at_hand = None
    if decay:
        total, product = np.zeros(len(thread)), np.ones(len(thread))
        for s in range(0, length, 8):
            at_hand = inputs, fades = fetch(begin + s)
            for i in range(8):
                now = (begin + s + i < end) & (s + i < length)
                total = np.where(now, fades[i] * total + step * inputs[i], total)
                product = np.where(now, product * fades[i], product)
        left, faded = total.reshape(segments, columns), product.reshape(segments, columns)
        sums = np.zeros((segments + 1, columns))
        for n in range(segments):
            sums[n + 1] = faded[n] * sums[n] + left[n]
        carried = sums[:-1].reshape(-1)
    top = np.zeros(len(thread))
    for s in range(0, length, 8):
        inputs, fades = fetch(begin + s) if not decay or length > 8 else at_hand
        for i in range(8):
            now = (begin + s + i < end) & (s + i < length)
            carried = np.where(now, fades[i] * carried + step * inputs[i], carried)
            if v:
                v.store((s + i) * turn * (B * F), carried, now)
            if packed:
                write(begin + s + i, carried, now)
            top = np.where(now, np.maximum(top, abs(carried)), top)
    if largest:
        largest.raise_to(r * F + d, top.reshape(segments, columns).max(0)[lane], (segment == 0) & (b < B))


def operand(
    i, r, k, y, h0, x, scales, largest_scale, largest_x, packed, first, rows, T, B, H, F, columns,
    each_state, each_input,
):  # fmt: skip
    eights = columns // 8
    i = i[i < rows * eights]
    row, column = i // eights, i % eights * 8
    t, b = first + row // B, row % B
    factor = scales[r * rows + row] / largest_scale[r][0]
    later = t > 0
    y += ((r * T + t - 1) * B + b) * H
    h0 += (r * each_state * B + b) * H
    x += ((r * each_input * T + t) * B + b) * F
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
            tops = largest_x.load(r * each_input * F + d, inside)[..., 0]
            feature = feature / power_below(tops)
        v.append(np.where(d < 0, h, np.where(d < F, feature, d == F)))
    packed.store(r * rows * eights + i, halves(*(factor * one for one in v)))


def finish(
    i, r, k, products, largest_scales, largest_x, dw_hh, dw_ih, db_ih, db_hh, chunks, R, H, D, F, columns,
    each_input,
):  # fmt: skip
    width = H + F + 1
    i = i[i < 4 * H * width]
    gate_unit, column = i // width, i % width
    woven, d = gate_unit % H * 4 + gate_unit // H, column - H
    total = np.zeros(len(i))
    for c in range(chunks):
        product = products[((c * R + r) * 4 * H + woven) * columns + column]
        total += product * largest_scales[c * R + r][0]
    inside = (d >= 0) & (d < F)
    if F:
        total *= np.where(inside, power_below(largest_x.load(r * each_input * F + d, inside)[..., 0]), 1.0)
    place = r * 4 * H + gate_unit
    for pointer, at, there in (
        (dw_hh, place * H + column, d < 0),
        (dw_ih, place * D + d, (d >= 0) & (d < D)),
        (db_ih, place, (d >= D) & (d == (D if F > D else F))),
        (db_hh, place, d == F),
    ):
        if pointer:
            pointer.store(at, total, there)


def weave(i, r, k, w_ih, largest, packed, powers, H, D, columns):
    i = i[i < 4 * H * columns]
    woven, d = i // columns, i % columns
    gate_unit = woven % 4 * H + woven // 4
    w, power = w_ih.load((r * 4 * H + gate_unit) * D + d, d < D), power_below(largest[r])
    packed.store(r * 4 * H * columns + i, halves(w / power)[..., 0])
    powers.store(r + 0 * i, power, i == 0)


def unweave(i, r, k, dz, scales, dx, first, rows, T, B, H):
    i = i[i < rows * H]
    row, unit = i // H, i % H
    factor, packed = scales[r * rows + row], dz[r * rows * H + i]
    dx += ((r * T + first) * B + row) * 4 * H + unit
    for n in range(4):
        dx.store(n * H, factor * packed[:, n])


# ---- launches


class Kernel:
    """Stands for `nvrtc.Kernel`: takes tensors of float64 where that takes float32, half or bfloat16."""

    def __init__(self, machine, name, defines):
        self.machine, self.name = machine, name
        self.file = name if name.startswith("lstm") else "around"
        self.k = constants(self.file, **{n: int(v) for n, v in defines.items()})

    def __call__(self, grid, block, args, shared=0):
        described = parameters(self.file, self.name)
        assert len(described) == len(args), f"{self.name} takes {len(described)} arguments, not {len(args)}"
        memories, named = {}, {}
        for (name, kind, pointer, _), arg in zip(described, args, strict=True):
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
                # `unweave` writes a chunk of all.
                assert (writes == 1).all() or self.name == "unweave", f"{self.name} leaves parts of {name}"
        self.machine.launches.append((self.name, grid, memories))

    def _run(self, grid, block, named, shared):
        k, run = self.k, globals()[self.name]
        blocks, replicas, one = grid
        assert one == 1
        if self.file != "around":
            assert block == k.THREADS
            assert blocks % k.CTAS == 0
            lengths = arrays(self.file, k)
            barriers = lengths.pop("barriers")
            assert bool(shared) == ("inputs" not in lengths)
            lengths.setdefault("inputs", shared)
            for replica in range(replicas):
                for tile in range(blocks // k.CTAS):
                    cluster = Cluster(k.CTAS, k.WARPS, lengths, barriers, self.machine.seed)

                    def program(me, tile=tile, replica=replica):
                        me.tile, me.tiles, me.replica = tile, blocks // k.CTAS, replica
                        return run(me, k, **named)

                    cluster.run(k.WARPS, program)
        elif self.name == "filter":
            assert block == k.FILTERS
            for r in range(replicas):
                for b in range(blocks):
                    run(b, r, k, **named)
        else:
            for r in range(replicas):
                run(np.arange(blocks * block), r, k, **named)


class Machine:
    """Has kernels to put in place of `fused._kernel`, and writes down what was launched."""

    def __init__(self, seed=0):
        self.seed, self.launches = seed, []

    def kernel(self, name, device, **defines):
        return Kernel(self, name, defines)

    def launched(self, name):
        return [memories for launch, _, memories in self.launches if launch == name]


class Torch:
    """Stands for torch in `fused`: all is float64, and a word of 32 bits a pair, that is complex."""

    float16 = bfloat16 = torch.float64
    int32 = torch.complex128

    def __getattr__(self, name):
        return getattr(torch, name)

    def mm(self, a, b, out_dtype):
        return a @ b

    bmm = mm
