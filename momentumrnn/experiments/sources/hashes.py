"""The hash of the source that decides what a user's class does. It runs no code of theirs.

The file of the class is read in pieces: the class, and all that it uses by name. Of other modules that are
the user's own, such as those of its bases, the whole file counts, and the files that it imports.
Each piece is a list of tokens without comments, docstrings and blanks. So every Python has the same hash.
Beside the text, plain values count that the class has as attributes, or its methods from a function around.
Other values are not looked at: what a command line may change belongs in a field of the class.

A class without source, such as one that `exec` made, has a hash of its bytecode, which says so. So has one
whose file was edited after its import: the text is then not that of the code in memory.
"""

import ast
import hashlib
import inspect
import linecache
import sys
import sysconfig
import tokenize
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType
from weakref import WeakKeyDictionary

from .bytecode import bytecode_hash, code_text, parts, plain_text
from .text import (
    IMPORTS,
    Import,
    Scope,
    SourceText,
    bound_by_import,
    first_line,
    free_names,
    last_line,
)

PACKAGE = "momentumrnn"
_OURS = Path(__file__).resolve().parents[2]
# Of each class the bytecode and the hash. Its file may be edited while its code is in memory and in use.
_KNOWN: WeakKeyDictionary[type, tuple[str, str]] = WeakKeyDictionary()


def source_hash(kind: type) -> str:
    """SHA-256 of the source that decides what a class does, in hexadecimal digits.

    Where there is no source, it is "bytecode:" and the SHA-256 of the bytecode. The hash stays as it is
    until the code in memory changes, whatever happens to the file.
    """
    home = _Home(kind)
    loaded = bytecode_hash(home.kinds, home.has)
    if _KNOWN.get(kind, ("", ""))[0] != loaded:
        try:
            _KNOWN[kind] = loaded, _Source(home).hexdigest()
        except _NoSourceError:
            _KNOWN[kind] = loaded, f"bytecode:{loaded}"
    return _KNOWN[kind][1]


def source_hashes(descriptions: Iterable[object]) -> dict[str, str]:
    """The hash of the source of each class of a user's own, among descriptions, by the name of the class.

    None is skipped. A description may hold others in its fields. Two classes of one name share one hash.
    """
    hashes: dict[str, set[str]] = {}
    for description in descriptions:
        for value in (description, *_inner_descriptions(description)):
            if value is not None and is_own(type(value)):
                hashes.setdefault(type(value).__name__, set()).add(source_hash(type(value)))
    joined = {name: "\n".join(sorted(hashes[name])) for name in sorted(hashes)}
    return {
        name: text if len(hashes[name]) == 1 else hashlib.sha256(text.encode()).hexdigest()
        for name, text in joined.items()
    }


def _inner_descriptions(value: object) -> Iterator[object]:
    """The dataclasses in the fields of a dataclass, also in containers there."""
    values: Iterable[object] = ()
    if is_dataclass(value) and not isinstance(value, type):
        values = [getattr(value, field.name, None) for field in fields(value)]
    elif isinstance(value, dict):
        values = value.values()
    elif isinstance(value, tuple | list):
        values = value
    for item in values:
        if is_dataclass(item) and not isinstance(item, type):
            yield item
        yield from _inner_descriptions(item)


def is_own(kind: type) -> bool:
    """Whether a class is a user's: its module is neither `momentumrnn` nor below it."""
    return kind.__module__.partition(".")[0] != PACKAGE


def in_library(file: str) -> bool:
    """Whether a file belongs to Python, to an installed package or to this one."""
    path = Path(file).resolve()
    roots = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), str(_OURS)]
    is_installed = not {"site-packages", "dist-packages"}.isdisjoint(path.parts)
    return is_installed or file.startswith("<frozen ") or any(path.is_relative_to(root) for root in roots)


class _NoSourceError(Exception):
    """The class has no text that Python can read, or another text than that of its code in memory."""


class _Home:
    """A class, its bases that are a user's own, and which modules are the user's."""

    def __init__(self, kind: type) -> None:
        self._package = _top_package(kind.__module__)
        self.kinds = [base for base in kind.__mro__ if base is kind or self._has_base(base.__module__)]
        self._own_modules = {base.__module__ for base in self.kinds}

    def has(self, module: str, file: str | None = None) -> bool:
        """Whether a module is the user's: no part of Python, of an installed package or of this one."""
        first, file = module.partition(".")[0], file or _file(module)
        if module in self._own_modules or first in (PACKAGE, "torch") or file is None:
            return module in self._own_modules
        return first == self._package or not in_library(file)

    def _has_base(self, module: str) -> bool:
        first, file = module.partition(".")[0], _file(module)
        if first in (PACKAGE, "torch") or first == self._package:
            return first == self._package
        return not in_library(file) if file else first not in sys.stdlib_module_names


def _file(module: str) -> str | None:
    file = getattr(sys.modules.get(module), "__file__", None)
    return file if isinstance(file, str) else None


def _package(module: str) -> str:
    return str(getattr(sys.modules.get(module), "__package__", None) or "")


def _top_package(module: str) -> str:
    return _package(module).partition(".")[0]


class _Source:
    """The pieces of source, in an order that depends on the source alone."""

    def __init__(self, home: _Home) -> None:
        self._home = home
        self._kind = home.kinds[0]
        self._pieces: list[str] = []
        self._seen: set[tuple[object, ...]] = set()
        self._texts: dict[str, SourceText | None] = {}
        # What is in memory of a file, by name.
        self._memory: dict[str, Mapping[str, object]] = {}
        # The names of a notebook, whose text is in cells.
        self._notebook: dict[str, object] = {}
        self._waiting: deque[tuple[SourceText, tuple[Scope, ...], str]] = deque()
        for kind in home.kinds:
            self._add_class(kind)
            self._add_values(kind)
            while self._waiting:
                self._add_name(*self._waiting.popleft())

    def hexdigest(self) -> str:
        return hashlib.sha256("\0\0".join(self._pieces).encode("utf-8", "surrogatepass")).hexdigest()

    def _add_class(self, kind: type) -> None:
        file, codes = _file(kind.__module__), list(_codes(kind))
        if kind.__module__ != self._kind.__module__ and self._add_module(kind.__module__):
            return
        files = [code.co_filename for code in codes]
        if file and (not files or Path(file).name in [Path(name).name for name in files]):
            files.insert(0, file)
        module = sys.modules.get(kind.__module__)
        self._notebook = vars(module) if module and not file else {}
        # A name may be defined twice. The lines of its methods say which definition is meant.
        lines = [code.co_firstlineno for code in codes]
        for name in dict.fromkeys(files):
            text = self._text(name, _package(kind.__module__))
            classes = text.classes(kind.__qualname__) if text else []
            if text and classes:
                if module and name == file:
                    self._memory[name] = vars(module)
                self._check_codes(text, kind)
                fitting = [c for c in classes if any(first_line(c[0]) <= n <= last_line(c[0]) for n in lines)]
                for node, scopes in fitting or classes:
                    self._add(text, scopes, node)
                    self._add_changes(text, scopes, node)
                for statement, bound in text.unused_imports():
                    self._add_import(text, statement, bound, only_users=True)
                return
        raise _NoSourceError

    def _add_values(self, kind: type) -> None:
        """What a class and its methods have from around it: plain values, and the names of other things."""
        for name, value in sorted(vars(kind).items()):
            is_special = name.startswith("__") and name.endswith("__")
            # What Python gives to a class, such as `__replace__`, differs between its versions.
            is_users = isinstance(value, FunctionType) and not in_library(value.__code__.co_filename)
            if not is_special or is_users or parts(value):
                self._add_value(kind, name, value)

    def _add_value(self, kind: type, name: str, value: object) -> None:
        text = plain_text(value)
        if text is not None:
            self._pieces.append(f"{name} = {text}")
        elif any(value is own for own in self._home.kinds) or not self._is_first(value):
            pass
        elif isinstance(value, FunctionType | type):
            code = value.__code__ if isinstance(value, FunctionType) else None
            if code and code.co_filename == "<string>":  # a dataclass has methods that nobody wrote
                return
            self._add_definition(kind, name, value)
            cells = (value.__closure__ if isinstance(value, FunctionType) else None) or ()
            for free, cell in zip(code.co_freevars if code else (), cells, strict=True):
                with suppress(ValueError):  # it is still empty
                    self._add_value(kind, free, cell.cell_contents)
        else:
            inner = parts(value) or (getattr(value, "__wrapped__", None),)
            called = f"{value.__module__} {value.__name__}" if isinstance(value, BuiltinFunctionType) else ""
            self._pieces.append(f"{name}: {type(value).__qualname__} {called}")
            for part in inner:
                if part is not None:
                    self._add_value(kind, name, part)

    def _add_definition(self, kind: type, name: str, value: FunctionType | type) -> None:
        """A function or a class, by its text where its name says which text that is, else by its bytecode."""
        if isinstance(value, FunctionType):
            module, words = str(value.__globals__.get("__name__")), value.__code__.co_qualname
        else:
            module, words = value.__module__, value.__qualname__
        around, _, last = words.rpartition(".")
        is_here = module == kind.__module__
        if is_here and (f"{words}.".startswith(f"{kind.__qualname__}.")):
            return  # in the text of the class
        if is_here and around and around == kind.__qualname__.rpartition(".")[0] and last == name:
            return  # beside the class, in the function around it
        self._pieces.append(f"{name}: {words}" if is_here else f"{name}: {module} {words}")
        if not self._home.has(module):
            return
        text = self._text(_file(module) or "", _package(module)) if is_here else None
        if last != "<lambda>" and text and self._add_name(text, (), words.partition(".")[0]):
            return
        if last == "<lambda>" or is_here or not self._add_module(module):
            self._pieces.append(bytecode_hash([value], self._home.has))

    def _is_first(self, value: object) -> bool:
        """Whether a value is met for the first time. The values live as long as the class."""
        key = ("value", id(value))
        is_first = key not in self._seen
        self._seen.add(key)
        return is_first

    def _check_codes(self, text: SourceText, value: object) -> None:
        """Refuses a text that is not that of the functions in memory, since the file was edited later."""
        if not _is_cell(text.file):
            for code in _codes(value):
                is_of_text = Path(code.co_filename).name == Path(text.file).name
                if is_of_text and (code.co_qualname, code_text(code)) not in text.codes:
                    raise _NoSourceError

    def _check_name(self, text: SourceText, name: str) -> None:
        """The same of a name of a module: of a function, of a class or of a constant."""
        memory = self._memory.get(text.file, {})
        if name in memory:
            value = memory[name]
            self._check_codes(text, value)
            literal = text.scope.literals.get(name)
            if literal is not None and literal != plain_text(value):
                raise _NoSourceError

    def _add_changes(self, text: SourceText, scopes: tuple[Scope, ...], node: ast.ClassDef) -> None:
        """What is done to a class below it, such as `First.batch = fast_batch`."""
        for statement in (*scopes, text.scope)[0].statements(node.name):
            is_around = first_line(statement) <= node.lineno <= last_line(statement)
            if not is_around and not isinstance(statement, ast.ClassDef | Import):
                self._add(text, scopes, statement)

    def _add(self, text: SourceText, scopes: tuple[Scope, ...], node: ast.stmt) -> None:
        """A statement; what it uses comes later. scopes: of the functions around it, inside out."""
        if self._is_new(text, node.lineno, node.col_offset):
            self._pieces.append(text.piece(node))
            for inner in ast.walk(node):
                if isinstance(inner, IMPORTS):
                    self._add_import(text, inner)
            self._waiting += [(text, scopes, name) for name in sorted(free_names(node))]

    def _add_name(self, text: SourceText, scopes: tuple[Scope, ...], name: str) -> bool:
        """What a name stands for; whether it stands for anything of the user's."""
        return (
            any(self._add_bound(text, scopes[depth:], name) for depth in range(len(scopes)))
            or self._add_constant(text, name)
            or any(self._add_bound(place, (), name) for place in self._places(text, name))
            or any(self._add_starred(place, name) for place in self._places(text, name))
        )

    def _add_bound(self, text: SourceText, scopes: tuple[Scope, ...], name: str) -> bool:
        """The statements of the innermost scope that bind a name; whether there are any."""
        statements = (*scopes, text.scope)[0].statements(name)
        if not scopes:
            self._check_name(text, name)
        for statement in statements:
            if isinstance(statement, IMPORTS):
                self._add_import(text, statement, name)
            else:
                self._add(text, scopes, statement)
        return bool(statements)

    def _add_constant(self, text: SourceText, name: str) -> bool:
        """A number or the like in a notebook: its value, since an older cell may have run again."""
        constant = plain_text(self._notebook.get(name)) if _is_cell(text.file) else None
        is_constant = constant is not None and name in self._notebook
        if is_constant and self._is_new(text, "constant", name):
            self._pieces.append(f"{name} = {constant}")
        return is_constant

    def _add_starred(self, text: SourceText, name: str) -> bool:
        """What a name stands for in the modules of which a text imports all names."""
        for star in text.scope.statements("*"):
            module = _absolute(text, star) if isinstance(star, ast.ImportFrom) else ""
            starred = self._module(module)
            if starred and self._is_new(text, "*", module, name) and self._add_name(starred, (), name):
                return self._add_module(module)
        return False

    def _places(self, text: SourceText, name: str) -> Iterator[SourceText]:
        """The texts that may bind a name of this text: itself, or a notebook's cells, the newest first."""
        if not _is_cell(text.file):
            yield text
            return
        # Python knows the cell of a function or class, which may be an older one that ran again.
        files = [code.co_filename for code in _codes(self._notebook.get(name))]
        for file in dict.fromkeys([*files, *filter(_is_cell, reversed(list(linecache.cache)))]):
            cell = self._text(file, "")
            if cell:
                yield cell

    def _add_import(
        self, text: SourceText, statement: Import, name: str | None = None, only_users: bool = False
    ) -> None:
        """An import, or what it imports by one name; of modules of the user's, all of their files."""
        for alias in statement.names:
            bound = bound_by_import(statement, alias)
            if name not in (None, bound) or not self._is_new(text, statement.lineno, alias.name, bound):
                continue
            if isinstance(statement, ast.Import):
                words = alias.name.split(".")
                line = f"import {alias.name} as {bound}"
                modules = [".".join(words[: count + 1]) for count in range(len(words))]
            else:
                module = _absolute(text, statement)
                line = f"from {'.' * statement.level}{statement.module or ''} import {alias.name} as {bound}"
                modules = [module, f"{module}.{alias.name}"]
            if not only_users or any(self._module(module) for module in modules):
                self._pieces.append(line)
            for module in modules:
                own = self._module(module)
                # A module that imports a name from the file of the class needs no more of this file.
                if own and own.file == _file(self._kind.__module__) and isinstance(statement, ast.ImportFrom):
                    self._add_name(own, (), alias.name)
                else:
                    self._add_module(module)

    def _add_module(self, module: str) -> bool:
        """All of a module of the user's, and all that it imports; whether it is one."""
        text = self._module(module)
        if text and self._is_new(text):
            self._pieces.append(text.whole())
            for name in self._memory.get(text.file, {}):
                self._check_name(text, name)
            for node in ast.walk(text.tree):
                if isinstance(node, IMPORTS):
                    self._add_import(text, node)
        return text is not None

    def _is_new(self, text: SourceText, *words: object) -> bool:
        """Whether this part of a text is seen for the first time."""
        key = (text.file, *words)
        is_new = key not in self._seen
        self._seen.add(key)
        return is_new

    def _module(self, module: str) -> SourceText | None:
        """The text of a module, if it is the user's own."""
        file, package = _locate(module)
        if not file or not self._home.has(module, file):
            return None
        if module in sys.modules:
            self._memory.setdefault(file, vars(sys.modules[module]))
        return self._text(file, package)

    def _text(self, file: str, package: str) -> SourceText | None:
        if file not in self._texts:
            try:
                self._texts[file] = SourceText(_lines(file), file, package)
            except (OSError, SyntaxError, UnicodeDecodeError):
                self._texts[file] = None
        return self._texts[file]


def _codes(value: object) -> Iterator[CodeType]:
    """The code of a function, or of the methods that the text of a class defines."""
    values, prefix = [value], ""
    if isinstance(value, type):
        values, prefix = list(vars(value).values()), f"{value.__qualname__}."
    while values:
        value = values.pop()
        values.extend(parts(value))
        code = getattr(inspect.unwrap(value), "__code__", None) if isinstance(value, FunctionType) else None
        if isinstance(code, CodeType) and code.co_qualname.startswith(prefix):
            yield code


def _lines(file: str) -> list[str]:
    if _is_cell(file):
        return linecache.getlines(file)
    with tokenize.open(file) as stream:
        return stream.readlines()


def _is_cell(file: str) -> bool:
    """Whether a text was typed into a notebook or a shell, and so is in no file."""
    entry: tuple[object, ...] = linecache.cache.get(file, ())
    return len(entry) == 4 and entry[1] is None


def _absolute(text: SourceText, statement: ast.ImportFrom) -> str:
    """The full name of the module that an import names, perhaps relative to its package."""
    words = text.package.split(".")
    above = words[: len(words) + 1 - statement.level] if statement.level else []
    return ".".join(filter(None, [*above, statement.module]))


def _locate(module: str) -> tuple[str | None, str]:
    """The file and the package of a module, which may not be imported yet. Imports nothing."""
    if module in sys.modules:
        return _file(module), _package(module)
    folders, spec = None, None
    words = module.split(".")
    if not all(words):  # a relative import outside of a package
        return None, ""
    for count in range(len(words)):
        if count and folders is None:
            return None, ""
        spec = PathFinder.find_spec(".".join(words[: count + 1]), folders)
        folders = spec.submodule_search_locations if spec else None
    return (spec.origin, spec.parent or "") if spec else (None, "")
