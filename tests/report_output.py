"""What a report says of runs, for tests."""

import math
from importlib import import_module

import pytest
from run_folders import ROW

from momentumrnn.experiments.paper.tables import EXHIBITS, exhibit
from momentumrnn.report import text
from momentumrnn.report.result_tables import results

# The package has a function of this name, too.
content_module = import_module("momentumrnn.report.content")


def row(runs, name=ROW, table="table11"):
    (wanted,) = [line for line in results(exhibit(table), runs).rows if line.data["recipe"] == name]
    return wanted


def said(runs, *names):
    """What the report says with these exhibits alone: all of them take ten times as long.

    In every format but pictures; refuses what is no number.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(content_module, "EXHIBITS", {name: EXHIBITS[name] for name in names or ("table11",)})
        whole = content_module.content(runs)
    for table in (table for section in whole.sections for table in section.tables):
        text.as_csv(table)
        text.as_latex(table)
    for line in (line for section in whole.sections for plot in section.plots for line in plot.series):
        assert line.middle
        for value in (*line.middle, *line.low, *line.high, *line.epochs):
            assert math.isfinite(value)
    return text.results(whole, [])
