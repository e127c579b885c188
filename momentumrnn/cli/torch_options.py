"""What commands share about options that can't be read without torch: the device, classes of the user's."""

from collections.abc import Sequence

import torch

from ..experiments import user_classes
from ..experiments.engine.devices import choose_device
from ..experiments.runs.store import RunError
from .options import given_texts


def read_device(name: str | None) -> torch.device:
    """The device that --device names; without a name a GPU, if there is one."""
    try:
        return choose_device(name)
    except (ValueError, RunError) as error:
        raise ValueError(f"--{error}") from None


def own_classes(groups: Sequence[Sequence[str]]) -> tuple[type, ...]:
    """The user's own classes in the modules and files that --import names."""
    names = given_texts(groups)
    return user_classes.import_classes(names) if names else ()
