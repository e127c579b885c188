"""The hash of what classes are in memory: their bytecode, and that of the functions that they call by name.

It differs between versions of Python. It knows no lines and no file names.
"""

import dis
import hashlib
import inspect
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, partial, partialmethod
from types import CodeType, FunctionType, ModuleType

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))


def bytecode_hash(kinds: Sequence[type | FunctionType], is_users: Callable[[str], bool]) -> str:
    """SHA-256 of the bytecode of classes or functions. is_users: whether to look into a module."""
    return _Bytecode(kinds, is_users).digest.hexdigest()


def parts(value: object) -> tuple[object, ...]:
    """What a method of a class is made of, if it is no plain function."""
    if isinstance(value, staticmethod | classmethod):
        return (value.__func__,)
    if isinstance(value, property):
        return value.fget, value.fset, value.fdel
    if isinstance(value, cached_property):
        return (value.func,)
    if isinstance(value, partial | partialmethod):
        return value.func, value.args, *(word for pair in sorted(value.keywords.items()) for word in pair)
    return ()


def plain_text(value: object) -> str | None:
    """How a constant is written, the same in every process; None if it is no constant.

    >>> plain_text((0.5, frozenset(["b", "a"])))
    "(0.5, {'a', 'b'})"
    """
    if not isinstance(value, tuple | list | set | frozenset | dict):
        return repr(value) if type(value) in _PLAIN else None
    texts = [plain_text(item) for item in (value.items() if isinstance(value, dict) else value)]
    words = [text for text in texts if text is not None]
    if len(words) < len(texts):
        return None
    return f"({', '.join(words)})" if isinstance(value, tuple | list) else f"{{{', '.join(sorted(words))}}}"


class _Bytecode:
    def __init__(self, kinds: Sequence[type | FunctionType], is_users: Callable[[str], bool]) -> None:
        self.digest = hashlib.sha256()
        self._is_users = is_users
        self._seen: set[int] = set()
        self._waiting: deque[FunctionType | type | ModuleType] = deque(kinds)
        while self._waiting:
            value = self._waiting.popleft()
            if isinstance(value, FunctionType):
                self._add_function(value)
            else:
                self._add_members(vars(value))

    def _write(self, *words: object) -> None:
        self.digest.update(repr(words).encode("utf-8", "surrogatepass"))

    def _add(self, value: object) -> None:
        """A value that a class or a function uses."""
        text = plain_text(value)
        if text is not None:
            self._write(text)
        elif isinstance(value, FunctionType | type | ModuleType):
            module = str(value.__name__ if isinstance(value, ModuleType) else value.__module__)
            if not self._is_users(module):
                self._write(module, getattr(value, "__qualname__", ""))
            elif id(value) not in self._seen:
                self._seen.add(id(value))
                self._waiting.append(value)
        else:
            self._write(type(value).__qualname__)
            for part in parts(value):
                self._add(part)

    def _add_members(self, members: Mapping[str, object]) -> None:
        for name, value in sorted(members.items()):
            # The others say where a class stands, and differ between versions of Python.
            if not name.startswith("__") or isinstance(value, FunctionType):
                self._write(name)
                self._add(value)

    def _add_function(self, function: FunctionType) -> None:
        codes = list(nested_codes(function.__code__))
        self._write(code_text(function.__code__))
        self._add(function.__defaults__)
        for cell in function.__closure__ or ():
            try:
                self._add(cell.cell_contents)
            except ValueError:  # it is still empty
                self._write("empty")
        for name in sorted({name for code in codes for name in _global_names(code)}):
            if name in function.__globals__:
                self._write(name)
                self._add(function.__globals__[name])


@lru_cache(maxsize=10_000)
def _global_names(code: CodeType) -> frozenset[str]:
    """The names that code looks up around it. `co_names` has attributes as well."""
    loads = ("LOAD_GLOBAL", "LOAD_NAME")
    return frozenset(line.argval for line in dis.get_instructions(code) if line.opname in loads)


def nested_codes(code: CodeType) -> Iterator[CodeType]:
    """A code and those of the functions and classes in it."""
    yield code
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from nested_codes(value)


def code_text(code: CodeType) -> str:
    """What a code does, without its lines, its file and its docstring.

    >>> code_text((lambda: 1).__code__) == code_text((
    ...     lambda: 1).__code__)
    True
    """
    words: list[object] = []
    for part in nested_codes(code):
        # The higher bits say which `__future__` the text has.
        words += [part.co_code, part.co_argcount, part.co_kwonlyargcount, part.co_flags & 0x3FF]
        words += [part.co_names, part.co_varnames, part.co_freevars, part.co_cellvars]
        constants = [plain_text(value) for value in part.co_consts if not isinstance(value, CodeType)]
        words.append([None, *constants[1:]] if _has_docstring(part) else constants)
    return repr(words)


def _has_docstring(code: CodeType) -> bool:
    """Whether the first constant of a function is its docstring, or None in its place."""
    flag = getattr(inspect, "CO_HAS_DOCSTRING", None)
    if flag is not None:
        return bool(code.co_flags & flag)
    return bool(code.co_flags & inspect.CO_OPTIMIZED) and not code.co_name.startswith("<")
