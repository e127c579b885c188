"""The network of an experiment: one recurrent layer and a linear output. Knows nothing of training."""

import json
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from ..constraints import orthogonal
from ..installation import install_command
from ..layers import Recurrent
from .config import Config, SchemaError
from .runs.checksums import ChecksumError, open_weights
from .runs.store import RunError
from .tasks import generator

_REPAIR = "delete it and give the command of the run again, which writes it from the checkpoint"


class Model(nn.Module):
    """Reads sequences (T, B, D); answers at the last step, (B, outputs), or at each, (T, B, outputs)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        task, size = config.task, config.hidden_size
        self.every_step = task.every_step
        self.rnn = Recurrent(
            config.cell,
            task.features,
            size,
            bias=config.bias,
            momentum=config.momentum,
            init=config.init,
            dtype=torch.float32,
        )
        if config.orthogonal:
            orthogonal(self.rnn, init=None)
        self.head = nn.Linear(size, task.outputs, dtype=torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        if not x.is_floating_point():
            raise TypeError(f"x should have a floating-point dtype, got {x.dtype}: indices need an encoding")
        y, final = self.rnn(x.to(self.head.weight.dtype))
        if not self.every_step:
            y = (final if isinstance(final, Tensor) else final[0])[-1]
        out: Tensor = self.head(y)
        return out


def build(config: Config, seed: int) -> Model:
    """The network as a seed begins with it, on the CPU; the same on every machine, whatever ran before."""
    with torch.random.fork_rng([]):
        # torch.manual_seed would seed GPUs too.
        torch.default_generator.manual_seed(generator("init", seed).initial_seed())
        model = Model(config)
    # Drawn in float32, so that a seed begins with the same weights in every precision.
    return model.double() if config.precision == "float64" else model


def load(folder: str | Path, *own: type) -> Model:
    """The network of a run that is over, on the CPU, with the weights that validation selected.

    own: classes of yours that the run was described by, such as a task. Damaged weights are refused.
    """
    path = Path(folder) / "model.safetensors"
    try:
        weights, metadata, _ = open_weights(path)
        note = json.loads(metadata["run"])
        config = Config.from_json(note["config"], own, note.get("schema", 1))
        model = build(config, 0)
        model.load_state_dict(weights)
    except ImportError:
        raise RunError(f"safetensors should be installed: {install_command('all')}") from None
    except FileNotFoundError:
        raise RunError(f"{path} is not there: load takes the folder of a run that is over") from None
    except OSError as error:
        raise RunError(f"{path} can't be read: {error.strerror}") from None
    except ChecksumError as error:
        raise RunError(f"{path} {error}: {_REPAIR}") from None
    except SchemaError as error:
        raise RunError(f"{path} can't be read: {error}") from None
    except (AttributeError, KeyError, TypeError, RuntimeError, json.JSONDecodeError) as error:
        reason = " ".join(str(error).split())
        raise RunError(
            f"{path} should have the weights of a run, got something else ({reason}): {_REPAIR}"
        ) from None
    changed = sorted(
        name for name, digest in config.sources.items() if note.get("sources", {}).get(name) != digest
    )
    if changed:
        names = ", ".join(changed)
        warnings.warn(
            f"{names} changed since {folder} was trained, or its source was not written down", stacklevel=2
        )
    return model
