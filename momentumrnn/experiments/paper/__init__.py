"""The paper as data: what was run and printed, the controls that it lacks, its tables and figures."""

from .recipes import RECIPES, recipe, variants

__all__ = ["RECIPES", "recipe", "variants"]
