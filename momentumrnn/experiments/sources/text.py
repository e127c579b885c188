"""A file of Python as text: its pieces as tokens, and which statements bind a name. Runs nothing of it.

All answers are the same on every Python. Therefore nothing here asks `symtable`, `ast.dump` or `ast.unparse`.
"""

import ast
import sys
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property

from .bytecode import code_text, nested_codes, plain_text

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
IMPORTS = (ast.Import, ast.ImportFrom)
Import = ast.Import | ast.ImportFrom
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class Scope:
    """Statements of a file or of a function, by the names that they bind or change.

    >>> scope = Scope(ast.parse("sizes = [3]; sizes.append(5); print(sizes)").body)
    >>> [ast.unparse(statement) for statement in scope.statements("sizes")]
    ['sizes = [3]', 'sizes.append(5)']
    """

    def __init__(self, body: Sequence[ast.stmt]) -> None:
        self._binding: dict[str, list[ast.stmt]] = {}
        self._changing: dict[str, list[ast.stmt]] = {}
        for statement in body:
            for name, node in _bindings([statement]):
                # An import in an `if` or a `try` is a statement of its own.
                place = node if isinstance(node, IMPORTS) else statement
                self._binding.setdefault(name, []).append(place)
            for name in _declarations([statement], ast.Global):
                self._binding.setdefault(name, []).append(statement)
        changers = {name: changed for name in self._binding if (changed := self._changed_by_calling(name))}
        for statement in body:
            for name in _changed_names(statement) | self._changed_by_calls(statement, changers):
                self._changing.setdefault(name, []).append(statement)

    def _changed_by_calling(self, name: str) -> set[str]:
        """The names of this scope that a function of it sets or changes when it is called."""
        functions = [node for node in self._binding[name] if isinstance(node, ast.FunctionDef)]
        inside = [inner for node in functions for inner in ast.walk(node) if isinstance(inner, ast.stmt)]
        changed = {other for node in inside for other in _changed_names(node)}
        return (changed | _declarations(functions, ast.Global, ast.Nonlocal)) & self._binding.keys()

    def _changed_by_calls(self, statement: ast.stmt, changers: dict[str, set[str]]) -> set[str]:
        """The names whose objects a statement may change as it calls a function with them, or decorates."""
        changed: set[str] = set()
        if isinstance(statement, DEFINITIONS):
            for name in {name for node in statement.decorator_list for name in free_names(node)}:
                is_object = not any(
                    isinstance(n, (*DEFINITIONS, *IMPORTS)) for n in self._binding.get(name, [])
                )
                changed |= changers.get(name, set()) | ({name} if is_object else set())
        elif not (isinstance(statement, ast.If) and "__name__" in free_names(statement.test)):
            calls = [node.value for node in ast.walk(statement) if isinstance(node, ast.Expr)]
            for call in calls:
                name = _called(call)
                if name in ("setattr", "delattr") or self._is_users_function(name):
                    changed |= changers.get(name, set()) | (free_names(call) - {name})
        return changed

    def _is_users_function(self, name: str) -> bool:
        """Whether a name stands for a function, or an import that is no part of Python, torch or ours."""
        nodes = self._binding.get(name, [])
        modules = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
        modules += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        known = {*sys.stdlib_module_names, "momentumrnn", "torch"}
        is_callable = any(isinstance(node, (*DEFINITIONS, *IMPORTS)) for node in nodes)
        return is_callable and not any(module.partition(".")[0] in known for module in modules)

    @cached_property
    def literals(self) -> dict[str, str]:
        """The constants that one statement sets and that nothing changes, as `plain_text` writes them."""
        literals: dict[str, str] = {}
        for name, nodes in self._binding.items():
            node = nodes[0]
            if len(nodes) > 1 or name in self._changing or not isinstance(node, ast.Assign | ast.AnnAssign):
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            with suppress(ValueError, TypeError):
                value = ast.literal_eval(node.value) if node.value else []
                if all(isinstance(t, ast.Name) for t in targets) and not isinstance(value, list | dict | set):
                    literals[name] = plain_text(value) or ""
        return literals

    def statements(self, name: str) -> list[ast.stmt]:
        """Those that make a name what it is. What a file does to a module of others is not among them."""
        binding = self._binding.get(name, [])
        imported = all(isinstance(statement, IMPORTS) for statement in binding)
        return binding if imported else [*binding, *self._changing.get(name, [])]


class SourceText:
    """The text of one file, or of one cell of a notebook. Raises SyntaxError if it is not Python.

    package: the package that its relative imports start from, or "".
    """

    def __init__(self, lines: Sequence[str], file: str, package: str) -> None:
        self.file, self.package, self._lines = file, package, lines
        try:
            self.tree = ast.parse("".join(lines))
            self._tokens = list(_tokens(lines))
        except (ValueError, tokenize.TokenError) as error:
            raise SyntaxError(str(error)) from None
        self.scope = Scope(self.tree.body)

    @cached_property
    def codes(self) -> set[tuple[str, str]]:
        """The name and the text of each function's bytecode, as Python compiles this text."""
        whole = compile("".join(self._lines), self.file, "exec", dont_inherit=True)
        return {(code.co_qualname, code_text(code)) for code in nested_codes(whole)}

    def unused_imports(self) -> Iterator[tuple[Import, str]]:
        """Imports of names that no other statement mentions: they are there for what they do."""
        used = {node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name)}
        for name, node in _bindings(self.tree.body):
            if isinstance(node, IMPORTS) and name not in used and name != "*":
                yield node, name

    def whole(self) -> str:
        """The tokens of all lines."""
        return self._join(1, len(self._lines))

    def piece(self, node: ast.stmt) -> str:
        """The tokens of the lines of a statement."""
        return self._join(first_line(node), last_line(node))

    def classes(self, qualified_name: str) -> list[tuple[ast.ClassDef, tuple[Scope, ...]]]:
        """The classes of this name, each with the scopes of the functions around it, inside out."""
        return list(_classes(self.tree, "", qualified_name, ()))

    def _join(self, first: int, last: int) -> str:
        words = [word for line, word in self._tokens if first <= line <= last]
        # Where the block before it ends belongs to the first line of a piece.
        while words and words[0] in _MARKS.values():
            del words[0]
        while words and words[-1] in _MARKS.values():
            del words[-1]
        return "\0".join(words)


def first_line(node: ast.stmt) -> int:
    """The line where a statement starts, with its decorators."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def last_line(node: ast.stmt) -> int:
    """The line where a statement ends."""
    return node.end_lineno or node.lineno


def bound_by_import(node: Import, alias: ast.alias) -> str:
    """The name that a part of an import binds; "*" for all names of a module."""
    return alias.asname or (alias.name.partition(".")[0] if isinstance(node, ast.Import) else alias.name)


def free_names(node: ast.AST) -> set[str]:
    """The names that a node reads from around it.

    >>> sorted(free_names(ast.parse("def area(r, *, pi=PI): s = r * r; return scale(pi * s)").body[0]))
    ['PI', 'scale']
    """
    names: set[str] = set()
    waiting = [node]
    while waiting:
        node = waiting.pop()
        children = list(ast.iter_child_nodes(node))
        if isinstance(node, _FUNCTIONS):
            body: list[ast.AST] = [*node.body] if isinstance(node.body, list) else [node.body]
            own = _parameters(node.args) | {name for name, _ in _bindings(body)}
            names |= _all_free(body) - (own - _declarations(body, ast.Global, ast.Nonlocal))
            waiting += [child for child in children if child not in body]
        elif isinstance(node, _COMPREHENSIONS):
            variables = {name for part in node.generators for name, _ in _bindings([part.target])}
            names |= _all_free(children) - variables
            waiting.append(node.generators[0].iter)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)  # `x += 1` reads x
            waiting.append(node.value)
        else:
            waiting += children
    return names


def _all_free(nodes: Iterable[ast.AST]) -> set[str]:
    return {name for node in nodes for name in free_names(node)}


def _parameters(arguments: ast.arguments) -> set[str]:
    stars = [argument for argument in (arguments.vararg, arguments.kwarg) if argument]
    return {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *stars)}


def _bindings(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, ast.AST]]:
    """The names that nodes bind in the scope where they are, and what binds them."""
    waiting = [*nodes][::-1]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id, node
        elif isinstance(node, IMPORTS):
            yield from ((bound_by_import(node, alias), node) for alias in node.names)
        elif isinstance(node, (*DEFINITIONS, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            yield node.name, node
        if not isinstance(node, (*DEFINITIONS, ast.Lambda, *_COMPREHENSIONS)):
            waiting += [*ast.iter_child_nodes(node)][::-1]


def _declarations(nodes: Iterable[ast.AST], *kinds: type[ast.Global] | type[ast.Nonlocal]) -> set[str]:
    """The names that functions bind further out, by `global` or `nonlocal`."""
    inner = [inner for node in nodes for inner in ast.walk(node) if isinstance(inner, kinds)]
    return {name for node in inner for name in node.names}


def _changed_names(statement: ast.stmt) -> set[str]:
    """The names whose objects a statement changes, such as `name[key] = value` or `name.append(value)`."""
    changed: list[ast.expr] = []
    for node in [] if isinstance(statement, DEFINITIONS) else ast.walk(statement):
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
            changed.append(node)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            changed.append(node.value.func)
    return {name for node in changed if (name := _root(node))}


def _root(node: ast.expr) -> str | None:
    """The name before the dots and brackets, if there are any.

    >>> _root(ast.parse("a.b[0].c", mode="eval").body), _root(ast.parse("a", mode="eval").body)
    ('a', None)
    """
    bare = isinstance(node, ast.Name)
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) and not bare else None


def _called(node: ast.expr) -> str:
    """The name before the brackets and the dots of a call."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.id if isinstance(node.func, ast.Name) else _root(node.func) or ""


def _classes(
    node: ast.AST, path: str, wanted: str, scopes: tuple[Scope, ...]
) -> Iterator[tuple[ast.ClassDef, tuple[Scope, ...]]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            if path + child.name == wanted:
                yield child, scopes
            yield from _classes(child, f"{path}{child.name}.", wanted, scopes)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            inside = f"{path}{child.name}.<locals>."
            if wanted.startswith(inside):
                yield from _classes(child, inside, wanted, (Scope(child.body), *scopes))
        elif not isinstance(child, ast.expr):
            yield from _classes(child, path, wanted, scopes)


_MARKS = {tokenize.INDENT: "\n>", tokenize.DEDENT: "\n<"}
_UNSEEN = (tokenize.COMMENT, tokenize.NL, tokenize.ENDMARKER)


def _tokens(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """The line and the text of each token that is no comment, no blank and no part of a docstring."""
    statement: list[tuple[int, str]] = []
    only_strings = True
    for kind, word, line in _whole_strings(lines):
        if kind in _MARKS:
            yield line, _MARKS[kind]
        elif kind == tokenize.NEWLINE:
            if not only_strings:
                yield from [*statement, (line, "\n")]
            statement, only_strings = [], True
        elif kind not in _UNSEEN:
            statement.append((line, word))
            only_strings &= kind == tokenize.STRING


def _whole_strings(lines: Sequence[str]) -> Iterator[tuple[int, str, int]]:
    """The kind, text and line of each token. An f-string is one, though Python 3.12 takes it apart."""
    start, end = (getattr(tokenize, f"FSTRING_{edge}", None) for edge in ("START", "END"))
    depth, (first, column) = 0, (0, 0)
    for token in tokenize.generate_tokens(iter(lines).__next__):
        if token.type == start:
            if depth == 0:
                first, column = token.start
            depth += 1
        elif token.type == end:
            depth -= 1
            if depth == 0:
                rows = list(lines[first - 1 : token.end[0]])
                rows[-1] = rows[-1][: token.end[1]]
                yield tokenize.OP, "".join(rows)[column:], first
        elif depth == 0:
            # An f-string computes, so it is no docstring.
            prefix = (
                token.string.lower().partition(token.string[-1:])[0] if token.type == tokenize.STRING else ""
            )
            yield (tokenize.OP if "f" in prefix else token.type), token.string, token.start[0]
