"""The old home of `train` and of what watches it: kept for one version, for the imports of users."""

from ..moved_names import look_up

_ENGINE = "momentumrnn.experiments.engine"
_NEW_HOME = {
    "Interrupted": f"{_ENGINE}.signals",
    "Run": f"{_ENGINE}.run",
    "Watcher": f"{_ENGINE}.watcher",
    "train": f"{_ENGINE}.train",
}


def __dir__() -> list[str]:
    return sorted(_NEW_HOME)


__getattr__ = look_up(__name__, _NEW_HOME)
