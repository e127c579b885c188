"""The old home of the report: kept for one version, for the imports of users."""

from ..moved_names import look_up

_NEW_HOME = dict.fromkeys(("ReportError", "report"), "momentumrnn.report")


def __dir__() -> list[str]:
    return sorted(_NEW_HOME)


__getattr__ = look_up(__name__, _NEW_HOME)
