"""How recipes are named, and how tables of values are keyed by these names.

A recipe's name is table/model/task/size, such as "table1/MomentumLSTM/PMNIST/256", and then its variants, if
any. Its row is the name without the table. Two tables that print the same row have two recipes of that row.
"""

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def row_of(name: str) -> str:
    """The row of a recipe: its name without the table.

    >>> row_of("table1/LSTM/MNIST/256")
    'LSTM/MNIST/256'
    """
    return name.partition("/")[2]


def closest(values: Mapping[str, T], row: str) -> T | None:
    """The value for a row, else for the longest beginning of it that has a value; None if none has.

    >>> closest({"LSTM/MNIST": 1, "LSTM/MNIST/256": 2}, "LSTM/MNIST/128")
    1
    """
    while row and row not in values:
        row = row.rpartition("/")[0]
    return values.get(row)
