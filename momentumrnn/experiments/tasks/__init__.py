"""The tasks by name. A new one: a file here, and its name in TASKS."""

from .base import Data, Part, Rows, Task, generator
from .mnist import MNIST, PMNIST
from .synthetic import Adding, Copying

TASKS: tuple[type[Task], ...] = (Adding, Copying, MNIST, PMNIST)

__all__ = ["MNIST", "PMNIST", "TASKS", "Adding", "Copying", "Data", "Part", "Rows", "Task", "generator"]
