"""`monograph recipes`: what can be trained by name."""

from monograph.commands.terminal import print_rows, print_title
from monograph.config.docs import find_summary
from monograph.recipes.catalog import find_recipes
from monograph.recipes.size import count_parameters
from monograph.system.console import print_plain


def list_recipes() -> int:
    """Name, size and one line about each recipe."""
    rows = []
    for name, recipe in find_recipes().items():
        size = count_parameters(recipe().model)
        rows.append((name, str(size) if size else "", find_summary(recipe)))
    print_title("Recipes", "name, parameters, what it is")
    print_rows(rows, ("bold cyan", "green", "none"))
    print_plain("\nTrain one:      monograph train RECIPE")
    print_plain("See its values: monograph config RECIPE")
    print_plain("Your own:       monograph train package.module:function")
    return 0
