"""Experiments: tasks, what is trained on them and how, and the recipes of the paper."""

from .config import Config, configure
from .engine.train import train
from .engine.watcher import Watcher
from .models import load
from .runs.store import RunError
from .settings import change, differences
from .tasks import MNIST, PMNIST, Adding, Copying, Task

__all__ = [
    "MNIST",
    "PMNIST",
    "Adding",
    "Config",
    "Copying",
    "RunError",
    "Task",
    "Watcher",
    "change",
    "configure",
    "differences",
    "load",
    "train",
]
