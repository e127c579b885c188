"""Printed numbers that no recipe has: on speech and text, times, memory, and the grids of mu and step."""

ValidationAndTest = dict[tuple[str, int], tuple[tuple[float, ...], ...]]
"""By model and size: the numbers on validation data, then on test data. Each is the value, its deviation, and
the value that the paper quotes, if any; empty where the paper has none.
"""

# Tables 2, 5 and 12: mean squared errors on TIMIT.
SPEECH: ValidationAndTest = {
    ("LSTM", 84): ((14.87, 0.15, 15.42), (14.94, 0.15, 14.30)),
    ("LSTM", 120): ((11.77, 0.14, 13.93), (11.83, 0.12, 12.95)),
    ("LSTM", 158): ((9.33, 0.14, 13.66), (9.37, 0.14, 12.62)),
    ("MomentumLSTM", 84): ((10.90, 0.19), (10.98, 0.18)),
    ("MomentumLSTM", 120): ((8.00, 0.30), (8.04, 0.30)),
    ("MomentumLSTM", 158): ((5.86, 0.14), (5.87, 0.15)),
    ("AdamLSTM", 158): ((8.66, 0.15), (8.69, 0.14)),
    ("RMSPropLSTM", 158): ((9.13, 0.33), (9.17, 0.33)),
    ("SRLSTM", 158): ((5.81, 0.10), (5.83, 0.10)),
    ("AdamLSTM", 120): ((10.91, 0.08), (10.96, 0.08)),
    ("RMSPropLSTM", 120): ((11.83, 0.20), (11.90, 0.19)),
    ("SRLSTM", 120): ((8.15, 0.26), (8.21, 0.26)),
    ("DTRIV", 224): ((4.74, 0.06, 4.75), (4.70, 0.07, 4.71)),
    ("DTRIV", 322): ((1.92, 0.17, 3.39), (1.87, 0.17, 3.76)),
    ("MomentumDTRIV", 224): ((3.10, 0.09), (3.06, 0.09)),
    ("MomentumDTRIV", 322): ((1.21, 0.05), (1.17, 0.05)),
}
# Table 3 and section 3.5: perplexities on Penn Treebank.
TEXT: ValidationAndTest = {
    ("LSTM", 1150): ((61.96, 0.83), (59.71, 0.99, 58.80)),
    ("MomentumLSTM", 1150): ((60.71, 0.24), (58.62, 0.22)),
    ("SRLSTM", 1150): ((61.12, 0.68), (58.83, 0.62)),
    ("AdamLSTM", 1150): ((), (61.11, 0.31)),
    ("RMSPropLSTM", 1150): ((), (64.53, 0.20)),
}
# Table 14, permuted MNIST with n = 256: milliseconds a sample, in training and in evaluation.
TIMES: dict[str, tuple[float, ...]] = {
    "LSTM": (6.18, 2.52),
    "MomentumLSTM": (7.43, 3.16),
    "AdamLSTM": (10.34, 4.07),
    "RMSPropLSTM": (9.94, 3.96),
    "SRLSTM": (8.34, 3.16),
}
# Table 15, of the same networks: MB a sample, in training and in evaluation.
MEMORY: dict[str, tuple[float, ...]] = {
    "LSTM": (15.93, 7.51),
    "MomentumLSTM": (15.95, 7.51),
    "AdamLSTM": (25.13, 7.52),
    "RMSPropLSTM": (25.13, 7.52),
    "SRLSTM": (15.95, 7.51),
}
# Table 16, of the same networks: minutes to the goal.
MINUTES: dict[str, tuple[float, ...]] = {
    "LSTM": (767.0,),
    "MomentumLSTM": (551.0,),
    "AdamLSTM": (225.0,),
    "RMSPropLSTM": (416.0,),
    "SRLSTM": (348.0,),
}
GOAL = 0.9229
"""The test accuracy to which table 16 counts the time."""
# Figure 7, whose numbers are in the released notebook: a row for each mu, a column for each step.
GRID_MU = (0.9, 0.6, 0.3, 0.1, 0.0)
GRID_STEP = (0.1, 0.3, 0.6, 0.9, 1.0)
GRIDS = {
    "MNIST, n = 256: accuracy, %": (
        (99.08, 98.90, 98.68, 98.22, 98.24),
        (86.88, 99.08, 99.08, 99.00, 99.03),
        (67.30, 84.17, 65.73, 99.03, 99.03),
        (51.67, 79.25, 84.74, 85.50, 99.07),
        (37.39, 83.58, 83.49, 81.54, 98.90),
    ),
    "TIMIT, n = 158: mean squared error": (
        (121.07, 38.92, 45.47, 51.19, 51.66),
        (7.24, 8.84, 10.46, 11.89, 12.25),
        (5.87, 6.89, 8.73, 9.53, 9.86),
        (5.86, 7.05, 8.01, 9.22, 9.61),
        (6.00, 7.10, 7.85, 9.05, 9.33),
    ),
    "Penn Treebank: test perplexity": (
        (490.78, 585.13, 642.02, 641.60, 642.07),
        (233.88, 212.99, 115.95, 127.74, 117.48),
        (639.81, 64.60, 66.78, 74.74, 78.54),
        (640.09, 82.96, 58.98, 61.16, 61.05),
        (640.14, 89.88, 58.62, 61.30, 59.71),
    ),
}
