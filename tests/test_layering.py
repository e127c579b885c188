"""Imports point down: the order of design, read from the sources; and what an import costs, reported."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import momentumrnn

ROOT = Path(__file__).parent.parent / "momentumrnn"
# Each module and the modules of ours that it may import. A new module needs a line here.
MAY_IMPORT = {
    "momentum": set(),
    "cells": set(),
    "packing": set(),
    "backends.stack": {"momentum", "cells", "packing"},
    "backends.reference": {"momentum", "cells", "backends.stack"},
    "backends.recurrence": {"momentum", "cells", "packing", "backends.stack", "backends.reference"},
    "backends.native": {
        "momentum",
        "cells",
        "packing",
        "backends.stack",
        "backends.reference",
        "backends.recurrence",
    },
    "kernels": set(),
    "kernels.nvrtc": set(),
    "kernels.inputs": set(),
    "kernels.fused": {"kernels.inputs", "kernels.nvrtc"},
    "kernels.op": {"kernels.fused", "kernels.inputs"},
    "kernels.step": {"kernels.fused", "kernels.nvrtc"},
    "backends.cuda": {"momentum", "cells", "packing", "kernels", "kernels.inputs", "backends.stack"},
    "backends": {"momentum", "backends.stack", "backends.cuda", "backends.native", "backends.reference"},
    "init": {"cells"},
    "modules": {"momentum", "cells", "packing", "init", "backends", "backends.stack", "backends.reference"},
    "streaming": {"backends", "cells", "kernels", "modules", "momentum"},
    "names": {"modules", "momentum"},
    "constraints": {"init", "modules", "momentum"},
    "api": {"cells", "constraints", "init", "modules", "momentum", "names", "streaming"},
    "": {"api"},
    "provenance": {"__version__"},
    "spelling": set(),
    "bench": {"backends", "cells", "constraints", "modules", "momentum", "provenance", "spelling"},
    "experiments.data": {"spelling"},
    "experiments.tasks.base": set(),
    "experiments.tasks.synthetic": {"experiments.tasks.base"},
    "experiments.tasks.mnist": {"experiments.data", "experiments.tasks.base"},
    "experiments.tasks": {"experiments.tasks.base", "experiments.tasks.mnist", "experiments.tasks.synthetic"},
    "experiments.config": {"cells", "init", "momentum", "spelling", "experiments.tasks"},
    "experiments.models": {"constraints", "modules", "experiments.config", "experiments.tasks"},
    "experiments.replicas": {
        "backends",
        "constraints",
        "experiments.config",
        "experiments.models",
        "experiments.tasks",
    },
    "experiments.folders": {"experiments.config"},
    "experiments.trainer": {
        "constraints",
        "provenance",
        "experiments.config",
        "experiments.folders",
        "experiments.models",
        "experiments.replicas",
        "experiments.tasks",
    },
    "experiments.paper": {"cells", "init", "momentum", "spelling", "experiments.config", "experiments.tasks"},
    "experiments.exhibits": {"cells", "momentum", "spelling", "experiments.config", "experiments.paper"},
    "experiments.demo": {"init", "momentum", "experiments.config", "experiments.tasks"},
    "experiments.pace": {
        "experiments.config",
        "experiments.models",
        "experiments.replicas",
        "experiments.tasks",
        "experiments.tasks.mnist",
        "experiments.trainer",
    },
    "experiments.cost": {
        "bench",
        "provenance",
        "spelling",
        "experiments.config",
        "experiments.folders",
        "experiments.models",
        "experiments.paper",
        "experiments.replicas",
        "experiments.tasks",
        "experiments.tasks.mnist",
        "experiments.trainer",
    },
    "experiments.report.gather": {"experiments.config", "experiments.folders", "experiments.trainer"},
    "experiments.report.numbers": {"experiments.paper"},
    "experiments.report.tables": {
        "experiments.config",
        "experiments.demo",
        "experiments.exhibits",
        "experiments.paper",
        "experiments.report.gather",
        "experiments.report.numbers",
    },
    "experiments.report.findings": {
        "experiments.exhibits",
        "experiments.paper",
        "experiments.report.gather",
        "experiments.report.numbers",
        "experiments.report.tables",
    },
    "experiments.report.curves": {
        "experiments.demo",
        "experiments.exhibits",
        "experiments.paper",
        "experiments.report.gather",
        "experiments.report.tables",
    },
    "experiments.report.bars": {"experiments.exhibits", "experiments.report.gather"},
    "experiments.report.drawings": {"experiments.tasks"},
    "experiments.report.figures": {"experiments.report.bars", "experiments.report.curves"},
    "experiments.report.content": {
        "experiments.demo",
        "experiments.exhibits",
        "experiments.paper",
        "experiments.report.bars",
        "experiments.report.curves",
        "experiments.report.findings",
        "experiments.report.gather",
        "experiments.report.tables",
    },
    "experiments.report.text": {"experiments.report.content", "experiments.report.tables"},
    "experiments.report.page": {
        "experiments.report.bars",
        "experiments.report.content",
        "experiments.report.curves",
        "experiments.report.drawings",
        "experiments.report.tables",
    },
    "experiments.report": {
        "__version__",
        "experiments.exhibits",
        "experiments.folders",
        "experiments.report.content",
        "experiments.report.drawings",
        "experiments.report.figures",
        "experiments.report.gather",
        "experiments.report.page",
        "experiments.report.text",
    },
    "experiments.plan": {
        "spelling",
        "experiments.config",
        "experiments.demo",
        "experiments.exhibits",
        "experiments.pace",
        "experiments.paper",
        "experiments.report.gather",
    },
    "experiments": {"experiments.config", "experiments.models", "experiments.tasks", "experiments.trainer"},
    "cli": set(),
    "cli.words": set(),
    "cli.display": {"experiments", "experiments.config", "experiments.trainer", "cli.words"},
    "cli.bench": {"bench", "cli.words"},
    "cli.data": {"experiments.data", "cli.words"},
    "cli.run": {
        "experiments",
        "experiments.config",
        "experiments.data",
        "experiments.folders",
        "experiments.paper",
        "experiments.trainer",
        "cli.display",
        "cli.words",
    },
    "cli.recipes": {"experiments.paper", "cli.run", "cli.words"},
    "cli.runs": {"experiments", "experiments.config", "experiments.folders", "cli.words"},
    "cli.report": {"experiments.folders", "experiments.report", "experiments.report.bars", "cli.words"},
    "cli.reproduce": {
        "provenance",
        "experiments.cost",
        "experiments.data",
        "experiments.exhibits",
        "experiments.folders",
        "experiments.plan",
        "experiments.report",
        "experiments.report.gather",
        "experiments.report.tables",
        "experiments.trainer",
        "cli.display",
        "cli.report",
        "cli.words",
    },
    "__main__": {"__version__", "cli.words"},
}
# What each part may import beside torch, numpy and the standard library, most of it where it is used.
EXTRAS = {
    "__main__": {"tyro"},
    "cli": {"rich"},
    "experiments": {"jinja2", "matplotlib", "plotly", "pooch", "safetensors", "scipy"},
}


def module(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix("__init__").removesuffix(".")


def imports(path):
    """All modules imported in a file: ours without the package's name, others by their first word."""
    package = module(path).split(".") if path.name == "__init__.py" else module(path).split(".")[:-1]
    package = [p for p in package if p]
    ours, others = set(), set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            others |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            others.add(node.module.split(".")[0])
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1]
            if node.module:
                ours.add(".".join([*base, node.module]))
            else:
                ours |= {".".join([*base, name.name]) for name in node.names}
    return ours, others


FILES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=[module(p) or "momentumrnn" for p in FILES])
def test_imports_point_down(path):
    ours, others = imports(path)
    assert ours <= MAY_IMPORT[module(path)]
    assert "momentumrnn" not in others
    assert others <= {"torch", "numpy", *EXTRAS.get(module(path).split(".")[0], ())} | sys.stdlib_module_names


def test_the_command_line_starts_without_torch():
    """So that help and refusals come at once."""
    code = "import sys, momentumrnn.__main__; print(*sorted({'torch', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_package_has_the_names_of_its_api():
    from momentumrnn import api

    assert set(api.__all__) <= set(dir(momentumrnn))
    assert all(getattr(momentumrnn, name) is getattr(api, name) for name in api.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        momentumrnn.nonsense  # noqa: B018


def test_the_table_is_complete():
    assert {module(p) for p in FILES} == set(MAY_IMPORT)


def test_momentum_and_cells_never_meet():
    """v never sees h, and h never sees x."""
    assert "cells" not in MAY_IMPORT["momentum"]
    assert "momentum" not in MAY_IMPORT["cells"]


def test_what_an_import_brings(record_property):
    """Nothing but torch, numpy and the standard library; the time beside torch's is reported, not judged."""
    code = (
        "import sys, time; import torch; before = set(sys.modules); t = time.perf_counter();"
        "import momentumrnn; momentumrnn.LSTM; t = time.perf_counter() - t;"
        "new = {m.split('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names);"
        "print(t, *sorted(new))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, *new = done.stdout.split()
    print(f"import momentumrnn after torch: {float(seconds):.3f} s")
    record_property("import_seconds", seconds)
    assert new == ["momentumrnn"]
