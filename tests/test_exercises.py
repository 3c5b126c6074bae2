"""Exercise checks: right answers pass, wrong ones learn what differs, missing ones are not called wrong."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from annotated_transformer.exercises import check


def verdict(capsys, *arguments, **options):
    """The verdict that check prints, and what it returns."""
    right = check(*arguments, **options)
    return capsys.readouterr().out.strip(), right


@pytest.mark.parametrize(
    "answer, expected",
    [
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.000001])),
        ([[1, 2], [3, 4]], torch.tensor([[1, 2], [3, 4]])),
        (torch.tensor([1, 2]), torch.tensor([1.0, 2.0])),
        (torch.tensor([math.inf, math.nan]), torch.tensor([math.inf, math.nan])),
        (torch.ones(2, requires_grad=True), torch.ones(2)),
        (torch.zeros(0, 3), torch.zeros(0, 3)),
        (torch.tensor([True, False]), torch.tensor([True, False])),
        (0.1 + 0.2, 0.3),
        (torch.tensor(3.0), 3),
        (torch.tensor(True), True),
        (math.inf, math.inf),
        ("B S", "B S"),
        ((1, "a", torch.ones(2)), [1, "a", torch.ones(2)]),
        ({"w": torch.ones(2)}, {"w": torch.ones(2)}),
        (None, None),
        (b"ab", b"ab"),
    ],
)
def test_right_answers_are_right(capsys, answer, expected):
    assert verdict(capsys, answer, expected, name="the sum") == ("the sum: right.", True)


@pytest.mark.parametrize(
    "answer, expected, words",
    [
        (torch.ones(2, 3), torch.ones(3, 2), "Its shape is (2, 3), expected (3, 2)."),
        (torch.ones(1), torch.tensor([True]), "Its type is torch.float32, expected torch.bool."),
        ([[1], [3]], torch.tensor([[1], [2]]), "1 of 2 numbers differ: at (1, 0) it is 3, expected 2."),
        ([math.nan], torch.ones(1), "1 of 1 numbers differ: at (0,) it is nan, expected 1."),
        ([math.inf], torch.tensor([-math.inf]), "1 of 1 numbers differ: at (0,) it is inf, expected -inf."),
        ("two", torch.ones(2), "It should be a tensor, it is of type str."),
        (2, 3, "It is 2, expected 3."),
        (True, 1, "It is True, expected 1."),
        (1, True, "It is 1, expected True."),
        ("a", "b", "It is 'a', expected 'b'."),
        (7, [7], "It should be a list, it is of type int."),
        ([1, 2], [1, 2, 3], "It has 2 items, expected 3."),
        ([1, (2, 5)], [1, (2, 3)], "Item 1: Item 1: It is 5, expected 3."),
        (3, {"a": 3}, "It should be a dictionary, it is of type int."),
        ({"a": 3}, {"b": 3}, "Its keys are ['a'], expected ['b']."),
        ({"a": 3}, {"a": 4}, "Entry 'a': It is 3, expected 4."),
        (b"ab", b"ac", "It is b'ab', expected b'ac'."),
    ],
)  # fmt: skip
def test_a_wrong_answer_is_told_what_differs(capsys, answer, expected, words):
    assert verdict(capsys, answer, expected) == (f"your answer: not yet. {words}", False)


@pytest.mark.parametrize("answer", [None, ..., [1, None], {"a": ...}])
def test_a_missing_answer_is_not_called_wrong(capsys, answer):
    expected = [1, 2] if isinstance(answer, list) else {"a": 1} if isinstance(answer, dict) else 5
    assert verdict(capsys, answer, expected) == ("your answer: not answered yet.", False)


def double(x):
    """The reference of the function checks."""
    return x * 2


def unfinished(x):
    raise NotImplementedError


@pytest.mark.parametrize(
    "answer, words",
    [
        (lambda x: x + x, "right."),
        (lambda x: x[None], "not yet. On input (a tensor of shape (2,)): Its shape is (1, 2)"),
        (lambda x: x.left, "not yet. On input (3) it raised AttributeError: 'int' object"),
        (lambda x: None, "not answered yet."),
        (unfinished, "not answered yet."),
        (None, "not answered yet."),
        (7, "not yet. It should be a function, it is of type int."),
    ],
)  # fmt: skip
def test_functions_are_compared_on_inputs(capsys, answer, words):
    inputs = [(torch.ones(2),)] if "tensor" in words else [(3,), (torch.ones(2),)]
    assert verdict(capsys, answer, double, inputs)[0].startswith(f"your answer: {words}")


def test_a_function_that_is_right_on_the_first_input_only_is_found(capsys):
    assert not verdict(capsys, lambda x: 4, double, [(2,), (3,)])[1]


def test_a_function_that_changes_its_input_does_not_change_the_reference(capsys):
    x = torch.ones(3)
    assert verdict(capsys, lambda x: x.mul_(2), double, [(x,)])[1]
    assert x.tolist() == [1, 1, 1]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=3), st.data())
def test_one_changed_number_anywhere_is_found(shape, data):
    right = torch.zeros(shape)
    wrong = right.clone()
    wrong.view(-1)[data.draw(st.integers(0, right.numel() - 1))] = 0.01
    assert check(right, right.clone()) and not check(wrong, right)
    assert check(wrong, right, tolerance=0.1)


def test_bad_arguments_raise():
    with pytest.raises(ValueError, match=r"tolerance \(-1\) must not be negative"):
        check(1, 1, tolerance=-1)
    with pytest.raises(TypeError, match=r"expected \(5\) must be a function where inputs are given"):
        check(double, 5, [(1,)])
    for inputs in (None, []):
        with pytest.raises(ValueError, match=r"inputs \(.*\) must hold the arguments of a call"):
            check(double, double, inputs)
