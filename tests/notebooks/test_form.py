"""notebooks/form.py: the fields of train.ipynb's settings, and what a change of one does."""

import json
import types

import pytest

from notebooks import form
from notebooks.cells import ROOT


@pytest.fixture(scope="module")
def source() -> str:
    cells = json.loads((ROOT / "notebooks/train.ipynb").read_text(encoding="utf-8"))["cells"]
    return next("".join(cell["source"]) for cell in cells if cell["source"][0].startswith(form.SETTINGS))


@pytest.fixture
def variables(source):
    found = {"In": ["", source, "show_form(globals())"]}
    exec(source, found)
    return found


def test_every_setting_of_the_notebook_is_a_field(source, variables):
    fields = {field.name: field for field in form.fields_of(source)}
    assert fields.keys() == variables.keys() - {"In", "__builtins__"}
    assert fields["corpus"].takes_others
    assert "shakespeare" in fields["corpus"].choices
    assert not fields["model_size"].takes_others
    assert fields["use_gpu"] == form.Field("use_gpu", (), False,
                                           "Insist on a GPU, instead of training for hours on a processor")


def test_a_changed_field_is_a_changed_variable(variables, capsys):
    pytest.importorskip("ipywidgets", reason="run: python -m pip install ipywidgets")
    pytest.importorskip("IPython")
    variables["model_size"] = "gpt2_xl"  # written into the cell: not one of those offered
    fields = form.show_form(variables)
    kinds = {name: type(fields[name]).__name__ for name in ("corpus", "model_size", "use_gpu", "max_minutes", "prompt")}
    assert kinds == {"corpus": "Combobox", "model_size": "Dropdown", "use_gpu": "Checkbox", "max_minutes": "FloatText",
                     "prompt": "Text"}
    assert {name: field.value for name, field in fields.items()} == {
        name: variables[name] for name in variables.keys() - {"In", "__builtins__", "repository"}}
    fields["corpus"].value, fields["use_gpu"].value, fields["max_minutes"].value = "my.txt", False, 7.5
    assert (variables["corpus"], variables["use_gpu"], variables["max_minutes"]) == ("my.txt", False, 7.5)


def test_colab_has_a_form_and_where_there_is_no_package_the_cell_is_edited(variables, monkeypatch, capsys):
    monkeypatch.setattr(form, "is_colab", lambda: True)
    assert form.show_form(variables) == {}
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(form, "is_colab", lambda: False)
    monkeypatch.setattr(form.importlib, "util", types.SimpleNamespace(find_spec=lambda name: None))
    assert form.show_form(variables) == {}
    assert "edit that cell" in capsys.readouterr().out
