"""The settings of train.ipynb as fields by ipywidgets, where nothing is made of "#@param": everywhere but on Colab.

A field that is changed changes the variable of its name, so that the cells below find what the form shows.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from notebooks.cells import is_colab

SETTINGS = "#@title 1."  # how the cell of the settings begins
FIELD = re.compile(r"(\w+) = .*#@param ?(\[[^]]*\])?(.*)")
HOW = ("Change what you like, then run the cells below. It holds as long as this kernel: what a new machine is to "
       "find, write into the first cell.")


@dataclass(frozen=True)
class Field:
    """A setting: its variable, the values offered, whether others are taken too, and what the form says of it."""

    name: str
    choices: tuple[str, ...]
    takes_others: bool
    words: str


def fields_of(source: str) -> list[Field]:
    """The settings of a cell, in Colab's notation: NAME = VALUE #@param, after #@markdown lines about it."""
    fields, words = [], []
    for line in source.splitlines():
        if line.startswith("#@markdown "):
            words.append(line.removeprefix("#@markdown "))
        elif found := FIELD.match(line):
            name, choices, rest = found.groups()
            fields.append(Field(name, tuple(json.loads(choices or "[]")), "allow-input: true" in rest, " ".join(words)))
            words = []
    return fields


def show_form(variables: MutableMapping[str, Any]) -> dict[str, Any]:
    """Shows the settings of the notebook whose variables these are, and returns the fields by name; none on Colab.

    The settings' cell is found in IPython's history, as it was last run. The repository is there by now.
    """
    if is_colab():
        return {}
    if importlib.util.find_spec("ipywidgets") is None:
        print("settings     as in the first cell: to change one, edit that cell and run it again\n"
              "             (pip install ipywidgets shows them as a form here)")
        return {}
    ran: Sequence[str] = variables["In"]
    source = next(cell for cell in reversed(ran) if cell.startswith(SETTINGS))
    widgets = importlib.import_module("ipywidgets")
    rows, shown = [widgets.HTML(HOW)], {}
    for field in fields_of(source):
        if field.name != "repository":
            words = re.sub("`([^`]+)`", r"<code>\1</code>", field.words)
            shown[field.name] = _widget(widgets, field, variables)
            rows += [widgets.HTML(f"<small>{words}</small>")] * bool(words) + [shown[field.name]]
    importlib.import_module("IPython.display").display(widgets.VBox(rows))
    return shown


def _widget(widgets: Any, field: Field, variables: MutableMapping[str, Any]) -> Any:
    """The field of a variable, with its value, of the kind that suits it."""
    value = variables[field.name]
    look = {"description": field.name, "value": value, "style": {"description_width": "10em"},
            "layout": {"width": "34em"}}
    if isinstance(value, bool):
        made = widgets.Checkbox(**look)
    elif isinstance(value, int | float):
        made = widgets.FloatText(**look)
    elif field.takes_others:
        made = widgets.Combobox(**look, options=field.choices)
    elif field.choices:
        made = widgets.Dropdown(**look, options=tuple(dict.fromkeys((*field.choices, value))))
    else:
        made = widgets.Text(**look)
    made.observe(lambda change: variables.update({field.name: change["new"]}), names="value")
    return made
