"""The flow of information: paths, steps, work and reach as the package and its layers have them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from figures import MOVE_SLIDER, in_node  # noqa: E402

from annotated_transformer.interactive.information_flow import KINDS, information_flow, work  # noqa: E402
from annotated_transformer.sequence_models import (  # noqa: E402
    Attention,
    Convolution,
    Recurrence,
    count_operations,
    path_length,
    sequential_steps,
)


@pytest.mark.parametrize("kind", KINDS)
def test_paths_and_steps_are_those_of_the_package(kind):
    cases = [(distance, kernel) for distance in range(16) for kernel in range(2, 7)]
    script = f"{json.dumps(cases)}.map(([d, k]) => module.pathLength({json.dumps(kind)}, d, k))"
    assert in_node("information_flow", script) == [path_length(kind, d, k) for d, k in cases]
    script = f"[3, 8, 16].map((n) => module.sequentialSteps({json.dumps(kind)}, n))"
    assert in_node("information_flow", script) == [sequential_steps(kind, n) for n in (3, 8, 16)]


def test_work_is_the_table_and_in_proportion_to_counted_operations():
    cases = [(n, d, k) for n in (3, 8, 16) for d in (16, 64) for k in (2, 3, 5)]
    script = f"{json.dumps(KINDS)}.map((kind) => module.work(kind, n, d, k))"
    script = f"{json.dumps(cases)}.map(([n, d, k]) => {script})"
    for (n, d, k), ours in zip(cases, in_node("information_flow", script), strict=True):
        assert ours == [n * d**2, k * n * d**2, n**2 * d] == [work(kind, n, d, k) for kind in KINDS]
        layers = Recurrence(d), Convolution(d, k), Attention(d, projections=False)
        counted = [count_operations(layer, n, d) for layer in layers]
        assert counted == [times * value for times, value in zip((4, 2, 4), ours, strict=True)]


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_reach_is_where_the_layers_have_a_gradient(layers):
    """A token has reached another where the output there depends on it."""
    torch.manual_seed(0)
    n, kernel = 7, 3
    for kind, make in (("convolution", lambda: Convolution(4, kernel)), ("attention", lambda: Attention(4))):
        stack = torch.nn.Sequential(*(make() for _ in range(layers))).double()
        gradient = torch.autograd.functional.jacobian(stack, torch.randn(1, n, 4, dtype=torch.float64))
        depends = (gradient.abs().sum(dim=(0, 2, 3, 5)) > 0).tolist()
        script = f"module.reach({json.dumps(kind)}, {n}, {layers}, {kernel})"
        assert in_node("information_flow", script) == depends, kind


def test_reach_of_the_recurrence_is_what_its_states_depend_on():
    torch.manual_seed(0)
    x, layer = torch.randn(1, 6, 4, dtype=torch.float64), Recurrence(4).double()
    for step in (1, 4, 6):
        gradient = torch.autograd.functional.jacobian(lambda x: layer(x[:, :step]), x)  # noqa: B023
        depends = (gradient.abs().sum(dim=(0, 2, 3, 5)) > 0).tolist()
        rows = in_node("information_flow", f"module.reach('recurrence', 6, {step}, 3)")
        assert rows[:step] == depends and not any(map(any, rows[step:]))


def test_refuses_starts_that_its_sliders_lack():
    with pytest.raises(ValueError, match=r"length \(2\) must be from 3 to 16"):
        information_flow(length=2)
    with pytest.raises(ValueError, match=r"kernel \(1\) must be from 2 to 6"):
        information_flow(kernel=1)
    with pytest.raises(ValueError, match=r"d_model \(60\) must be one of 16, 32"):
        information_flow(d_model=60)


@pytest.mark.browser
def test_controls_show_the_numbers_of_the_package(shown):
    with shown(information_flow()) as (page, seen):

        def check(n, kernel, step, token, width):
            cells = page.locator(".at-counts tbody tr").evaluate_all(
                "(rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent))"
            )
            for kind, (_, reached, path, steps, formula) in zip(KINDS, cells, strict=True):
                assert int(path) == path_length(kind, n - 1, kernel)
                assert int(steps) == sequential_steps(kind, n)
                assert formula.endswith(f" = {work(kind, n, width, kernel):,}")
                if kind == "recurrence":
                    wanted = token if step >= token else 0
                else:
                    left = range(token) if kind == "convolution" else range(n)
                    wanted = sum(path_length(kind, abs(token - 1 - j), kernel) <= step for j in left)
                assert int(reached) == wanted
                drawn = page.locator(".at-flow").nth(KINDS.index(kind)).locator(".at-source")
                assert drawn.count() == wanted

        check(8, 3, 2, 8, 64)
        for i, value in ((0, 12), (1, 4), (2, 3), (3, 10), (4, 5)):  # the sixth width is 512
            page.evaluate(MOVE_SLIDER, [i, value])
        check(12, 4, 3, 10, 512)
        page.evaluate(MOVE_SLIDER, [2, 12])
        check(12, 4, 12, 10, 512)
        page.evaluate(MOVE_SLIDER, [0, 5])  # step and token must follow
        check(5, 4, 5, 5, 512)
        page.locator(".at-reset").click()
        check(8, 3, 2, 8, 64)
        assert (seen.outside, seen.errors, seen.failed) == ([], [], [])
