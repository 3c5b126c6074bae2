"""show() renders the package's own source; notebook_errors() finds errors in cells and in widget state."""

from __future__ import annotations

import functools
import inspect
import json

import IPython.display
import pytest
import torch
from IPython.core.formatters import DisplayFormatter
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

import annotated_transformer
from annotated_transformer import attention, causal_mask, exercises, multi_head_attention
from annotated_transformer.notebook import WIDGET_STATE, Source, notebook_errors, show
from tools.run_notebooks import attentive_client


def shown(obj):
    """The data that IPython makes of what show(obj) displays."""
    with pytest.MonkeyPatch.context() as patch:
        displayed = []
        patch.setattr(IPython.display, "display", displayed.append)
        assert show(obj) is None
    (output,) = displayed
    return DisplayFormatter().format(output)[0]


def test_show_gives_the_source_as_text_and_as_a_fence_under_the_name_of_its_file():
    code = inspect.getsource(causal_mask).rstrip()
    assert shown(causal_mask) == {
        "text/plain": f"# annotated_transformer/attention.py\n{code}",
        "text/markdown": f"`annotated_transformer/attention.py`\n\n```python\n{code}\n```",
    }


def test_show_is_exported_lazily_and_shows_the_same_each_time():
    assert annotated_transformer.show is show
    assert shown(multi_head_attention.MultiHeadAttention) == shown(multi_head_attention.MultiHeadAttention)


def test_show_prints_the_source_where_there_is_no_notebook(capsys):
    show(causal_mask)
    assert capsys.readouterr().out == shown(causal_mask)["text/plain"] + "\n"


def test_show_takes_classes_and_methods_and_moves_a_method_to_the_margin():
    module = multi_head_attention.MultiHeadAttention(6, 3)
    assert Source(type(module)).code.startswith("class MultiHeadAttention(nn.Module):")
    assert Source(type(module).forward).code.startswith("def forward(")
    assert Source(module.forward).code == Source(type(module).forward).code
    assert Source(type(module).from_torch).code.startswith("@classmethod\ndef from_torch(")


def test_a_fence_is_longer_than_any_fence_in_the_code(monkeypatch):
    source = Source(causal_mask)
    source.code = 'def f():\n    """\n    ````\n    """'
    assert source.markdown().endswith(f"\n\n`````python\n{source.code}\n`````")


def test_a_wrapped_function_shows_what_it_wraps():
    wrapper = functools.wraps(causal_mask)(lambda *args: causal_mask(*args))
    assert Source(wrapper).code == Source(causal_mask).code


@pytest.mark.parametrize(
    "obj, kind",
    [
        (3, "int"),
        (None, "NoneType"),
        ("causal_mask", "str"),
        (attention, "module"),
        (torch.nn.Linear, "Linear of torch.nn.modules.linear"),
        (torch.nn.functional.relu, "relu of torch.nn.functional"),
        (inspect.getsource, "getsource of inspect"),
        (len, "len of builtins"),
        (multi_head_attention.MultiHeadAttention(6, 3), "MultiHeadAttention"),
        (functools.partial(causal_mask, 3), "partial"),
    ],
)
def test_show_refuses_what_is_not_the_packages_own(obj, kind):
    with pytest.raises(
        TypeError, match="must be a function, class or method of annotated_transformer, got "
    ) as error:
        show(obj)
    assert str(error.value).startswith("obj (") and str(error.value).endswith(f"got {kind}")


def test_a_look_alike_package_is_not_ours():
    fake = type("Fake", (), {"__module__": "annotated_transformer_extras.attention"})
    with pytest.raises(TypeError, match="got Fake of annotated_transformer_extras.attention"):
        show(fake)


def error_output(name="ValueError", value="broken"):
    return new_output("error", ename=name, evalue=value, traceback=[])


def test_an_error_in_a_cell_is_listed_with_the_cells_number():
    cells = [
        new_markdown_cell("text"),
        new_code_cell("1 / 0", outputs=[error_output("ZeroDivisionError", "division")]),
    ]
    assert notebook_errors(new_notebook(cells=cells)) == ["cell 2: ZeroDivisionError: division"]


def test_an_error_that_a_cell_is_meant_to_show_does_not_count():
    cell = new_code_cell("1 / 0", outputs=[error_output()], metadata={"tags": ["raises-exception"]})
    assert notebook_errors(new_notebook(cells=[cell])) == []


def test_an_error_in_widget_state_is_listed_also_beside_a_cell_that_is_meant_to_fail():
    state = {"a": {"model_name": "IntSliderModel", "state": {"value": 3}}}
    state["b"] = {"model_name": "OutputModel", "state": {"outputs": [error_output()]}}
    cell = new_code_cell("1 / 0", outputs=[error_output()], metadata={"tags": ["raises-exception"]})
    nb = new_notebook(cells=[cell], metadata={"widgets": {WIDGET_STATE: {"state": state}}})
    assert notebook_errors(nb) == ["OutputModel: ValueError: broken"]
    assert notebook_errors(json.loads(json.dumps(nb))) == ["OutputModel: ValueError: broken"]


@pytest.mark.parametrize("nb", [None, "chapter.ipynb", {"metadata": {}}, [new_code_cell("1")]])
def test_what_is_not_a_notebook_is_refused(nb):
    with pytest.raises(TypeError, match=r"nb \(.*\) must be a notebook, a mapping with cells, got "):
        notebook_errors(nb)


@pytest.mark.parametrize(
    "body, wrong",
    [
        ("interact(show, k=(1, 5));", True),
        ("with W.Output(): show(3)", True),
        ("button = W.Button(); out = W.Output(); button.on_click(out.capture()(show)); button.click()", True),
        ("interact(lambda k: print(k), k=(1, 5));", False),
        ("with W.Output(): print(3)", False),
    ],
)
def test_errors_that_widgets_swallow_are_found(body, wrong):
    setup = "import ipywidgets as W\nfrom ipywidgets import interact\n"
    broken = "def show(k=3):\n    raise ValueError('broken')\n"
    nb = new_notebook(cells=[new_code_cell(setup + broken + body)])
    attentive_client(nb, 120).execute()
    assert notebook_errors(nb) == (["OutputModel: ValueError: broken"] if wrong else [])


def test_the_public_functions_of_the_exercise_checks_can_be_shown():
    assert Source(exercises.check).path == "annotated_transformer/exercises.py"
