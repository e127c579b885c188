"""What commands share about their options: refusals, seeds, the command as it is shown and recorded.

Torch and rich are not imported here, so that what is refused here is refused at once.
"""

import shlex
import shutil
import sys
from collections.abc import MutableMapping, Sequence
from pathlib import Path


def refuse(reason: str, code: int = 2) -> int:
    """Say on standard error why not; returns the exit code."""
    print(f"momentumrnn: {reason}", file=sys.stderr)
    return code


def read_seeds(text: str) -> list[int]:
    """The seeds that a text such as "3", "0-4", "0,2,7" or "0-2,7" names.

    >>> read_seeds("0-2,7")
    [0, 1, 2, 7]
    """
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(_SEEDS_EXPECTED.format(text))
        seeds.extend(range(int(first), min(int(last or first), int(first) + _MOST_SEEDS) + 1))
    if not seeds or len(set(seeds)) < len(seeds) or len(seeds) > _MOST_SEEDS or max(seeds) >= 2**32:
        raise ValueError(_SEEDS_EXPECTED.format(text))
    return seeds


_MOST_SEEDS = 1000
_SEEDS_EXPECTED = (
    f"--seeds: expected such as 3, 0-4 or 0,2,7, each once, up to {_MOST_SEEDS} below 2**32, got {{!r}}"
)


def seed_ranges(seeds: Sequence[int]) -> str:
    """Seeds in short, as `read_seeds` reads them.

    >>> seed_ranges([0, 1, 2, 7])
    '0-2,7'
    """
    ranges: list[list[int]] = []
    for seed in sorted(seeds):
        if ranges and seed == ranges[-1][-1] + 1:
            ranges[-1].append(seed)
        else:
            ranges.append([seed])
    return ",".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else str(r[0]) for r in ranges)


def check_task(task: str, recipe: str) -> None:
    """Refuse a command `run` that names no task and no recipe, or both."""
    if task and recipe:
        raise ValueError(f"--task: expected none beside --recipe, got {task!r}")
    if not task and not recipe:
        choices = [["--task", "Adding(length=50)"], ["--recipe", "figure4/LSTM/Adding/128"]]
        examples = [f"  {command_line(['run', *choice, '--epochs', '2'])}" for choice in choices]
        lines = [
            "expected --task or --recipe, got neither. For example:",
            *examples,
            f"{command_line(['recipes'])} lists all recipes.",
            "A task of your own, with its class in my_task.py: --import my_task.py --task 'MyTask()'",
        ]
        raise ValueError("\n".join(lines))


def check_threads(threads: int | None) -> None:
    """Refuse a number of threads that can't be one."""
    if threads is not None and threads < 1:
        raise ValueError(f"--threads: expected at least 1, got {threads}")


def given_texts(groups: Sequence[Sequence[str]]) -> list[str]:
    """The values of an option that may be given many times, with "" for one that was given without a value.

    >>> given_texts((("lr=1", "clip=2"), (), ("bias=hh",)))
    ['lr=1', 'clip=2', '', 'bias=hh']
    """
    return [text for group in groups for text in group or ("",)]


def wait_without_spinning(environment: MutableMapping[str, str]) -> None:
    """Let the threads of torch sleep soon when they wait, unless the user decides how they wait.

    By default they spin for milliseconds. Then two processes on the same cores take 30 to 400 times as long.
    OpenMP reads this when torch is imported. results/bench/side-by-side.json has what it costs and saves.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & environment.keys():
        environment["GOMP_SPINCOUNT"] = "1000"


def command_line(args: Sequence[str]) -> str:
    """The command as one would type it here."""
    beside = Path(sys.executable).with_name("momentumrnn")
    if shutil.which("momentumrnn") or not beside.exists():
        return shlex.join(["momentumrnn", *args])
    near = beside.relative_to(Path.cwd()) if beside.is_relative_to(Path.cwd()) else beside
    return shlex.join([str(near), *args])


def recorded_command(args: Sequence[str]) -> str:
    """The command for a result, which says what was run, not in whose folders."""
    shown, is_path = [], False
    for arg in args:
        option, equals, value = arg.partition("=")
        if arg.startswith("--"):
            is_path = option in _PATH_OPTIONS
            arg = f"{option}={Path(value).name or value}" if is_path and equals else arg
        elif is_path:
            arg = Path(arg).name or arg
        shown.append(arg)
    return shlex.join(["momentumrnn", *shown])


_PATH_OPTIONS = ("--json", "--data", "--root", "--out", "--bench", "--import")
