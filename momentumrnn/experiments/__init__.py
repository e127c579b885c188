"""Experiments: tasks, what is trained on them and how, and the recipes of the paper."""

from .config import Config, configure
from .models import load
from .tasks import MNIST, PMNIST, Adding, Copying, Task
from .trainer import train

__all__ = ["MNIST", "PMNIST", "Adding", "Config", "Copying", "Task", "configure", "load", "train"]
