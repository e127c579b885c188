"""The command line: its options, and which command they go to. Torch and rich are imported when one runs."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from .cli.words import refuse, seeds

if TYPE_CHECKING:
    from tyro.conf import Positional, arg
else:
    try:
        from tyro.conf import Positional, arg
    except ImportError:  # then main says so

        class Positional:
            def __class_getitem__(cls, kind: Any) -> Any:
                return kind

        def arg(**options: Any) -> None:
            return None


@dataclass(frozen=True)
class Run:
    """Train a network, one run folder for each seed; run again, it goes on where it was, or says it is done.

    Descriptions are spelt as in Python, such as "Adding(length=750)" or "HeavyBall(mu=0.9, step=2.0)". What
    is not given is the recipe's, or the paper's for the task.
    """

    task: str = ""
    """Adding(...), Copying(...), MNIST(...) or PMNIST(...); by default Adding()."""
    recipe: str = ""
    """A row of the paper, as momentumrnn recipes lists them: table1/MomentumLSTM/PMNIST/256."""
    seeds: str = "0"
    """One, such as 3, or several, such as 0-4 or 0,2,7, trained together."""
    cell: str = ""
    """LSTM(), GRU(), Elman(nonlinearity='tanh') or ExtrapolatedLSTM(...)."""
    momentum: str = ""
    """None, HeavyBall(...), Nesterov(...), ScheduledRestart(...), Adam(...) or RMSProp(...)."""
    hidden_size: int | None = None
    """Units of the recurrent layer."""
    bias: Literal["True", "False", "hh"] | None = None
    """Both biases, none, or the recurrent one alone."""
    init: str = ""
    """Paper(forget_bias=1.0), Torch() or Dtriv()."""
    orthogonal: bool | None = None
    """Keep the recurrent matrix orthogonal, as DTRIV does."""
    optimizer: Literal["adam", "rmsprop", "sgd"] | None = None
    """Torch's, with its defaults but for the rate and alpha."""
    lr: float | None = None
    """The rate."""
    alpha: float | None = None
    """The smoothing of rmsprop."""
    orthogonal_lr: float | None = None
    """The rate for the tangent of an orthogonal matrix."""
    rebase_every: int | None = None
    """Steps between re-basings of an orthogonal matrix; 0: never."""
    clip: float | None = None
    """The largest norm of a gradient, for each seed by itself; 0: no limit."""
    batch_size: int | None = None
    """Samples in a step, for each seed."""
    epochs: int | None = None
    """In all; with more than it had, a run that was done goes on."""
    precision: Literal["tf32", "float32", "float64"] | None = None
    """tf32, the default: float32, but a GPU may shorten the factors of a recurrent layer's products."""
    deterministic: bool | None = None
    """The same numbers each time, the default."""
    log_every: int | None = None
    """Steps between two losses in metrics.jsonl."""
    root: Path = Path("runs")
    """Where run folders are."""
    data: Path | None = None
    """Where data sets are; by default what MOMENTUMRNN_DATA says, else a folder of the user's cache."""
    device: Literal["cpu", "cuda"] | None = None
    """By default cuda, if there is one."""
    threads: int | None = None
    """CPU threads; by default as many as torch takes. Where others work on the same machine 1 is faster, for
    torch's threads wait for one another."""
    tensorboard: bool = False
    """Write TensorBoard's files into the run folders too."""


@dataclass(frozen=True)
class Recipes:
    """List the rows of the paper that can be run, each with its published number."""

    find: Positional[str] = ""
    """Only those whose name has this in it, such as PMNIST/256; a whole name shows all there is to it."""


@dataclass(frozen=True)
class Runs:
    """List what has been run, where, and with what result."""

    root: Path = Path("runs")
    """Where run folders are."""


@dataclass(frozen=True)
class Data:
    """Download a data set, verified; adding and copying need none."""

    action: Positional[Literal["get"]]
    name: Positional[Literal["mnist"]]
    data: Path | None = None
    """Where to; by default what MOMENTUMRNN_DATA says, else a folder of the user's cache."""


@dataclass(frozen=True)
class Reproduce:
    """Run what a table or figure of the paper lacks, then make the report; again, it goes on where it was.

    What is done is left as it is; it may be stopped at any moment.
    """

    what: Positional[Annotated[str, arg(metavar="WHAT")]]
    """table1 to table16, figure1 to figure11, all for every one, or demo for a small comparison that needs no
    data and takes minutes on a CPU."""
    seeds: str | None = None
    """Of each row, such as 3, 0-4 or 0,2,7, trained together; by default 0-4, of the demo 0-2."""
    epochs: int | None = None
    """In place of the paper's: a row with fewer is a curve, and gets no verdict."""
    log_every: int | None = None
    """Steps between two losses in metrics.jsonl; by default 50, more makes smaller files."""
    rows: tuple[str, ...] = ()
    """Only rows whose name has one of these in it, such as PMNIST/256 or MomentumLSTM; for a whole name that
    row and its variants."""
    also: tuple[str, ...] = ()
    """Beside each row its variants: as-released, controls, or single ones such as same-gain."""
    plan: bool = False
    """Run nothing; say what would run, what is there, and how long the rest would take here."""
    root: Path = Path("runs")
    """Where run folders are."""
    out: Path = Path("report")
    """Where the report goes."""
    bench: tuple[Path, ...] = ()
    """Files of momentumrnn bench --json for the report; by default those of results/bench, if it is there."""
    open: bool = False
    """Open the page in a browser."""
    data: Path | None = None
    """Where data sets are; by default what MOMENTUMRNN_DATA says, else a folder of the user's cache."""
    device: Literal["cpu", "cuda"] | None = None
    """By default cuda, if there is one; for the demo cpu."""
    threads: int | None = None
    """CPU threads; by default as many as torch takes. Where others work on the same machine 1 is faster, for
    torch's threads wait for one another."""


@dataclass(frozen=True)
class Report:
    """Make one page of everything that was run: tables, figures and verdicts beside the paper's numbers."""

    root: tuple[Path, ...] = (Path("runs"),)
    """Where run folders are, one folder or several."""
    out: Path = Path("report")
    """Where it goes: report.html, results.md, and the folders figures and tables."""
    bench: tuple[Path, ...] = ()
    """Files of momentumrnn bench --json, or folders of them; by default results/bench, if it is there."""
    open: bool = False
    """Open the page in a browser."""


@dataclass(frozen=True)
class Bench:
    """Time layers against torch.nn: parity first, then forward, forward + backward, and peak memory."""

    shapes: tuple[str, ...] = ("pmnist128", "timit158")
    """Layers and inputs by the paper's names: pmnist128, pmnist256, lstm512, mnist-gru256, timit84, timit120,
    timit158, copy190-1k, copy190-2k, adding128, ptb1150, ptb400, dtriv170, dtriv360, dtriv512, dtriv224,
    dtriv322; srlstm128, srlstm256: SRLSTM as the paper's code has it, with --momentum None."""
    cells: tuple[Literal["lstm", "gru", "rnn"], ...] = ()
    """In place of each shape's own cell."""
    momentum: tuple[str, ...] = ("HeavyBall",)
    """Spelt as in Python, such as "HeavyBall(mu=0.9)", "Adam(mu=0.6, beta=0.9)", Nesterov, None. If None is
    among them, the others are compared with it too."""
    backend: str = "auto"
    """auto takes the fastest that serves; another name, such as native or reference, that one or none."""
    rivals: tuple[
        Literal["torch", "torch-fp32", "torch-bf16", "torch-fp16", "torch-padded", "native", "plain", "loop"],
        ...,
    ] = ("torch", "loop")
    """torch: torch.nn's plain layer, in the mode of ours; torch-fp32: without TF32; torch-bf16, torch-fp16:
    in that dtype; torch-padded: an LSTM in float16 at sizes for which cuDNN has its fastest kernels; native:
    our layer on the backend of that name; plain: our layer without momentum; loop: the paper's listing, step
    by step in Python, with the momentum."""
    replicas: tuple[int, ...] = ()
    """Also time ours so many times over, each with its own weights, in one run through torch.vmap."""
    modes: tuple[Literal["tf32", "fp32", "autocast-fp16", "autocast-bf16"], ...] = ("tf32",)
    """How ours computes with float32, and with it torch, native, plain, loop and replicas; tf32: as torch is
    set, by default with TF32 on a GPU; fp32: without; autocast-fp16, autocast-bf16: under torch.autocast."""
    lengths: Literal["full", "uniform"] = "full"
    """Of the sequences: all of T, or packed, each drawn from 1 to T, longest first."""
    device: Literal["cpu", "cuda"] | None = None
    """By default cuda, if there is one."""
    dtype: Literal["float32", "float64", "bfloat16", "float16"] = "float32"
    """Of weights and input."""
    threads: int | None = None
    """CPU threads; by default as many as torch takes."""
    repeats: int = 5
    """Rounds, in each of which all are timed one after another."""
    memory: bool = True
    """Measure peak memory; on a CPU in fresh processes, some seconds each."""
    json: Path | None = None
    """Write the results to this file, after each case."""


# Each command is a function `run(options, args)` of the module of this name in `cli`.
COMMANDS: dict[str, Any] = {
    "run": Run,
    "recipes": Recipes,
    "runs": Runs,
    "data": Data,
    "reproduce": Reproduce,
    "report": Report,
    "bench": Bench,
}


def main(args: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    args = sys.argv[1:] if args is None else list(args)
    try:
        return _main(args)
    except KeyboardInterrupt:
        return refuse("stopped", 130)


def _main(args: list[str]) -> int:
    if args == ["--version"]:
        from . import __version__

        print(f"momentumrnn {__version__}")
        return 0
    missing = [name for name in ("tyro", "rich", "safetensors") if find_spec(name) is None]
    if missing:
        return refuse(f"{' and '.join(missing)} should be installed: pip install 'momentumrnn[all]'", 1)
    import tyro

    options = tyro.extras.subcommand_cli_from_dict(
        COMMANDS,
        prog="momentumrnn",
        description="Momentum in recurrent networks. --version prints the version.",
        args=args,
    )
    name = next(name for name, kind in COMMANDS.items() if isinstance(options, kind))
    if isinstance(options, Run | Reproduce) and options.seeds is not None:
        try:
            seeds(options.seeds)  # before the seconds that torch takes
        except ValueError as error:
            return refuse(f"{name}: {error}")
    code: int = import_module(f".cli.{name}", __package__).run(options, args)
    return code


if __name__ == "__main__":
    sys.exit(main())
