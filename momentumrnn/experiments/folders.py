"""The old home of the errors of runs: kept for one version, for the imports of users."""

from ..moved_names import look_up

_NEW_HOME = dict.fromkeys(("LockedError", "RunError"), "momentumrnn.experiments.runs.store")


def __dir__() -> list[str]:
    return sorted(_NEW_HOME)


__getattr__ = look_up(__name__, _NEW_HOME)
