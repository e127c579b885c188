"""Words that commands share: refusals, seeds, the command as it is put on record. No torch, no rich."""

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path


def refuse(reason: str, code: int = 2) -> int:
    """Say on standard error why not; returns the exit code."""
    print(f"momentumrnn: {reason}", file=sys.stderr)
    return code


def seeds(text: str) -> list[int]:
    """The seeds that are spelt so: "3", "0-4", "0,2,7", "0-2,7".

    >>> seeds("0-2,7")
    [0, 1, 2, 7]
    """
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(_SEEDS.format(text))
        found.extend(range(int(first), min(int(last or first), int(first) + _MOST) + 1))
    if not found or len(set(found)) < len(found) or len(found) > _MOST or max(found) >= 2**32:
        raise ValueError(_SEEDS.format(text))
    return found


_MOST = 1000
_SEEDS = f"--seeds: expected such as 3, 0-4 or 0,2,7, each once, up to {_MOST} below 2**32, got {{!r}}"


def check_task(task: str, recipe: str) -> None:
    """Refuse a command `run` that names no task and no recipe, or both."""
    if task and recipe:
        raise ValueError(f"--task: expected none beside --recipe, got {task!r}")
    if not task and not recipe:
        examples = [["--task", "Adding(length=50)"], ["--recipe", "figure4/LSTM/Adding/128"]]
        lines = [f"  {spelt(['run', *each, '--epochs', '2'])}" for each in examples]
        head = "expected --task or --recipe, got neither. For example:"
        raise ValueError("\n".join([head, *lines, f"{spelt(['recipes'])} lists all recipes."]))


def several(values: Sequence[int]) -> str:
    """Seeds in short, as `seeds` reads them.

    >>> several([0, 1, 2, 7])
    '0-2,7'
    """
    parts: list[list[int]] = []
    for value in sorted(values):
        if parts and value == parts[-1][-1] + 1:
            parts[-1].append(value)
        else:
            parts.append([value])
    return ",".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)


def spelt(args: Sequence[str]) -> str:
    """The command as one would type it here."""
    beside = Path(sys.executable).with_name("momentumrnn")
    if shutil.which("momentumrnn") or not beside.exists():
        return shlex.join(["momentumrnn", *args])
    near = beside.relative_to(Path.cwd()) if beside.is_relative_to(Path.cwd()) else beside
    return shlex.join([str(near), *args])


def recorded(args: Sequence[str]) -> str:
    """The command for a result, which says what was run, not in whose folders."""
    found, path = [], False
    for arg in args:
        option, equals, value = arg.partition("=")
        if arg.startswith("--"):
            path = option in _PATHS
            arg = f"{option}={Path(value).name or value}" if path and equals else arg
        elif path:
            arg = Path(arg).name or arg
        found.append(arg)
    return shlex.join(["momentumrnn", *found])


_PATHS = ("--json", "--data", "--root", "--out", "--bench")
