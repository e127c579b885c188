"""Stream: the layer step by step, whatever way it takes; and its kernel, compiled, and run on a CPU."""

import copy
import ctypes
import functools
import re
import shutil
import subprocess
from pathlib import Path

import compiling
import emulator
import pytest
import torch
from conftest import CELLS, MOMENTA, TOLERANCE, assert_same, difference, grid

import momentumrnn as mr
from momentumrnn import cells, stream_engines, streaming
from momentumrnn.kernels import launch, lstm_step, nvrtc

F64 = torch.float64


def built(momentum="HeavyBall", cell="lstm", D=3, H=5, dtype=F64, **options):
    return mr.Recurrent(CELLS[cell], D, H, momentum=MOMENTA[momentum][0], dtype=dtype, **options)


def stepped(stream, xs):
    return torch.stack([stream(x) for x in xs])


def assert_as_layer(net, stream, xs, state, dtype=F64):
    """Outputs and state after the steps xs, (T, B, D), are those of the layer from `state` on."""
    want, after = net(xs.transpose(0, 1) if net.batch_first else xs, state)
    want = want.transpose(0, 1) if net.batch_first else want
    assert_same(stepped(stream, xs), want.detach(), dtype)
    assert_same(stream.state, after.detach(), dtype)


# ---- results


@pytest.mark.parametrize(("momentum", "cell", "backend"), [*grid()])
def test_it_is_the_layer(momentum, cell, backend):
    backend = "auto" if backend == "reference" else backend
    net = built(momentum, cell, num_layers=2, backend=backend)
    assert_as_layer(net, mr.Stream(net, batch_size=3), torch.randn(7, 3, 3, dtype=F64), net.initial_state(3))


@pytest.mark.parametrize(
    "options",
    [{}, {"bias": False}, {"bias": "hh"}, {"batch_first": True}, {"num_layers": 3}, {"proj_size": 2}],
    ids=str,
)
@pytest.mark.parametrize("rows", [None, 1, 4])
def test_options(rows, options):
    net = built("Nesterov", **options)
    xs = torch.randn(5, *([] if rows is None else [rows]), 3, dtype=F64)
    stream = mr.Stream(net, batch_size=rows)
    if rows is None and net.batch_first:
        assert_same(stepped(stream, xs), net(xs)[0].detach())
        return
    assert_as_layer(net, stream, xs, net.initial_state(rows))
    assert stream(xs[0]).shape == (*xs.shape[1:-1], net.proj_size or 5)


@pytest.mark.parametrize("factored", [True, "printed"])
def test_factored(factored):
    net = built("Adam", "tanh", D=3, H=4, factored=factored)
    assert_as_layer(net, mr.Stream(net, 2), torch.randn(4, 2, 3, dtype=F64), net.initial_state(2))


def test_it_goes_on_from_a_state():
    net = built("Adam", num_layers=2)
    xs = torch.randn(9, 2, 3, dtype=F64)
    _, begun = net(xs[:4], net.initial_state(2))
    before = copy.deepcopy(begun.detach())
    stream = mr.Stream(net, state=begun)
    assert_as_layer(net, stream, xs[4:], begun)
    assert_same(begun.detach(), before)  # not overwritten
    # And the layer, or another Stream, goes on from its state.
    again = mr.Stream(net, 2, stream.state)
    assert_as_layer(net, again, xs, stream.state)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("momentum", ["None", "HeavyBall", "Adam"])
def test_what_it_returns_belongs_to_the_caller(momentum, cell):
    net = built(momentum, cell)
    stream, other = mr.Stream(net, 2), mr.Stream(net, 2)
    xs = torch.randn(4, 2, 3, dtype=F64)
    for x in xs:
        first = stream(x)
        kept, state = first.clone(), stream.state
        state.hidden[0].fill_(9), state.v.fill_(9), state.k.fill_(9)
        first.mul_(0)
        assert torch.equal(other(x), kept)
    assert not first.requires_grad
    assert all(not t.requires_grad for t in (*stream.state.hidden, stream.state.v))


ROWS = {
    "indices": [0, -1],
    "tensor": torch.tensor([3, 0]),
    "mask": torch.tensor([True, False, False, True]),
    "bools": [True, False, False, True],
    "slice": slice(0, 4, 3),
}


def assert_resets(net, stream, rows, dtype):
    xs = torch.randn(5, 4, 3, dtype=dtype)
    xs[1, 3] = float("nan")  # what a row has seen is gone
    stepped(stream, xs)
    assert stream.state.v[:, 3].isnan().any()
    before = stream.state
    stream.reset(rows)
    want = net.initial_state(4)
    for name in ("v", "n"):
        getattr(want, name)[:, 1:3] = getattr(before, name)[:, 1:3]
    for to, of in zip(want.hidden, before.hidden, strict=True):
        to[:, 1:3] = of[:, 1:3]
    want.k[:, 1:3] = 5
    assert_same(stream.state, want, dtype)
    assert stream.state.k.tolist() == [[0, 5, 5, 0]] * net.num_layers
    fresh = torch.randn(3, 4, 3, dtype=dtype)
    assert_as_layer(net, stream, fresh, want, dtype)
    stream.reset()
    assert_same(stream.state, net.initial_state(4), dtype)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("momentum", ["Nesterov", "Adam"])
def test_rows_begin_anew(momentum, rows):
    net = built(momentum, num_layers=2)
    assert_resets(net, mr.Stream(net, 4), ROWS[rows], F64)


def test_no_rows_and_one_sequence():
    net = built()
    stream = mr.Stream(net, 2)
    stream(torch.randn(2, 3, dtype=F64))
    before = stream.state
    stream.reset([])
    assert_same(stream.state, before)
    alone = mr.Stream(net)
    alone(torch.randn(3, dtype=F64))
    alone.reset()
    assert_same(alone.state, net.initial_state())


# ---- a layer that changes


def test_weights_that_change():
    net, xs = built(), torch.randn(3, 2, 3, dtype=F64)
    stream = mr.Stream(net, 2)
    stepped(stream, xs)
    with torch.no_grad():
        net.weight_hh_l0.mul_(2)
    assert_as_layer(net, stream, xs, stream.state)
    net.load_state_dict(built().state_dict(), assign=True)
    assert_as_layer(net, stream, xs, stream.state)
    net.momentum = mr.Nesterov()
    assert_as_layer(net, stream, xs, stream.state)
    net.momentum = mr.Adam()
    with pytest.raises(
        RuntimeError, match=r"state.n should have shape \(1, 2, 20\), got \(1, 2, 0\); this layer"
    ):
        stream(xs[0])
    net.momentum = mr.HeavyBall()
    net.float()
    with pytest.raises(ValueError, match=r"state\[0\] should have dtype torch.float32"):
        stream(xs[0])


def test_parametrised_weights():
    net = mr.orthogonal(mr.RNN(3, 6, nonlinearity="modrelu", bias="hh", dtype=F64))
    mr.weight_drop(net, 0.5)
    net.eval()
    stream, xs = mr.Stream(net, 2), torch.randn(3, 2, 3, dtype=F64)
    assert_as_layer(net, stream, xs, net.initial_state(2))
    with torch.no_grad():
        net.parametrizations.weight_hh_l0.original.normal_()
    assert_as_layer(net, stream, xs, stream.state)


def test_dropout_needs_eval():
    net = built(num_layers=2, dropout=0.5)
    with pytest.raises(ValueError, match=r"layer should be in eval mode, since it has dropout=0.5"):
        mr.Stream(net, 2)
    stream, xs = mr.Stream(net.eval(), 2), torch.randn(3, 2, 3, dtype=F64)
    assert_as_layer(net, stream, xs, net.initial_state(2))
    before = stream.state
    net.train()
    with pytest.raises(ValueError, match="eval mode"):
        stream(xs[0])
    assert_same(stream.state, before)


def test_autocast_is_not_followed():
    net = built(dtype=torch.float32)
    xs = torch.randn(3, 2, 3)
    with torch.autocast("cpu", torch.bfloat16):
        got = stepped(mr.Stream(net, 2), xs)
    assert got.dtype == torch.float32
    assert torch.equal(got, stepped(mr.Stream(net, 2), xs))


def test_hooks_and_forwards_of_others_run():
    calls, xs = [], torch.randn(3, 2, 3, dtype=F64)

    class Own(mr.LSTM):
        def forward(self, input, hx=None):
            calls.append("own")
            return super().forward(input, hx)

    hooked = built()
    hooked.register_forward_hook(lambda *_: calls.append("hook"))
    for net in (hooked, Own(3, 5, dtype=F64, momentum=mr.Nesterov())):
        calls.clear()
        got = stepped(mr.Stream(net, 2), xs)
        assert len(calls) == 3
        assert_same(got, net(xs)[0].detach())


@pytest.mark.parametrize("momentum", [mr.HeavyBall, mr.HeavyBall.ema], ids=["HeavyBall", "ema"])
def test_learned_momentum(momentum):
    """Tensors of a momentum, too, are read where they are."""
    mu = torch.nn.Parameter(torch.rand(4, dtype=F64))
    net = mr.LSTM(3, 5, dtype=F64, momentum=momentum(mu))
    stream, xs = mr.Stream(net, 2), torch.randn(3, 2, 3, dtype=F64)
    assert_as_layer(net, stream, xs, net.initial_state(2))
    engine = stream._engine
    with torch.no_grad():
        mu.mul_(0.5)
    assert_as_layer(net, stream, xs, stream.state)
    assert stream._engine is engine


def test_inference_mode():
    """A Stream made or used in it goes on outside of it, and the other way round."""
    net, xs = built(), torch.randn(4, 2, 3, dtype=F64)
    with torch.inference_mode():
        stream = mr.Stream(net, 2)
        got = [stream(xs[0])]
    got.append(stream(xs[1]))
    with torch.inference_mode():
        got.append(stream(xs[2]))
    kept = stream.state
    stream.reset([0])
    stream = mr.Stream(net, state=kept)
    got.append(stream(xs[3]))
    assert_same(torch.stack(got), net(xs)[0].detach())


def test_the_page_runs(capsys):
    page = (Path(__file__).parent.parent / "docs/streaming.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    shared = {"__name__": "streaming"}
    exec(compile(block, "streaming.md", "exec"), shared)
    assert shared["state"].k.tolist() == [[5, 5, 0, 5, 5, 0, 5, 5]]
    assert "definition" in capsys.readouterr().out


def test_it_says_how():
    stream = mr.Stream(built(), 2)
    assert stream.description == "the layer's definition, at each step: it is on cpu, not on a GPU"
    asked = mr.Stream(built(backend="native"), 2)
    assert asked.description.startswith("the layer's forward, at each step")
    assert "batch_size=2" in repr(stream)


# ---- errors


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: mr.Stream(torch.nn.LSTM(3, 5)), TypeError, "such as momentumrnn.LSTM, got torch.nn"),
        (lambda: mr.Stream(mr.LSTMCell(3, 5)), TypeError, "LSTMCell"),
        (lambda: mr.Stream(mr.LSTM(3, 5, bidirectional=True)), ValueError, "bidirectional=False, got True"),
        (lambda: mr.Stream(mr.LSTM(3, 5), 0), ValueError, "batch_size should be at least 1, got 0"),
        (lambda: mr.Stream(mr.LSTM(3, 5), 2.0), TypeError, "batch_size should be an integer, got 2.0"),
        (lambda: mr.Stream(mr.LSTM(3, 5), state=1.0), TypeError, "state should be a State, got float"),
        (
            lambda: mr.Stream(mr.LSTM(3, 5), state=(torch.zeros(1, 2, 5),) * 2),
            ValueError,
            "state should hold the 5 tensors of a State, got 2",
        ),
        (lambda: mr.Stream(mr.LSTM(3, 5), state=(1, 2)), TypeError, "state should be a State, got tuple"),
        (
            lambda: mr.Stream(mr.LSTM(3, 5), 3, mr.LSTM(3, 5).initial_state(2)),
            ValueError,
            "batch_size should be that of state, 2, got 3",
        ),
        (
            lambda: mr.Stream(mr.LSTM(3, 5), state=mr.LSTM(3, 6).initial_state(2)),
            RuntimeError,
            r"state\[0\] should have shape \(1, 2, 5\), got \(1, 2, 6\)",
        ),
        (
            lambda: mr.Stream(mr.LSTM(3, 5), state=mr.GRU(3, 5).initial_state(2)),
            ValueError,
            "state should hold the 5 tensors of a State, got 4",
        ),
    ],
)
def test_what_it_refuses(make, kind, message):
    with pytest.raises(kind, match=message):
        make()


@pytest.mark.parametrize(
    ("x", "kind", "message"),
    [
        ([1.0, 2.0, 3.0], TypeError, "x should be a Tensor, got list"),
        (torch.zeros(2, 4), RuntimeError, r"x should have shape \(2, 3\), got \(2, 4\)"),
        (torch.zeros(3), RuntimeError, r"x should have shape \(2, 3\), got \(3,\).*batch_size=2"),
        (torch.zeros(1, 2, 3), RuntimeError, r"got \(1, 2, 3\)"),
        (torch.zeros(2, 3, dtype=F64), ValueError, "x should have dtype torch.float32, got torch.float64"),
        (torch.zeros(2, 3, device="meta"), RuntimeError, "x should be on cpu, got meta"),
    ],
)
def test_bad_inputs(x, kind, message):
    stream = mr.Stream(mr.LSTM(3, 5), 2)
    with pytest.raises(kind, match=message):
        stream(x)
    assert stream.state.k.tolist() == [[0, 0]]


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        ([2], IndexError),
        ([-3], IndexError),
        ([0.5], TypeError),
        ("01", TypeError),
        (1, TypeError),
        (torch.tensor([0.0]), TypeError),
        (torch.tensor([True]), ValueError),
    ],
    ids=str,
)
def test_bad_rows(rows, kind):
    stream = mr.Stream(mr.LSTM(3, 5), 2)
    with pytest.raises(
        kind,
        match=r"rows should be indices from 0 to 1, a mask of shape \(2,\) and dtype bool, or a slice, got",
    ):
        stream.reset(rows)
    with pytest.raises(ValueError, match="rows should be None"):
        mr.Stream(mr.LSTM(3, 5)).reset([0])


# ---- the kernel, compiled


def test_the_kernel_compiles():
    """Without spills, and so that a block fits on a multiprocessor."""
    for rows in (1, 2, 4, 8):
        for moments in (0, 1, 2):
            try:
                log = compiling.compile(
                    launch.source("lstm_step"), "sm_90", {"ROWS": rows, "MOMENTS": moments}
                )
            except LookupError as error:
                pytest.skip(str(error))
            taken = compiling.resources(log)["lstm_step"]
            assert taken[1:] == (0, 0, 0)
            assert taken.registers * lstm_step.THREADS <= 65536


def test_constants_are_those_of_the_kernel():
    known = emulator.constants("lstm_step", N=1, ROWS=1)
    assert lstm_step.THREADS == known.THREADS


# ---- the kernel, run on a CPU: its own source as C++, each thread a coroutine, blocks one by one

HOST = r"""
#include <cmath>
#include <cstddef>
#include <memory>
#include <utility>
#include <ucontext.h>
#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(...)
using std::size_t;
struct Place { int x, y; };
static Place threadIdx, blockIdx;
static int arrived, threads;
static float given[1024];
static ucontext_t scheduler, contexts[1024];
static inline int min(int a, int b) { return a < b ? a : b; }
static void pause_here() {
  const Place me = threadIdx;
  swapcontext(&contexts[me.x], &scheduler);
}
static float __shfl_xor_sync(unsigned, float x, int mask) {
  const int me = threadIdx.x;
  given[me] = x;
  pause_here();
  const float found = given[me ^ mask];
  pause_here();
  return found;
}
static void __syncthreads() {
  arrived++;
  while (arrived < threads) pause_here();
}
#line 1 "lstm_step.cu"
%s
static void **arguments;
static bool done[1024];
template <class... A, size_t... I>
static void call(void (*kernel)(A...), std::index_sequence<I...>) { kernel(*(A *)arguments[I]...); }
template <class... A>
static void call(void (*kernel)(A...)) { call(kernel, std::index_sequence_for<A...>()); }
static void thread() {
  const int me = threadIdx.x;
  call(lstm_step);
  done[me] = true;
}
extern "C" void launch(int width, int height, int backwards, void **packed) {
  constexpr size_t STACK = 1 << 16;
  static std::unique_ptr<char[]> stacks(new char[THREADS * STACK]);
  arguments = packed, threads = THREADS;
  for (int n = 0; n < width * height; n++) {
    const int block = backwards ? width * height - 1 - n : n;
    blockIdx = {block %% width, block / width};
    arrived = 0;
    for (int i = 0; i < threads; i++) {
      getcontext(&contexts[i]);
      contexts[i].uc_stack.ss_sp = &stacks[i * STACK];
      contexts[i].uc_stack.ss_size = STACK;
      contexts[i].uc_link = &scheduler;
      makecontext(&contexts[i], thread, 0);
      done[i] = false;
    }
    for (bool more = true; more;) {
      more = false;
      for (int i = 0; i < threads; i++) {
        if (done[i]) continue;
        threadIdx = {i, 0};
        swapcontext(&scheduler, &contexts[i]);
        more |= !done[i];
      }
    }
  }
}
"""


@pytest.fixture(scope="session")
def host(tmp_path_factory):
    """Compiles the kernel for this machine's processor."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++ to run the kernel on a CPU, and there is none")
    folder = tmp_path_factory.mktemp("host")
    source = (emulator.FOLDER / "lstm_step.cu").read_text()
    kernel = f"constexpr int STEP_UNITS = {lstm_step.STEP_UNITS};\n{source}"
    (folder / "kernel.cpp").write_text(HOST % kernel)
    signature = nvrtc.signature(kernel, "lstm_step")

    @functools.cache
    def compiled(rows, moments):
        library = folder / f"kernel-{rows}-{moments}.so"
        defines = [f"-DROWS={rows}", f"-DMOMENTS={moments}"]
        command = ["g++", "-std=c++17", "-O1", "-w", "-ffp-contract=off", "-shared", "-fPIC", *defines]
        done = subprocess.run(
            [*command, "kernel.cpp", "-o", library.name], cwd=folder, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return signature, ctypes.CDLL(str(library)).launch

    return compiled


@pytest.fixture
def emulated(host, monkeypatch):
    """Streams on a CPU take the way of kernels; `order` is that of the blocks."""
    order = {"backwards": 0}

    def launcher(device, grid, rows, moments):
        signature, launch = host(rows, moments)
        return signature, lambda packed: launch(grid[0], grid[1], order["backwards"], packed)

    def choose(layer, state, rows):
        reason, numbers = stream_engines.kernel_refusal(layer, state)
        assert reason == ""
        return stream_engines.KernelEngine(layer, state, rows, numbers), "emulated"

    monkeypatch.setattr(lstm_step, "_launcher", launcher)
    monkeypatch.setattr(lstm_step, "why_unavailable", lambda device: "")
    monkeypatch.setattr(stream_engines, "_stream_handle", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(streaming, "choose_engine", choose)
    return order


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
def test_the_kernel_writes_what_it_computes_in(emulated, default):
    """Whatever torch's default dtype is: y is float32, as what the kernel writes."""
    net, slow = both("HeavyBall", 3, 5)
    x, before = torch.randn(2, 3, dtype=torch.float32), torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        y = mr.Stream(net, batch_size=2)(x)
    finally:
        torch.set_default_dtype(before)
    assert y.dtype == torch.float32
    want, _ = slow(x.double().unsqueeze(0))
    assert_same(y.double(), want[0], torch.float32)


def both(momentum, D, H, **options):
    """A layer in float32, and the same in float64."""
    net = built(momentum, D=D, H=H, dtype=torch.float32, **options)
    return net, copy.deepcopy(net).double()


@pytest.mark.parametrize("momentum", MOMENTA)
@pytest.mark.parametrize("bias", [True, False, "hh"])
def test_emulated_momenta(emulated, momentum, bias):
    net, exact = both(momentum, 3, 7, bias=bias)
    stream, xs = mr.Stream(net, 2), torch.randn(5, 2, 3)
    want, after = exact(xs.double(), exact.initial_state(2))
    assert_same(stepped(stream, xs), want.detach(), torch.float32)
    assert_same(stream.state, after.detach(), torch.float32)
    assert stream.state.k.tolist() == [[5, 5]]


# Features, units, rows: each width of loads on each side, full blocks and others, several blocks of rows.
SIZES = [
    (1, 1, 1),
    (3, 1, 2),
    (4, 7, 3),
    (129, 4, 1),
    (6, 34, 1),
    (8, 12, 5),
    (2, 5, 8),
    (5, 6, 17),
    (600, 3, 1),
]


@pytest.mark.parametrize("backwards", [0, 1])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_emulated_sizes(emulated, size, backwards):
    """In whatever order blocks run: none reads what another writes."""
    emulated["backwards"] = backwards
    D, H, B = size
    net, exact = both("Adam" if B % 2 else "ScheduledRestart", D, H, num_layers=2)
    stream, xs = mr.Stream(net, B), torch.randn(2, B, D)
    want, after = exact(xs.double(), exact.initial_state(B))
    assert_same(stepped(stream, xs), want.detach(), torch.float32)
    assert_same(stream.state, after.detach(), torch.float32)


@pytest.mark.parametrize("offset", [1, 2])
def test_emulated_views(emulated, offset):
    """Inputs that are not aligned, or not contiguous."""
    net, exact = both("HeavyBall", 8, 4)
    memory = torch.randn(2 * 8 + offset)
    x = memory[offset:].view(2, 8)
    want = exact(x.double()[None], exact.initial_state(2))[0][0].detach()
    assert_same(mr.Stream(net, 2)(x), want, torch.float32)
    assert_same(mr.Stream(net, 2)(x.T.contiguous().T), want, torch.float32)
    assert mr.Stream(net)(x[0]).shape == (4,)


@pytest.mark.parametrize("momentum", ["Nesterov", "Adam"])
def test_emulated_rows_begin_anew(emulated, momentum):
    net = built(momentum, dtype=torch.float32, num_layers=2)
    assert_resets(net, mr.Stream(net, 4), [0, 3], torch.float32)


def test_emulated_state_in_another_order(emulated):
    """A State's tensors may lie in memory as they like."""
    net = built("Adam", dtype=torch.float32, num_layers=2)
    xs = torch.randn(4, 3, 3)
    _, state = net(xs, net.initial_state(3))
    turned = mr.State(t.detach().transpose(0, 1).contiguous().transpose(0, 1) for t in state)
    assert not turned.v.is_contiguous()
    assert_as_layer(net, mr.Stream(net, state=turned), xs, state, torch.float32)


def test_emulated_changes(emulated):
    """Of weights in place, by others, and of the momentum; an output stays what it was."""
    net, xs = built(dtype=torch.float32), torch.randn(3, 2, 3)
    stream = mr.Stream(net, 2)
    first = stream(xs[0])
    kept = first.clone()
    stream(xs[1])
    assert torch.equal(first, kept)
    first.fill_(9)
    with torch.no_grad():
        net.weight_hh_l0.mul_(2)
    assert_as_layer(net, stream, xs, stream.state, torch.float32)
    net.load_state_dict(built(dtype=torch.float32).state_dict(), assign=True)
    assert_as_layer(net, stream, xs, stream.state, torch.float32)
    net.momentum = mr.Nesterov()
    assert_as_layer(net, stream, xs, stream.state, torch.float32)
    other = mr.Stream(net, state=stream.state)
    assert torch.equal(other(xs[0]), stream(xs[0]))
    with torch.inference_mode():
        other = mr.Stream(net, state=stream.state)
    other.reset()
    assert_as_layer(net, other, xs, net.initial_state(2), torch.float32)


def test_emulated_extremes(emulated):
    """Gates that saturate, and a schedule far on; of a nan no other row hears."""
    net, exact = both("Nesterov", 3, 6)
    state = net.initial_state(3)._replace(k=torch.tensor([[0, 10**6, 2**40]]))
    x = 1e4 * torch.randn(3, 3)
    x[0] = float("nan")
    stream = mr.Stream(net, state=state)
    got = stream(x), stream(x)
    double = exact.initial_state(3)._replace(k=state.k)
    want, after = exact(torch.stack([x, x]).double(), double)
    assert got[1][0].isnan().all()
    assert difference(torch.stack(got)[:, 1:], want[:, 1:]) <= TOLERANCE[torch.float32]
    assert stream.state.k.tolist() == after.k.tolist()


# ---- which layers the kernel takes


def test_what_the_kernel_refuses(monkeypatch):
    monkeypatch.setattr(lstm_step, "why_unavailable", lambda device: "")

    def reason(layer):
        state = layer.initial_state(2)
        return stream_engines.kernel_refusal(layer, state)[0]

    assert reason(mr.LSTM(3, 5, num_layers=2, momentum=mr.Adam())) == ""
    assert "GRU() has no kernel" in reason(mr.GRU(3, 5))
    assert "ExtrapolatedLSTM" in reason(mr.Recurrent(cells.ExtrapolatedLSTM(), 3, 5))
    assert "proj_size=2" in reason(mr.LSTM(3, 5, proj_size=2))
    assert "backend='native' was asked for" in reason(mr.LSTM(3, 5, backend="native"))
    assert "torch.float64" in reason(mr.LSTM(3, 5, dtype=F64))
    assert "parametrised" in reason(mr.weight_drop(mr.LSTM(3, 5), 0.5))
    turned = mr.LSTM(3, 5)
    turned.weight_ih_l0.data = turned.weight_ih_l0.data.T.contiguous().T
    assert "contiguous" in reason(turned)
