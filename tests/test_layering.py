"""Imports point down, in the order of design; and one file alone knows private names of torch. Both are read
from the sources.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "momentumrnn"
ROOT = Path(__file__).parent.parent / PACKAGE

# The library from the bottom up: a module imports from the lines above its own, never from its own line.
KERNELS = [
    "kernels.constants kernels.inputs kernels.nvrtc kernels.overlap",
    "kernels.sizes kernels.lstm_by_reference",
    "kernels.launch",
    "kernels.operands kernels.lstm_step",
    "kernels.lstm_forward kernels.momentum_backward",
    "kernels.lstm_backward",
    "kernels.op",
]
LIBRARY = [
    "backends kernels value_checks caller_warning cuda_graph installation provenance repr_parser",
    "precision tensor_likes torch_internals",
    "momentum cells packing unit_range",
    "init state",
    "layer_checks",
    "backends.stack",
    "backends.reference",
    "backends.double_backward backends.time_chunks",
    "backends.chunked_moments backends.chunked_steps",
    "backends.chunked",
    "backends.native",
    *KERNELS,
    "backends.cuda",
    "backends.registry",
    "recurrent_base",
    "recurrent_layer step_cells",
    "layers",
    "stream_engines constraints paper_names",
    "streaming",
    "api",
    "moved_names",
    "modules names spelling",
]
# Modules, and packages with all that is in them, which not everyone further down in the list may import.
ONLY_FOR = {
    "kernels": "kernels backends.cuda",
    "kernels.lstm_step": "stream_engines",
    "backends.cuda": "backends.registry",
    "backends.native": "backends.registry",
    "backends.chunked": "backends.native",
    "backends.chunked_moments": "backends.chunked backends.native",
    "backends.chunked_steps": "backends.chunked backends.native",
    "backends.double_backward": "backends.chunked backends.native",
    "backends.time_chunks": "backends.chunked backends.chunked_moments backends.chunked_steps",
    "init": "layer_checks recurrent_base recurrent_layer layers step_cells constraints api",
    "state": "recurrent_base recurrent_layer layers step_cells stream_engines streaming api modules",
    "layer_checks": "recurrent_base recurrent_layer layers step_cells streaming constraints",
    "cuda_graph": "stream_engines",
    "stream_engines": "streaming",
    "installation": "",
    "provenance": "",
    "repr_parser": "spelling",
    "streaming": "api",
    "constraints": "api",
    "paper_names": "api names",
    "api": "",
    "moved_names": "modules experiments",
    # The report and the readers of runs know nothing of how a run is trained.
    "experiments.engine": "experiments cli",
    "experiments.engine.replicas": "experiments.engine experiments.cost experiments.estimate",
    "experiments.cost": "cli",
    "experiments.estimate": "experiments.schedule",
    "experiments.schedule": "cli",
    "cli": "cli __main__",
}
# The benchmark: each module, and the modules of ours that it may import.
BENCH = {
    "bench": """bench.cases bench.failures bench.memory bench.options bench.parity bench.rivals bench.table
        bench.timing provenance""",
    "bench.cases": "cells constraints layers momentum",
    "bench.failures": "",
    "bench.memory": "bench.cases bench.rivals",
    "bench.options": "backends.registry momentum repr_parser bench.cases",
    "bench.parity": "layers momentum bench.cases bench.rivals",
    "bench.rivals": "cells layers momentum bench.cases",
    "bench.table": "bench.timing",
    "bench.timing": "cuda_graph bench.cases bench.failures bench.parity",
}
# What is built on the library, from the bottom up, in the same way. Beside the lines above its own, each part
# may import these modules of the library.
FROM_LIBRARY = {
    "experiments": """backends.registry bench cells constraints cuda_graph init installation layers momentum
        moved_names provenance repr_parser""",
    "report": "cells installation",
    "cli": "bench installation provenance",
    "__main__": "installation",
}
BUILT_ON_IT = [
    """experiments.data experiments.engine experiments.engine.signals experiments.paper.printed
        experiments.paper.rows experiments.runs experiments.runs.checksums experiments.sources
        experiments.sources.bytecode experiments.tasks.base""",
    """experiments.paper.published experiments.sources.text experiments.tasks.mnist
        experiments.tasks.synthetic""",
    "experiments.sources.hashes experiments.tasks",
    "experiments.config",
    """experiments.demo experiments.paper.controls experiments.runs.store experiments.settings
        experiments.threads experiments.user_classes""",
    "experiments.engine.devices experiments.paper.recipes experiments.runs.neighbours",
    "experiments.paper experiments.runs.read",
    "experiments.models experiments.runs.gather",
    "experiments.engine.replicas experiments.engine.run experiments.engine.task_check",
    """experiments.engine.tensorboard experiments.engine.watcher experiments.paper.hyperparameters
        experiments.paper.tables""",
    "experiments.engine.results",
    "experiments.engine.loop",
    "experiments.engine.train",
    "experiments",
    "experiments.cost experiments.estimate",
    "experiments.schedule",
    "report.drawings report.errors report.plots report.statistics report.table",
    "report.cost_files report.settings_tables report.wording",
    "report.comparisons report.controls report.cost_tables report.demo_tables report.tables",
    "report.bars report.findings report.result_tables",
    "report.curves report.figures report.speed",
    "report.content",
    "report.page report.text",
    "report.output",
    "report",
    "experiments.folders experiments.report experiments.trainer",
    "cli cli.options",
    "cli.display cli.report_files cli.torch_options",
    "cli.bench cli.data cli.recipes cli.report cli.reproduce cli.run cli.runs",
    "__main__",
]
MAY_IMPORT = {name: set(names.split()) for name, names in ({"": "api"} | BENCH).items()}
# Their imports are in a table, so they can't be read here; `test_imports` runs them.
DYNAMIC = {"", "__main__", "experiments.user_classes", "moved_names"}
# What each part may import beside torch, numpy and the standard library, most of it where it is used.
EXTRAS = {
    "__main__": {"tyro"},
    "cli": {"rich"},
    "experiments": {"pooch", "safetensors"},
    "report": {"jinja2", "matplotlib", "plotly", "scipy"},
}


def modules(root: Path) -> dict[str, Path]:
    """The modules of the package by their names without its own, which is "" then."""
    paths = {path: path.relative_to(root).with_suffix("").as_posix() for path in sorted(root.rglob("*.py"))}
    return {name.removesuffix("__init__").strip("/").replace("/", "."): path for path, name in paths.items()}


def packages(name: str) -> Iterator[str]:
    """All packages that a module is in, but for the outermost."""
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def absolute(target: str, name: str, known: dict[str, Path]) -> str:
    """`..x` in the module of that name, from the package's name on."""
    words = target.lstrip(".")
    level = len(target) - len(words)
    if not level:
        return words
    inside = [PACKAGE, *filter(None, name.split("."))]
    above = level - (known[name].name == "__init__.py")
    return ".".join([*inside[: len(inside) - above], *filter(None, [words])])


class Imports(ast.NodeVisitor):
    """What one module imports, wherever in it: `ours` are modules of the package, `others` first words."""

    def __init__(self, name: str, known: dict[str, Path]) -> None:
        self.name, self.known = name, known
        self.ours, self.others, self.dynamic = set(), set(), False
        tree = ast.parse(self.known[name].read_text())
        # Names by which the module calls import_module, and those by which it has the package itself.
        self.importers, self.package_names = {"import_module", "__import__"}, set()
        for alias in (a for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for a in node.names):
            if alias.name == "import_module":
                self.importers.add(alias.asname or alias.name)
        self.visit(tree)

    def visit_If(self, node: ast.If) -> None:
        # A package whose names are loaded late must tell a type checker what they are.
        for_types = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for child in node.orelse if for_types and self.name == "" else [node.test, *node.body, *node.orelse]:
            self.visit(child)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.add(alias.name)
            if alias.name.split(".")[0] == PACKAGE and (alias.asname is None or alias.name == PACKAGE):
                self.package_names.add(alias.asname or PACKAGE)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        # `import package` and then `package.pkg.sub`: the package imports what it is asked for.
        path = dotted(node)
        if path and path[0] in self.package_names:
            known = [".".join(path[1 : 1 + i]) for i in range(len(path), 0, -1)]
            self.add(f"{PACKAGE}.{next((name for name in known if name in self.known), 'api')}")
        else:
            self.generic_visit(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = absolute("." * node.level + (node.module or ""), self.name, self.known)
        for alias in node.names:
            self.add(base, alias.name)

    def visit_Call(self, node: ast.Call) -> None:
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in self.importers:
            target = next(iter([*node.args, *(k.value for k in node.keywords if k.arg == "name")]), None)
            if isinstance(target, ast.Constant):
                self.add(absolute(target.value, self.name, self.known))
            else:
                self.dynamic = True
        self.generic_visit(node)

    def add(self, target: str, attribute: str = "") -> None:
        first, _, name = target.partition(".")
        if first != PACKAGE:
            self.others.add(first)
            return
        if attribute:
            inner = f"{name}.{attribute}".lstrip(".")
            if inner in self.known:
                name = inner
            elif name in self.known and attribute in (shared := self.imported_modules(name)):
                name = shared[attribute]  # a module that another module has imported
            elif not name:
                # All other names of the package itself are loaded by way of `api`.
                name = "" if attribute == "__version__" else "api"
        # An import also runs the packages on the way, unless they run already.
        running = {"", self.name, *packages(self.name)}
        on_the_way = {package for package in packages(name) if self.imports_something(package)}
        self.ours |= {name, *on_the_way} - running

    def imported_modules(self, name: str) -> dict[str, str]:
        """The modules of ours that `from .pkg import sub` binds in a module, by the names it gives them."""
        shared = {}
        for node in ast.walk(ast.parse(self.known[name].read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = absolute("." * node.level + (node.module or ""), name, self.known)
                for alias in node.names:
                    inner = f"{base}.{alias.name}".removeprefix(f"{PACKAGE}.")
                    if inner in self.known:
                        shared[alias.asname or alias.name] = inner
        return shared

    def imports_something(self, package: str) -> bool:
        nodes = ast.walk(ast.parse(self.known[package].read_text()))
        return any(isinstance(node, ast.Import | ast.ImportFrom) for node in nodes)


def within(name: str, parts: str) -> bool:
    """Whether a module is one of these, or in one of these packages."""
    return any(name == part or name.startswith(f"{part}.") for part in parts.split())


def allowed(name: str) -> set[str]:
    """The modules of ours that a module may import."""
    if name in MAY_IMPORT:
        return MAY_IMPORT[name]
    part = name.split(".")[0]
    order = BUILT_ON_IT if part in FROM_LIBRARY else LIBRARY
    height = next(i for i, line in enumerate(order) if name in line.split())
    lower = {other for line in order[:height] for other in line.split() if visible(other, name)}
    # `__main__` loads a command when it runs.
    lower &= {"cli.options"} if name == "__main__" else lower
    return lower | set(FROM_LIBRARY.get(part, "").split())


def visible(other: str, name: str) -> bool:
    """Whether `ONLY_FOR` lets a module import another; its longest entry decides."""
    entries = [part for part in ONLY_FOR if within(other, part)]
    return not entries or within(name, ONLY_FOR[max(entries, key=len)])


def violations(root: Path) -> dict[str, set[str]]:
    """For each module the imports of ours that it may not have."""
    known = modules(root)
    return {name: wrong for name in known if (wrong := Imports(name, known).ours - allowed(name))}


FILES = modules(ROOT)
every_module = pytest.mark.parametrize("name", FILES, ids=lambda name: name or PACKAGE)


@every_module
def test_imports_point_down(name):
    imports = Imports(name, FILES)
    assert imports.ours <= allowed(name)
    assert imports.others <= {"torch", "numpy", *EXTRAS.get(name.split(".")[0], ())} | sys.stdlib_module_names
    assert not imports.dynamic or name in DYNAMIC


def test_the_table_is_complete():
    listed = [name for line in (*LIBRARY, *BUILT_ON_IT) for name in line.split()] + list(MAY_IMPORT)
    assert sorted(listed) == sorted(FILES)
    texts = [*ONLY_FOR, *ONLY_FOR.values(), *FROM_LIBRARY, *FROM_LIBRARY.values()]
    mentioned = set(" ".join(texts).split())
    assert mentioned | set().union(*MAY_IMPORT.values()) <= set(FILES)


def test_what_the_order_means():
    """What must stay apart, said once more in the words of the design."""
    assert "cells" not in allowed("momentum")  # v never sees h, and h never sees x
    assert "momentum" not in allowed("cells")
    assert not {n for n in allowed("layers") if within(n, "kernels backends.cuda backends.native api")}
    kernels = {n for n in allowed("stream_engines") if within(n, "kernels backends.cuda")}
    assert kernels == {"kernels.lstm_step"}
    for name in (n for line in LIBRARY for n in line.split()):
        assert not {n for n in allowed(name) if within(n, "bench experiments report cli __main__")}
    # The operator's form in plain torch uses the one definition.
    assert {"backends.reference", "momentum", "cells"} <= allowed("kernels.lstm_by_reference")


@pytest.fixture
def tree(tmp_path):
    """The package with empty modules."""
    for path in FILES.values():
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.touch()
    return tmp_path


@pytest.mark.parametrize(
    ("name", "line", "wrong"),
    [
        ("layers", "from .backends import cuda", "backends.cuda"),
        ("layers", "from .backends.cuda import run", "backends.cuda"),
        ("layers", "from .kernels import op", "kernels.op"),
        ("layers", "def late():\n    from .kernels import op", "kernels.op"),
        ("layers", "from . import LSTM", "api"),
        ("layers", "from momentumrnn import HeavyBall", "api"),
        ("layers", "import momentumrnn.streaming", "streaming"),
        ("layers", "import momentumrnn.experiments.config as c", "experiments.config"),
        ("layers", "import importlib\nimportlib.import_module('.api', __package__)", "api"),
        ("layers", "from importlib import import_module as load\nload('.api', __package__)", "api"),
        ("layers", "import importlib\nimportlib.import_module(name='.api', package=__package__)", "api"),
        ("layers", "if TYPE_CHECKING:\n    from .api import LSTM", "api"),
        ("layers", "import momentumrnn\nmomentumrnn.kernels.op.lstm", "kernels.op"),
        ("layers", "import momentumrnn as m\ndef late():\n    m.streaming.Stream", "streaming"),
        ("layers", "import momentumrnn\nmomentumrnn.LSTM", "api"),
        ("momentum", "from . import cells", "cells"),
        ("cells", "from .momentum import HeavyBall", "momentum"),
        ("backends", "from . import registry", "backends.registry"),
        ("backends.reference", "from . import chunked", "backends.chunked"),
        ("backends.reference", "from .. import layers", "layers"),
        ("backends.native", "from ..kernels import op", "kernels.op"),
        ("kernels.nvrtc", "from ..backends import cuda", "backends.cuda"),
        ("stream_engines", "from .kernels import lstm_step, op", "kernels.op"),
        ("experiments.runs.read", "from ..engine import loop", "experiments.engine.loop"),
        ("experiments.schedule", "from ..report import tables", "report.tables"),
        ("experiments.config", "from .runs import store", "experiments.runs.store"),
        ("experiments.tasks.mnist", "from ..config import Config", "experiments.config"),
        ("report.tables", "from ..experiments.engine import run", "experiments.engine.run"),
        ("report.tables", "from ..experiments.schedule import plan", "experiments.schedule"),
        ("cli.recipes", "from .run import label", "cli.run"),
        ("cli.data", "from ..kernels import op", "kernels.op"),
    ],
)
def test_forbidden_imports_are_seen(name, line, wrong, tree):
    """In a package of empty modules with one such line, that line is refused, and it alone."""
    assert violations(tree) == {}
    modules(tree)[name].write_text(line)
    assert violations(tree) == {name: {wrong}}


@pytest.mark.parametrize(
    "line", ["from .backends.registry import cuda", "from .middle import cuda as kernels"]
)
def test_a_module_handed_on_is_seen(line, tree):
    """Whoever imports a module from one that may import it has imported it, too."""
    files = modules(tree)
    files["backends.registry"].write_text("from . import cuda, native")
    (tree / "middle.py").write_text("from .backends import cuda")
    files["layers"].write_text(line)
    assert "backends.cuda" in Imports("layers", modules(tree)).ours


def test_allowed_imports_are_not_refused(tree):
    files = modules(tree)
    files["layers"].write_text(
        "import torch\nfrom .backends import registry\nfrom .backends.stack import Network"
    )
    files["provenance"].write_text("from . import __version__")
    files[""].write_text("if TYPE_CHECKING:\n    from .experiments import Config")
    assert violations(tree) == {}


def test_packages_on_the_way_count(tmp_path):
    """An import of `experiments.runs.gather` runs `experiments.runs`, if there is something to run."""
    for package in ("", "experiments", "experiments/runs", "cli"):
        (tmp_path / package).mkdir(exist_ok=True)
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "experiments/runs/gather.py").touch()
    (tmp_path / "experiments/schedule.py").write_text("from .runs.gather import gather")
    files = modules(tmp_path)
    assert Imports("experiments.schedule", files).ours == {"experiments.runs.gather"}
    (tmp_path / "experiments/runs/__init__.py").write_text("import torch")
    assert Imports("experiments.schedule", files).ours == {"experiments.runs", "experiments.runs.gather"}


# Private names of torch

# Whatever has them: modules, and the last one functions.
ATTRIBUTES = {"_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks", "_metadata"}
ATTRIBUTES |= {"_save_to_state_dict", "_load_from_state_dict", "_dynamo_marked_constant"}


def is_private(word: str) -> bool:
    return word.startswith("_") and not word.startswith("__")


def private_names(source: str) -> set[str]:
    """The private names of torch that a source uses: imported, or as attributes of what torch has."""
    nodes = list(ast.walk(ast.parse(source)))
    imported = dict(pair for node in nodes for pair in torch_imports(node))
    used = set(imported.values())
    for node in nodes:
        path = dotted(node)
        if isinstance(node, ast.Call) and path in (["getattr"], ["hasattr"], ["setattr"]):
            of, name, *_ = node.args
            path = [*dotted(of), name.value] if isinstance(name, ast.Constant) else []
        if path and path[0] in imported:
            used.add(".".join([imported[path[0]], *map(str, path[1:])]))
    private = {name for name in used if any(map(is_private, name.split(".")))}
    # `torch._C` is a part of `torch._C.name`: the whole says it all.
    whole = {name for name in private if not any(other.startswith(f"{name}.") for other in private)}
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return whole | (attributes & ATTRIBUTES)


def torch_imports(node: ast.AST) -> Iterator[tuple[str, str]]:
    """What an import binds of torch: the name here, and the name there."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name.split(".")[0] == "torch":
                yield alias.asname or alias.name, alias.name
                yield from () if alias.asname else [("torch", "torch")]
    elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "torch":
        for alias in node.names:
            yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def dotted(node: ast.AST) -> list[str]:
    """["torch", "nn", "Module"] of such an expression, or of a call of it; empty if it begins otherwise."""
    if isinstance(node, ast.Call):
        return dotted(node.func)
    if isinstance(node, ast.Attribute):
        start = [] if isinstance(node.value, ast.Call) else dotted(node.value)
        return [*start, node.attr] if start else []
    return [node.id] if isinstance(node, ast.Name) else []


@every_module
def test_only_one_file_knows_private_names_of_torch(name):
    assert name == "torch_internals" or private_names(FILES[name].read_text()) == set()


FLAG = "torch.compiler._is_exporting_flag"
FUNCTION = "torch.autograd.function._SingleLevelFunction"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import torch\ntorch._C._cuda_getDevice()", {"torch._C._cuda_getDevice"}),
        ("import torch as t\nt.compiler._is_exporting_flag", {FLAG}),
        ("import torch.compiler as c\nc._is_exporting_flag", {FLAG}),
        ("import torch\ngetattr(torch.compiler, '_is_exporting_flag', False)", {FLAG}),
        ("from torch.autograd.function import _SingleLevelFunction", {FUNCTION}),
        ("from torch.autograd import function as f\nclass F(f._SingleLevelFunction): pass", {FUNCTION}),
        ("from torch.autograd import forward_ad as f\nf._level", {"torch.autograd.forward_ad._level"}),
        ("from torch._functorch.utils import x", {"torch._functorch.utils.x"}),
        ("import torch._dynamo", {"torch._dynamo"}),
        ("def f():\n    from torch import _C", {"torch._C"}),
        ("import torch\ndef f(x: torch._C.DispatchKeySet): pass", {"torch._C.DispatchKeySet"}),
        ("f._dynamo_marked_constant = True", {"_dynamo_marked_constant"}),
        ("'parametrizations' in layer._modules", {"_modules"}),
        ("super()._save_to_state_dict(kept, prefix, False)", {"_save_to_state_dict"}),
        ("import torch\ntorch.__version__, torch.nn.Module.__init__", set()),
        ("self._weights, state._replace(k=1)", set()),
    ],
)
def test_private_names_are_seen(source, found):
    assert private_names(source) == found
