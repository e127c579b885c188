"""The command line: its options, and which command they go to. Torch and rich are imported when one runs."""

import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from .cli.options import check_task, read_seeds, refuse, wait_without_spinning
from .installation import install_command

if TYPE_CHECKING:
    from tyro.conf import Positional, UseAppendAction, arg
else:
    try:
        from tyro.conf import Positional, UseAppendAction, arg
    except ImportError:  # then main says so

        class Positional:
            def __class_getitem__(cls, kind: Any) -> Any:
                return kind

        UseAppendAction = Positional

        def arg(**options: Any) -> None:
            return None


def default(words: str, metavar: str | None = None) -> object:
    """What the help shows as an option's default, where the value here only says that it was not given.

    metavar: what the help shows as the value, by default tyro's word for its type.
    """
    return arg(metavar=metavar, help_behavior_hint=f"(default: {words})")


CACHE = "$MOMENTUMRNN_DATA if it is set, else a folder of the user's cache"
DEVICE = "cuda if there is a GPU, else cpu"
THREADS = "1 for each seed of a small network, else all cores that this process may use, shared by the seeds"
Imports = Annotated[
    UseAppendAction[tuple[tuple[str, ...], ...]],
    arg(name="import", metavar="MODULE|FILE [MODULE|FILE ...]", help_behavior_hint="(default: none)"),
]


@dataclass(frozen=True)
class Run:
    """Train a network. Each seed has a run folder. The same command again continues, or says it is done.

    Give --task or --recipe. With --recipe, an option that you leave out has the recipe's value. With --task,
    it has the default below, which is the paper's for the task. Write tasks, cells and momenta as in Python,
    such as "Adding(length=750)" or "HeavyBall(mu=0.9, step=2.0)". --import makes classes of your own known.
    All settings are shown before training.
    """

    task: Annotated[str, arg(help_behavior_hint="(this or --recipe is required)")] = ""
    """Adding(...), Copying(...), MNIST(...), PMNIST(...) or one of your own, such as "Adding(length=50)"."""
    recipe: Annotated[str, arg(help_behavior_hint="(this or --task is required)")] = ""
    """A training run of the paper, such as figure4/LSTM/Adding/128. momentumrnn recipes lists them all."""
    imports: Imports = ()
    """Makes your own tasks, cells, momenta and inits known.
    Name a module such as my_package.tasks, or a file such as my_task.py."""
    seeds: str = "0"
    """One seed such as 3, or several such as 0-4 or 0,2,7. Several seeds are trained together."""
    cell: Annotated[str, default("LSTM(); with --orthogonal True: Elman(nonlinearity='modrelu')")] = ""
    """LSTM(), GRU(), Elman(nonlinearity='tanh') or ExtrapolatedLSTM(...)."""
    momentum: Annotated[str, default("None")] = ""
    """None, HeavyBall(...), Nesterov(...), ScheduledRestart(...), Adam(...) or RMSProp(...)."""
    hidden_size: Annotated[
        int | None, default("128 for Adding, MNIST and PMNIST; 190 for Copying", "INT")
    ] = None
    """The number of hidden units."""
    bias: Annotated[
        Literal["True", "False", "hh"] | None,
        default("True; with --orthogonal True: hh", "{True,False,hh}"),
    ] = None
    """True: both biases; False: none; hh: the recurrent bias alone."""
    init: Annotated[
        str,
        default("Paper(forget_bias=1.0, identity='first'); with --orthogonal True: Dtriv(angles='cayley')"),
    ] = ""
    """The initialization: Paper(forget_bias=1.0), Torch() or Dtriv()."""
    orthogonal: Annotated[bool | None, default("False", "{True,False}")] = None
    """Keep the recurrent matrix orthogonal, as DTRIV does."""
    optimizer: Annotated[
        Literal["adam", "rmsprop", "sgd"] | None,
        default("adam for Adding; rmsprop for Copying, MNIST and PMNIST", "{adam,rmsprop,sgd}"),
    ] = None
    """An optimizer of torch. Only its learning rate and alpha can be set here."""
    lr: Annotated[
        float | None, default("0.0002 for Adding and Copying; 0.001 for MNIST and PMNIST", "FLOAT")
    ] = None
    """The learning rate."""
    alpha: Annotated[
        float | None, default("0.99 for Adding and Copying; 0.9 for MNIST and PMNIST", "FLOAT")
    ] = None
    """The smoothing constant of rmsprop."""
    orthogonal_lr: Annotated[float | None, default("0.0001", "FLOAT")] = None
    """The learning rate of an orthogonal recurrent matrix, on its tangent space."""
    rebase_every: Annotated[int | None, default("0", "INT")] = None
    """Steps until an orthogonal matrix gets a new base point; 0: never."""
    clip: Annotated[float | None, default("0 for Adding and Copying; 1 for MNIST and PMNIST", "FLOAT")] = None
    """The largest norm of the gradient of one seed; 0: no limit."""
    batch_size: Annotated[int | None, default("50 for Adding; 128 for Copying, MNIST and PMNIST", "INT")] = (
        None
    )
    """Samples in a step of one seed."""
    epochs: Annotated[
        int | None, default("12 for Adding; 70 for Copying; 150 for MNIST and PMNIST", "INT")
    ] = None
    """The number of epochs in all. A run that is done continues if it is given more."""
    precision: Annotated[
        Literal["tf32", "float32", "float64"] | None, default("tf32", "{tf32,float32,float64}")
    ] = None
    """tf32 is float32, but a GPU may round the factors of a recurrent layer's matrix products."""
    deterministic: Annotated[bool | None, default("True", "{True,False}")] = None
    """Give the same numbers each time."""
    log_every: Annotated[int | None, default("50", "INT")] = None
    """Steps between two losses in metrics.jsonl."""
    patience: Annotated[int | None, default("0", "INT")] = None
    """Stop after so many epochs without a better result on the validation set; 0: never."""
    settings: Annotated[
        UseAppendAction[tuple[tuple[str, ...], ...]],
        arg(name="set", metavar="PATH=VALUE [PATH=VALUE ...]", help_behavior_hint="(default: none)"),
    ] = ()
    """Change any setting, also one inside a description: --set momentum.mu=0.3 task.permutation=seed.
    It applies after the options above. A recipe with other settings is named by what differs."""
    changed_source: Literal["refuse", "new"] = "refuse"
    """What to do if a class of your own has changed since a run with the same settings was begun.
    refuse: train nothing, and name both ways out. new: start a new run beside it."""
    root: Path = Path("runs")
    """The folder of the run folders."""
    data: Annotated[Path | None, default(CACHE, "PATH")] = None
    """The folder of the data sets."""
    device: Annotated[str | None, default(DEVICE, "NAME")] = None
    """Where to train: cpu, cuda, or one GPU of several, such as cuda:1."""
    threads: Annotated[int | None, default(THREADS, "INT")] = None
    """CPU threads, of all seeds together. A run that goes on has by default those that it had."""
    tensorboard: bool = False
    """Also write TensorBoard's files into the run folders."""


@dataclass(frozen=True)
class Recipes:
    """List the training runs of the paper, each with its published number."""

    find: Positional[Annotated[str, default("all")]] = ""
    """Only names that contain this text, such as PMNIST/256. A whole name shows all its settings."""


@dataclass(frozen=True)
class Runs:
    """List what has been trained, where, and with what result."""

    root: Path = Path("runs")
    """The folder of the run folders."""
    imports: Imports = ()
    """A module or a file with classes of your own, by which runs are described."""


@dataclass(frozen=True)
class Data:
    """Download a data set and verify it. Adding and Copying need no data."""

    action: Positional[Literal["get"]]
    """get: download the files that are missing."""
    name: Positional[Literal["mnist"]]
    """mnist: images of handwritten digits."""
    data: Annotated[Path | None, default(CACHE, "PATH")] = None
    """The folder to download to."""


@dataclass(frozen=True)
class Reproduce:
    """Train what a table or figure of the paper still lacks, then make the report.

    What is done is not trained again. You may stop the command at any moment: the same command continues.
    """

    what: Positional[Annotated[str, arg(metavar="WHAT")]]
    """table1 to table16, figure1 to figure11, or all.
    demo: a small comparison that needs no data set and takes minutes on a CPU."""
    seeds: Annotated[str | None, default("0-4; for the demo 0-2", "STR")] = None
    """The seeds of each row, such as 3, 0-4 or 0,2,7. They are trained together."""
    epochs: Annotated[int | None, default("the paper's", "INT")] = None
    """The epochs of each row. A row with fewer than the paper's is drawn as a curve, without a verdict."""
    log_every: Annotated[int | None, default("50", "INT")] = None
    """Steps between two losses in metrics.jsonl. A larger number makes smaller files."""
    rows: Annotated[tuple[str, ...], default("all")] = ()
    """Only rows whose name contains one of these texts, such as PMNIST/256 or MomentumLSTM.
    A whole name selects that row and its variants."""
    also: Annotated[tuple[str, ...], default("none")] = ()
    """Variants to train beside each row: as-released, controls, or single ones such as same-gain."""
    plan: bool = False
    """Train nothing. Say what would be trained, what is there, and how long the rest would take here."""
    root: Path = Path("runs")
    """The folder of the run folders."""
    out: Path = Path("report")
    """The folder of the report."""
    bench: Annotated[tuple[Path, ...], default("the files bench-*.json beside the run folders")] = ()
    """Files of momentumrnn bench --json to show in the report."""
    open: bool = False
    """Open the page in a browser."""
    data: Annotated[Path | None, default(CACHE, "PATH")] = None
    """The folder of the data sets."""
    device: Annotated[str | None, default(f"{DEVICE}; for the demo cpu", "NAME")] = None
    """Where to train: cpu, cuda, or one GPU of several, such as cuda:1."""
    threads: Annotated[int | None, default(THREADS, "INT")] = None
    """CPU threads, of all seeds together. A run that goes on has by default those that it had."""


@dataclass(frozen=True)
class Report:
    """Make one page of all training runs: tables, figures and verdicts beside the paper's numbers."""

    root: tuple[Path, ...] = (Path("runs"),)
    """One or more folders of run folders."""
    out: Path = Path("report")
    """The folder of the report. It gets report.html, results.md, and the folders figures and tables."""
    bench: Annotated[tuple[Path, ...], default("the files bench-*.json beside the run folders")] = ()
    """Files of momentumrnn bench --json to show in the report, or folders of such files."""
    imports: Imports = ()
    """A module or a file with classes of your own, by which runs are described."""
    open: bool = False
    """Open the page in a browser."""


@dataclass(frozen=True)
class Bench:
    """Time layers against torch.nn: first parity, then forward, forward + backward, and peak memory."""

    shapes: Annotated[
        tuple[str, ...] | None,
        default("pmnist128 timit158; none if there is a --shape", "[NAME [NAME ...]]"),
    ] = None
    """Shapes of the paper, the number of hidden units in each name:
    pmnist128, pmnist256, lstm512, mnist-gru256,
    timit84, timit120, timit158, copy190-1k, copy190-2k,
    adding128, ptb1150, ptb400,
    dtriv170, dtriv360, dtriv512, dtriv224, dtriv322,
    srlstm128, srlstm256: SRLSTM as in the paper's code, with --momentum None."""
    shape: Annotated[
        UseAppendAction[tuple[tuple[str, ...], ...]], default("none", "T,B,D,H [T,B,D,H ...]")
    ] = ()
    """A shape of your own, such as 311,37,5,97; or several.
    T: time steps, B: sequences, D: input features, H: hidden units.
    The cell is lstm unless --cells names another."""
    cells: Annotated[tuple[Literal["lstm", "gru", "rnn"], ...], default("the cell of each shape")] = ()
    """Time each shape with these cells."""
    momentum: tuple[str, ...] = ("HeavyBall",)
    """As in Python: "HeavyBall(mu=0.9)", "Adam(mu=0.6, beta=0.9)", Nesterov, None.
    If None is among them, the others are compared with it too."""
    backend: str = "auto"
    """auto takes the fastest backend that can run the layer. Or name one, such as native or reference."""
    rivals: tuple[
        Literal["torch", "torch-fp32", "torch-bf16", "torch-fp16", "torch-padded", "native", "plain", "loop"],
        ...,
    ] = ("torch", "loop")
    """What our layer is compared with.
    torch: torch.nn's layer, without momentum, in the mode of ours.
    torch-fp32: the same without TF32.
    torch-bf16, torch-fp16: the same in that dtype.
    torch-padded: an LSTM in float16, padded to cuDNN's fastest sizes.
    native: our layer on the native backend.
    plain: our layer without momentum.
    loop: the paper's listing with momentum, step by step in Python."""
    replicas: Annotated[tuple[int, ...], default("none")] = ()
    """Also time this many copies of our layer in one call of torch.vmap, each with its own weights."""
    modes: tuple[Literal["tf32", "fp32", "autocast-fp16", "autocast-bf16"], ...] = ("tf32",)
    """How our layer computes with float32.
    tf32: as torch is set, by default with TF32 on a GPU.
    fp32: without TF32.
    autocast-fp16, autocast-bf16: under torch.autocast.
    The rivals torch, native, plain, loop and all replicas use the same mode."""
    lengths: Literal["full", "uniform"] = "full"
    """full: every sequence has T steps.
    uniform: packed sequences, each with a random length from 1 to T."""
    device: Annotated[Literal["cpu", "cuda"] | None, default(DEVICE, "{cpu,cuda}")] = None
    """Where to compute."""
    dtype: Literal["float32", "float64", "bfloat16", "float16"] = "float32"
    """The dtype of weights and input."""
    threads: Annotated[int | None, default("torch's choice", "INT")] = None
    """CPU threads."""
    repeats: int = 5
    """Rounds. In each round all layers are timed, one after another."""
    memory: bool = True
    """Measure peak memory. On a CPU this starts new processes, which takes some seconds for each layer."""
    json: Annotated[Path | None, default("none", "PATH")] = None
    """Write the results to this file after each case."""


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
        try:
            return _main(args)
        finally:
            # What is still in the buffer should fail here, not when Python ends.
            print(end="", flush=True)
    except KeyboardInterrupt:
        return refuse("stopped", 130)
    except BrokenPipeError:
        _drop_output()
        return 141  # as a shell reports a program that SIGPIPE ended


def _drop_output() -> None:
    """Send standard output nowhere, since its reader has ended, as in `momentumrnn recipes | head`."""
    # Python flushes the buffer once more when it ends. A stream that a test put there has no number.
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _main(args: list[str]) -> int:
    if args == ["--version"]:
        from . import __version__

        print(f"momentumrnn {__version__}")
        return 0
    missing = [name for name in ("tyro", "rich", "safetensors") if find_spec(name) is None]
    if missing:
        return refuse(f"{' and '.join(missing)} should be installed: {install_command('all')}", 1)
    import tyro

    options = tyro.extras.subcommand_cli_from_dict(
        COMMANDS,
        prog="momentumrnn",
        description="Momentum in recurrent networks. --version prints the version.",
        args=args,
    )
    name = next(name for name, kind in COMMANDS.items() if isinstance(options, kind))
    try:
        # These come before the seconds that the import of torch takes.
        if isinstance(options, Run):
            check_task(options.task, options.recipe)
        if isinstance(options, Run | Reproduce) and options.seeds is not None:
            read_seeds(options.seeds)
    except ValueError as error:
        return refuse(f"{name}: {error}")
    if isinstance(options, Run | Reproduce):
        wait_without_spinning(os.environ)
    code: int = import_module(f".cli.{name}", __package__).run(options, args)
    return code


if __name__ == "__main__":
    sys.exit(main())
