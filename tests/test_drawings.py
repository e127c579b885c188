"""The drawings of figures 1 and 8: what is drawn is what the library computes, and it can be read."""

import itertools
import re
import subprocess
import sys

import pytest
import torch

import momentumrnn as mr
from momentumrnn.experiments import Copying
from momentumrnn.report import drawings

matplotlib = pytest.importorskip("matplotlib", reason="drawings need the extra momentumrnn[all]")

DIAGRAMS = {
    "Plain": (drawings.PLAIN, None),
    "Momentum": (drawings.MOMENTUM, mr.HeavyBall(mu=0.6, step=0.3)),
    "Adam": (drawings.ADAM, mr.Adam(mu=0.6, step=0.3, beta=0.7, eps=1e-2)),
}


@pytest.fixture(params=["cells", "copying"])
def make(request):
    return getattr(drawings, request.param)


def laid_out(figure):
    """All texts and all patches that have a name, each with its box in pixels."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    (axes,) = figure.axes
    texts = [(text, text.get_window_extent(canvas.get_renderer())) for text in axes.texts]
    patches = {p.get_gid(): p.get_window_extent(canvas.get_renderer()) for p in axes.patches if p.get_gid()}
    return texts, patches


def meet(one, other, by=0.0):
    """Whether two boxes have more in common than so many pixels in both directions."""
    across = min(one.x1, other.x1) - max(one.x0, other.x0)
    up = min(one.y1, other.y1) - max(one.y0, other.y0)
    return across > by and up > by


def inside(one, other):
    return other.x0 <= one.x0 and one.x1 <= other.x1 and other.y0 <= one.y0 and one.y1 <= other.y1


@pytest.mark.parametrize("name", DIAGRAMS)
def test_the_drawn_cell_is_the_layer(name):
    """Its nodes, evaluated along its wires, give the states of one step of the layer."""
    diagram, momentum = DIAGRAMS[name]
    torch.manual_seed(0)
    rnn = mr.RNN(3, 4, momentum=momentum, dtype=torch.float64)
    x, state = torch.randn(1, 2, 3, dtype=torch.float64), rnn.initial_state(batch_size=2)
    state = state._replace(
        hidden=(torch.randn_like(state.hidden[0]),),
        v=torch.randn_like(state.v),
        n=torch.rand_like(state.n),
    )
    given = {"x": x[0], "h_before": state.hidden[0][0], "v_before": state.v[0], "n_before": state.n[0]}
    apply = {
        "U": lambda h: h @ rnn.weight_hh_l0.mT + rnn.bias_hh_l0,
        "W": lambda x: x @ rnn.weight_ih_l0.mT + rnn.bias_ih_l0,
        "f": torch.tanh,
        "mu": lambda v: momentum.mu * v,
        "step": lambda a: momentum.step * a,
        "square": torch.square,
        "beta": lambda n: momentum.beta * n,
        "rest": lambda a: (1 - momentum.beta) * a,
        "root": lambda n: (n + momentum.eps**2).sqrt(),
    }

    def value(node):
        into = {start: value(start) for start, end in diagram.wires if end == node}
        if node in given:
            assert not into
            return given[node]
        if diagram.nodes[node].text == "+":
            return sum(into.values())
        if diagram.nodes[node].text == "÷":
            return into.pop("sum_v") / into.pop("root")
        (only,) = into.values()
        return apply[node](only) if node in apply else only

    with torch.no_grad():
        _, after = rnn(x, state)
        torch.testing.assert_close(value("h"), after.hidden[0][0], rtol=1e-12, atol=1e-12)
        for moment in {"v", "n"} & set(diagram.nodes):
            torch.testing.assert_close(value(moment), getattr(after, moment)[0], rtol=1e-12, atol=1e-12)
    assert {"v", "n"} & set(diagram.nodes) == {m for m in ("v", "n") if getattr(after, m).numel()}


def reached(wires, start):
    reached = {start}
    while more := {end for begin, end in wires if begin in reached} - reached:
        reached |= more
    return reached


@pytest.mark.parametrize("name", DIAGRAMS)
def test_h_leads_nowhere_into_the_drive(name):
    """From h one comes to what is in its own row alone, the same in all cells; from x to every new state."""
    diagram, _ = DIAGRAMS[name]
    assert reached(diagram.wires, "h_before") == {"h_before", "U", "sum", "f", "h"}
    assert reached(diagram.wires, "x") >= {"h", "v", "n"} & set(diagram.nodes)
    nodes = set(itertools.chain(*diagram.wires))
    assert nodes == set(diagram.nodes)


def test_wires_meet_their_nodes_and_no_other():
    _, patches = laid_out(drawings.cells())
    for name, (diagram, _) in DIAGRAMS.items():
        assert {gid for gid in patches if gid.startswith(f"{name}-")} == {
            *(f"{name}-{node}" for node in diagram.nodes),
            *(f"{name}-{start}-{end}" for start, end in diagram.wires),
        }
        for start, end in diagram.wires:
            wire = patches[f"{name}-{start}-{end}"]
            # The width of the pen, 3.4 pixels at a tip, is not part of a box.
            near = {node for node in diagram.nodes if meet(wire.padded(3.5), patches[f"{name}-{node}"])}
            assert near == {start, end}
            assert not any(meet(wire, patches[f"{name}-{node}"], by=0.1) for node in near)


def test_texts_lie_apart_and_in_the_figure(make):
    figure = make()
    texts, patches = laid_out(figure)
    assert len(texts) > 30
    for text, box in texts:
        assert inside(box, figure.bbox.padded(-3)), text
    for (one, box), (other, beside) in itertools.combinations(texts, 2):
        # Words that all but touch are read as one.
        assert not meet(box.padded(3), beside), (one, other)
    # A text is in a node, or beside all nodes and wires.
    for text, box in texts:
        for name, patch in patches.items():
            assert not meet(box, patch) or inside(box, patch), (text, name)


def test_letters_are_large_enough(make):
    """9 points at least, indices and exponents too, which are 0.7 as large; black on white."""
    figure = make()
    assert figure.get_facecolor() == (1, 1, 1, 1)
    for text in figure.axes[0].texts:
        math = "".join(re.findall(r"\$.*?\$", text.get_text()))
        assert text.get_fontsize() * (0.7 if re.search("[_^]", math) else 1) >= 9, text
        assert text.get_color() == "black"


def test_the_example_is_the_task_s():
    task, symbols = Copying(length=20, symbols=5, alphabet=4), torch.tensor([drawings.SYMBOLS])
    x, target = task.batch((), (), (symbols.to(torch.uint8),))
    written = {text.get_gid(): text.get_text() for text in drawings.copying().axes[0].texts if text.get_gid()}
    assert len(written) == 2 * len(x) == 60
    names = "–1234:"
    shown, wanted = ([names.index(written[f"{row}-{t}"]) for t in range(30)] for row in ("input", "target"))
    assert shown == x.argmax(-1).flatten().tolist()
    assert shown[:5] == wanted[-5:] == list(drawings.SYMBOLS)
    assert (shown.count(5), shown[25]) == (1, 5)
    # Whoever says what is drawn has no loss, and whoever says it one step early has.
    said = 100 * torch.nn.functional.one_hot(torch.tensor(wanted), task.outputs).to(torch.float32).unsqueeze(
        1
    )
    assert task.loss(said, target) < 1e-6
    assert task.loss(said.roll(-1, 0), target) > 1


def test_colours_tell_symbols_apart():
    figure = drawings.copying()
    colours = {}
    for patch, text in zip(
        (p for p in figure.axes[0].patches if isinstance(p, matplotlib.patches.Rectangle)),
        (t for t in figure.axes[0].texts if t.get_gid()),
        strict=True,
    ):
        colours.setdefault(text.get_text(), set()).add(patch.get_facecolor())
    assert all(len(fills) == 1 for fills in colours.values())
    assert len(set.union(*colours.values())) == len(colours) == 6


def test_the_same_bytes_twice(make, tmp_path):
    with matplotlib.rc_context({"svg.hashsalt": "momentumrnn"}):
        for name in ("one.svg", "other.svg"):
            make().savefig(tmp_path / name, metadata={"Date": None})
    one = (tmp_path / "one.svg").read_bytes()
    assert one == (tmp_path / "other.svg").read_bytes()
    ids = re.findall(rb' id="(.*?)"', one)
    assert len(ids) == len(set(ids))


def test_each_has_a_text_alternative():
    assert set(drawings.ALT) == {"figure1", "figure8"}
    for text in drawings.ALT.values():
        assert 2 <= text.count(". ") + 1 <= 3
        assert text.endswith(".")
    task = drawings.TASK
    steps, wait = task.length + 2 * task.symbols, task.length + task.symbols
    for words in (f"{steps} steps", f"{task.length} blanks", f"{wait} blanks", f"{wait} steps after"):
        assert words in drawings.ALT["figure8"]


def test_matplotlib_comes_with_the_drawing_and_pyplot_never():
    code = (
        "import sys; from momentumrnn.report import drawings;"
        "print('matplotlib' in sys.modules); drawings.cells(); drawings.copying();"
        "print('matplotlib' in sys.modules, 'matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout.split(), done.stderr) == (["False", "True", "False"], "")
