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
from .run import number, published
from .words import refuse, spelt


def run(options: Any, args: Sequence[str]) -> int:
    """Carry out the command; returns its exit code."""
    console = Console(width=None if sys.stdout.isatty() else 130)
    text = options.find
    rows = [row for name, row in RECIPES.items() if text.lower() in name.lower()]
    if not rows or text in RECIPES:
        try:
            _show(console, recipe(text))
        except ValueError as error:
            return refuse(f"recipes: {error}")
        return 0
    table = Table(box=box.SIMPLE_HEAD)
    for title in ("recipe", "published", "momentum, or cell", "variants"):
        table.add_column(title, no_wrap=title in ("recipe", "published"))
    for row in rows:
        momentum = repr(row.config.momentum or row.config.cell).replace(", eps=1e-08, eps_in_sqrt=True", "")
        table.add_row(row.name, _numbers(row), escape(momentum), ", ".join(row.variants))
    console.print(table)
    known = {name for row in rows for name in row.variants}
    if known:
        console.print("A variant follows the name, after another /:", highlight=False)
    for name, variant in VARIANTS.items():
        if name in known:
            console.print(f"  {name}: {escape(variant.words)}", highlight=False)
    console.print(
        "published: accuracy in %, else a loss; q: quoted by the paper from other works; curve: no number",
        highlight=False,
    )
    console.print(f"Run one: {spelt(['run', '--recipe', 'NAME', '--seeds', '0-4'])}", highlight=False)
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
    unit = " %" if "accuracy" in row.metric else ""
    return ", ".join(number(p) + unit + " q" * p.quoted for p in row.published) or "curve"
