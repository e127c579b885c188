"""The error of a report that can't be made."""


class ReportError(RuntimeError):
    """A report that can't be made; the message says why and what to do."""
