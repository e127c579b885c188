"""The command `momentumrnn recipes`: the rows of the paper, and what is published."""

import sys
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..experiments.paper.controls import VARIANTS
from ..experiments.paper.recipes import RECIPES, Recipe, recipe
from .options import command_line, refuse


def run(options: Any, args: Sequence[str]) -> int:
    """Carry out the command; returns its exit code."""
    console = Console(width=None if sys.stdout.isatty() else 130)
    text = options.find
    matches = [match for name, match in RECIPES.items() if text.lower() in name.lower()]
    if not matches or text in RECIPES:
        try:
            _show(console, recipe(text))
        except ValueError as error:
            return refuse(f"recipes: {error}")
        return 0
    table = Table(box=box.SIMPLE_HEAD)
    for title in ("recipe", "published", "momentum, or cell", "variants"):
        table.add_column(title, no_wrap=title in ("recipe", "published"))
    for match in matches:
        momentum = repr(match.config.momentum or match.config.cell)
        short = momentum.replace(", eps=1e-08, eps_in_sqrt=True", "")
        table.add_row(match.name, _numbers(match), escape(short), ", ".join(match.variants))
    console.print(table)
    variants = {name for match in matches for name in match.variants}
    if variants:
        console.print("A variant follows the name, after another /:", highlight=False)
    for name, variant in VARIANTS.items():
        if name in variants:
            console.print(f"  {name}: {escape(variant.words)}", highlight=False)
    console.print(
        "published: accuracy in %, else a loss; q: quoted by the paper from other works; curve: no number",
        highlight=False,
    )
    console.print(f"Run one: {command_line(['run', '--recipe', 'NAME', '--seeds', '0-4'])}", highlight=False)
    return 0


def _show(console: Console, shown: Recipe) -> None:
    """One recipe with all its settings."""
    console.print(f"[bold]{shown.name}[/]: {escape(shown.published_text)}", highlight=False, soft_wrap=True)
    if shown.note:
        console.print(escape(shown.note), highlight=False, soft_wrap=True)
    for field in fields(shown.config):
        console.print(f"  {field.name} = {escape(repr(getattr(shown.config, field.name)))}", highlight=False)
    if shown.variants:
        console.print(f"variants: {', '.join(shown.variants)}", highlight=False)
    console.print(f"momentumrnn run --recipe {shown.name} --seeds 0-4", highlight=False)


def _numbers(shown: Recipe) -> str:
    """The published numbers of a recipe, or that the paper has a curve."""
    unit = " %" if "accuracy" in shown.metric else ""
    return ", ".join(number.text + unit + " q" * number.quoted for number in shown.published) or "curve"
