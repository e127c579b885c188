"""The kernel of momentum_backward.cu on a GPU, against a loop in float64. Timings are printed: pytest -s."""

from dataclasses import replace

import pytest
import torch
from test_momentum_backward import CASES, ROWS, Case, draw, name, reference, run

from momentumrnn.kernels import launch
from momentumrnn.kernels.constants import SPACING

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, and there is none"),
]

NEAR = 1e-5  # the relative norm of a difference; where a loop in float32 is worse, four times its own


def kernel(**kind):
    return launch.kernel("momentum_backward", torch.cuda.current_device(), **kind)


def on_gpu(case, given, gradient, last, kept):
    dtypes = {"real": torch.float32, "half": torch.float16, "bfloat": torch.bfloat16}
    return run(case, given, gradient, last, kept, kernel, "cuda", **dtypes)


def error(got, want):
    return ((got.double() - want).norm() / want.norm().clamp_min(1e-30)).item()


def check(case, seed=0):
    given, gradient, last = draw(case, seed)
    kept, want = reference(case, given, gradient[3], last)
    got = on_gpu(case, given, gradient, last, kept)
    _, plain = reference(case, given, gradient[3], last, torch.float32)
    assert got.keys() == want.keys()
    for key in want:
        limit = max(NEAR, 4 * error(plain[key], want[key]))
        assert error(got[key], want[key]) < limit, key


# Some widths with all flags; the others see `test_every_width`.
@pytest.mark.parametrize("case", [case for case in CASES if case.features not in (1, 3, 15)], ids=name)
def test_the_loop(case):
    check(case)


@pytest.mark.parametrize("features", range(16))
@pytest.mark.parametrize("second", [False, True], ids=["", "second"])
def test_every_width(features, second):
    """Each is a kernel of its own, with other flags; many blocks, lengths of all kinds, three chunks."""
    packed, learned = (bool(features & flag) != second for flag in (1, 2))
    lengths = tuple(sorted((1 + 7 * b % 90 for b in range(29)), reverse=True))
    case = Case(features, 1 + second, "mu" if learned else "rows", learned, state=True, replicas=2)
    case = replace(
        case, T=lengths[0], B=29, H=37, chunks=(0, 32, 64), fine=second, channels=1 + features // 4 % 2
    )
    check(replace(case, lengths=lengths if packed else None), features)


def test_a_beta_near_one():
    """1 - beta of a float32 would be wrong in the fourth digit."""
    check(Case(1, beta=0.9999, decays="rows", state=True))


@pytest.mark.parametrize("form", [2, 3])
def test_small_and_large(form):
    """Moments of all sizes, one in each channel: root and quotient have the whole range."""
    case = Case(0, form, "rows", bias=False, eps=1e-16, last=False)
    given, gradient, last = draw(case)
    given["x"] *= 10.0 ** torch.randint(-14, 15, (1, 1, case.B, 4 * case.H))
    given["x"] = given["x"].float().double()
    kept, want = reference(case, given, gradient[3], last)
    _, plain = reference(case, given, gradient[3], last, torch.float32)
    got, want, plain = on_gpu(case, given, gradient, last, kept)["a"], want["a"], plain["a"].double()
    limit = (NEAR * want.norm(dim=1)).maximum(4 * (plain - want).norm(dim=1))
    assert ((got - want).norm(dim=1) <= limit).all()


@pytest.mark.parametrize("form", [2, 3])
@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan, 1e25, 0.0])
def test_what_is_not_finite_stays(bad, form):
    """In its row and channel, and there it is where a loop in float32 has it."""
    case = Case(0, form, bias=False, eps=1e-8, last=False)
    given, gradient, last = draw(case)
    given["x"][0, :20, 2, 5] = bad
    kept, want = reference(case, given, gradient[3], last, torch.float32)
    got, want = on_gpu(case, given, gradient, last, kept)["a"], want["a"]
    good = torch.ones(case.B, 4 * case.H, dtype=torch.bool)
    good[2, 5] = False
    assert got[..., good].isfinite().all()
    assert torch.equal(got[..., 2, 5].isfinite(), want[..., 2, 5].isfinite())


def test_the_same_bits():
    case = Case(2, state=True, lengths=ROWS, replicas=2)
    given, gradient, last = draw(case)
    kept, _ = reference(case, given, gradient[3], last)
    first, second = (on_gpu(case, given, gradient, last, kept) for _ in range(2))
    for key in first:
        assert torch.equal(first[key], second[key]), key


@pytest.mark.parametrize("learned", [False, True], ids=["", "learned"])
@pytest.mark.parametrize("form", [1, 2])
@pytest.mark.parametrize(
    ("T", "B", "H", "features"), [(784, 128, 256, 1), (750, 50, 128, 2), (300, 32, 158, 0)]
)
def test_timing(T, B, H, features, form, learned, capsys):
    """Prints the times, fine and not, with da and without."""
    case = Case(features, form, "mu" if learned else "one", learned, T=T, B=B, H=H)

    def new(*shape, dtype=torch.float32):
        return torch.randn(*shape, device="cuda").to(dtype)

    decays = torch.full((1, 4 * H) if learned else (T, 1), 0.6, device="cuda")
    inputs = [
        new(1, T * B, features or 4 * H), new(1, 4 * H, features) if features else None, new(1, 4 * H),
        None if learned else decays, decays if learned else None, new(1, 4 * H) if learned else None,
    ]  # fmt: skip
    kept = new(1, -(-T // SPACING), B, H, form, 4).abs()
    halves = [new(1, T * B, H, 4, dtype=torch.float16) for _ in range(2)]
    da = new(1, T * B, 3, H, 4, dtype=torch.bfloat16)
    sums = torch.zeros(1, B, H, 4, features + 3, device="cuda")
    scales, dv = new(1, T * B).abs(), new(1, B, 4 * H)
    dn = new(1, B, 4 * H) if case.second else None

    def microseconds(fine, writes_da, channels):
        this = replace(case, fine=fine, writes_da=writes_da, channels=channels)
        run = kernel(**this.kind)
        args = [
            *inputs, kept, None, None, halves[0], halves[1] if fine else None, scales, dv, dn, sums,
            da if writes_da else None, 0, T, T * B, T, B, H, T * B, 1, 0, 0, 0, 0, 0, *case.numbers.values(),
        ]  # fmt: skip
        arguments = dict(zip(run.signature.kinds, args, strict=True))
        times = []
        for _ in range(12):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(5):
                run(*this.launch, arguments)
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 200)
        return min(times)

    for channels in 1, 2:
        found = {
            "fast": microseconds(False, False, channels),
            "fast, da": microseconds(False, True, channels),
            "fine": microseconds(True, False, channels),
            "fine, da": microseconds(True, True, channels),
        }
        kind = f"FEATURES={features} MOMENTUM_FORM={form} LEARNED={int(learned)} CHANNELS={channels}"
        times = ", ".join(f"{key} {value:.1f} us" for key, value in found.items())
        with capsys.disabled():
            print(f"\nT={T} B={B} H={H} {kind}: {times}")
