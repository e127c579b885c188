"""Classes of a user's own, which the option `--import` brings in. Their hashes are in `sources.hashes`."""

import hashlib
import importlib
import inspect
import pkgutil
import sys
import traceback
from collections.abc import Sequence
from dataclasses import is_dataclass
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

from ..cells import Cell
from ..init import Init
from ..momentum import MOMENTA, Momentum
from ..repr_parser import nearest
from .config import CELLS, INITS
from .sources.hashes import in_library, is_own, source_hash
from .tasks import TASKS, Task

_BASES = (Task, Cell, Momentum, Init)
_OURS: tuple[type, ...] = (*TASKS, *CELLS, *MOMENTA, *INITS)
# Each module that was imported by path, with the content that its file had then.
_BY_PATH: dict[Path, tuple[bytes, ModuleType]] = {}


def import_classes(names: Sequence[str]) -> tuple[type, ...]:
    """The user's own dataclasses in modules that describe a task, cell, momentum or init, in their order.

    names: modules such as my_package.tasks, also of the current folder, or files such as tasks/my_task.py.

    Raises ValueError, whose text begins with "--import: expected".
    """
    origins: dict[type, str] = {}
    for name in names:
        for kind in _descriptions(name, _import(name)):
            origins.setdefault(kind, name)
    by_name: dict[str, type] = {}
    for kind, name in origins.items():
        other = by_name.setdefault(kind.__name__, kind)
        if kind.__name__ in [ours.__name__ for ours in _OURS]:
            reason = f" with a class {kind.__name__}: rename it"
            raise _refusal("names of classes that are not ours", name, reason)
        if other is not kind:
            reason = f" with a class {kind.__name__}, of which {origins[other]!r} has another: rename one"
            raise _refusal("classes of different names", name, reason)
        source_hash(kind)  # it is known from now on, since a file may be edited while a run trains
    return tuple(origins)


def _refusal(expected: str, name: str, reason: str) -> ValueError:
    return ValueError(f"--import: expected {expected}, got {name!r}{reason}")


def _descriptions(name: str, module: ModuleType) -> list[type]:
    """The user's own dataclasses in the namespace of a module that describe something."""
    values = dict.fromkeys(value for value in vars(module).values() if isinstance(value, type))
    kinds = [kind for kind in values if issubclass(kind, _BASES) and is_own(kind)]
    complete = [kind for kind in kinds if is_dataclass(kind) and not inspect.isabstract(kind)]
    if complete:
        return complete
    reason = " without one"
    for kind in kinds:
        missing = ", ".join(sorted(getattr(kind, "__abstractmethods__", ())))
        reason += f"; its {kind.__name__} lacks {missing or '@dataclass(frozen=True)'}"
    *bases, last = [base.__name__ for base in _BASES]
    raise _refusal(f"a module with a dataclass derived from {', '.join(bases)} or {last}", name, reason)


def _import(name: str) -> ModuleType:
    """The module of this name or path."""
    path = Path(name).expanduser()
    is_path = name.endswith(".py")
    if is_path and not path.is_file():
        beside = [str(path.with_name(other.name)) for other in path.parent.glob("*.py")]
        reason = f": there is none in {path.resolve().parent}{nearest(name, beside)}"
        raise _refusal("a file of Python", name, reason)
    if not is_path and not all(word.isidentifier() for word in name.split(".")):
        expected = "a module such as my_package.tasks or a file such as my_task.py"
        beside = [str(other) for other in path.parent.glob("*.py")]
        raise _refusal(expected, name, nearest(name, beside))
    importlib.invalidate_caches()
    try:
        return _import_path(path.resolve()) if is_path else _import_name(name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) and not is_path else None
        if missing and f"{name}.".startswith(f"{missing}."):
            raise _refusal("a module that can be found", name, _where(missing)) from None
        raise _refusal("a module that can be imported", name, _failure(error)) from error


def _where(name: str) -> str:
    """Where a module was looked for, and what is there."""
    parent = name.rpartition(".")[0]
    package = getattr(sys.modules.get(parent), "__path__", None)
    places = map(Path, sys.path if package is None else package)
    folders = [str(folder) for folder in places if folder.is_dir()]
    beside = pkgutil.iter_modules([str(Path.cwd())] if package is None else folders)
    names = [f"{parent}.{module.name}" if parent else module.name for module in beside]
    return f": there is no {name} in {', '.join(folders)}{nearest(name, names)}"


def _failure(error: BaseException) -> str:
    """What went wrong while a user's module was imported, and in which line of theirs."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    places: list[tuple[str, int | None]] = [(file, line) for file, line in frames if not in_library(file)]
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).is_file():
        places.append((error.filename, error.lineno))
    where = ""
    if places:
        file, line = Path(places[-1][0]), places[-1][1]
        near = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
        where = f" ({near}, line {line})"
    if isinstance(error, SystemExit):
        return f": it ends Python{where}; put what it runs below `if __name__ == '__main__':`"
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    message = text.strip().partition("\n")[0]
    return f": {type(error).__name__}: {message}{where}" if message else f": {type(error).__name__}{where}"


def _import_name(name: str) -> ModuleType:
    if "" not in sys.path:
        _search_first(Path.cwd())
    return importlib.import_module(name)


def _import_path(path: Path) -> ModuleType:
    """The module that a file defines: the one that is in memory, unless the file has changed since."""
    content = path.read_bytes()
    known_content, known = _BY_PATH.get(path, (b"", None))
    if known is not None and known_content == content and sys.modules.get(known.__name__) is known:
        return known
    folder, words = path.parent, [path.stem] * (path.stem != "__init__")
    while (folder / "__init__.py").is_file():
        words.insert(0, folder.name)
        folder = folder.parent
    _search_first(folder)
    if len(words) > 1:
        importlib.import_module(".".join(words[:-1]))
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType) and module is not known and _is_of(module, path):
            return module
    name = ".".join(words)
    if sys.modules.get(name) not in (None, known):
        name += f"_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    module = _run(name, path, content)
    _BY_PATH[path] = content, module
    return module


def _is_of(module: ModuleType, path: Path) -> bool:
    file = vars(module).get("__file__")
    return isinstance(file, str) and Path(file).name == path.name and Path(file).resolve() == path


def _search_first(folder: Path) -> None:
    """Let modules of a folder be imported, as Python does for a program in it."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _run(name: str, path: Path, content: bytes) -> ModuleType:
    """A new module, which runs this content of a file."""
    loader = _Loader(name, path, content)
    spec = spec_from_file_location(name, path, loader=loader)
    assert spec is not None  # there is a loader
    module, before = module_from_spec(spec), sys.modules.get(name)
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
        raise
    return module


class _Loader(SourceFileLoader):
    """Compiles the content itself: a cached one has the time of its file in whole seconds alone."""

    def __init__(self, name: str, path: Path, content: bytes) -> None:
        super().__init__(name, str(path))
        self._content = content

    def get_code(self, fullname: str) -> CodeType | None:
        code: CodeType = self.source_to_code(self._content, self.path)
        return code
