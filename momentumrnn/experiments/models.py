"""The network of an experiment: one recurrent layer and a linear output. Knows nothing of training."""

import json
from pathlib import Path

import torch
from torch import Tensor, nn

from ..constraints import orthogonal
from ..layers import Recurrent
from .config import Config
from .tasks import generator


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
    """The network of a run that is done, on the CPU, with the weights that validation selected.

    own: classes of yours that the run was described by, such as a task.
    """
    from safetensors import safe_open

    with safe_open(Path(folder) / "model.safetensors", "pt") as file:
        config = Config.from_json(json.loads(file.metadata()["run"])["config"], own)
        model = build(config, 0)
        model.load_state_dict({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    return model
