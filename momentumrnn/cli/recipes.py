"""The command `momentumrnn recipes`: the rows of the paper, and what is published."""

import sys
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..experiments.paper import RECIPES, VARIANTS, Recipe, recipe
from ..spelling import nearest
from .run import number, published
from .words import refuse


def run(options: Any, args: Sequence[str]) -> int:
    """Carry out the command; returns its exit code."""
    console = Console(width=None if sys.stdout.isatty() else 130)
    text = options.find
    rows = [row for name, row in RECIPES.items() if text.lower() in name.lower()]
    if not rows or text in RECIPES:
        try:
            _show(console, recipe(text))
        except ValueError as error:
            hint = "" if "did you mean" in str(error) else nearest(text, RECIPES)
            return refuse(f"recipes: {error}{hint}")
        return 0
    table = Table(box=box.SIMPLE_HEAD)
    for title in ("recipe", "published", "momentum, or cell", "variants"):
        table.add_column(title, no_wrap=title in ("recipe", "published"))
    for row in rows:
        momentum = repr(row.config.momentum) if row.config.momentum else repr(row.config.cell)
        table.add_row(row.name, _numbers(row), escape(momentum), ", ".join(row.variants))
    console.print(table)
    console.print("A variant follows the name, after another /:", highlight=False)
    for name, variant in VARIANTS.items():
        console.print(f"  {name}: {escape(variant.words)}", highlight=False)
    console.print(
        "q: quoted by the paper from other works. Run one: momentumrnn run --recipe NAME --seeds 0-4"
    )
    return 0


def _show(console: Console, row: Recipe) -> None:
    console.print(f"[bold]{row.name}[/]: {escape(published(row))}", highlight=False, soft_wrap=True)
    if row.note:
        console.print(escape(row.note), highlight=False, soft_wrap=True)
    for field in fields(row.config):
        console.print(f"  {field.name} = {escape(repr(getattr(row.config, field.name)))}", highlight=False)
    if row.variants:
        console.print(f"variants: {', '.join(row.variants)}", highlight=False)
    console.print(f"momentumrnn run --recipe {row.name} --seeds 0-4", highlight=False)


def _numbers(row: Recipe) -> str:
    return ", ".join(number(p) + " q" * p.quoted for p in row.published) or "curve"
