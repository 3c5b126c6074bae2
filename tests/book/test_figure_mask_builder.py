"""The figure of the masks: the same cells and weights as the package's masks and attention."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from figures import MOVE_SLIDER, in_node  # noqa: E402

from annotated_transformer import causal_mask, padding_mask, target_mask  # noqa: E402
from annotated_transformer.attention import attention_weights, scaled_dot_product_attention  # noqa: E402
from annotated_transformer.interactive.mask_builder import mask_builder  # noqa: E402

DATA = json.loads(mask_builder().json)["data"]
IDS = torch.tensor(DATA["ids"])
FRONT = torch.tensor([sorted(ids, key=lambda i: i != 0) for ids in DATA["ids"]])


def vectors(ids):
    return [torch.tensor(DATA[name], dtype=torch.float64)[ids] for name in ("query", "key", "value")]


def package_mask(ids, padding, causal, wrong):
    if padding and causal:
        mask = target_mask(ids, 0)
    elif padding:
        mask = padding_mask(ids, 0).expand(len(ids), 1, ids.size(1), ids.size(1))
    elif causal:
        mask = causal_mask(ids.size(1)).expand(len(ids), 1, ids.size(1), ids.size(1))
    else:
        mask = torch.ones(len(ids), 1, ids.size(1), ids.size(1), dtype=torch.bool)
    return (~mask if wrong else mask)[:, 0]


def test_masks_weights_and_outputs_are_those_of_the_package():
    cases = list(itertools.product([False, True], repeat=4))
    script = f"""(() => {{
      const data = {json.dumps(DATA)};
      return {json.dumps(cases)}.map(([front, padding, causal, wrong]) => data.ids.map((each) => {{
        const ids = module.arrange(each, data.pad, front);
        const seen = module.seenBy(ids, data.pad, {{ padding, causal, wrong }});
        return {{ ids, seen, ...module.attend(data, ids, seen) }};
      }}));
    }})()"""
    for (front, padding, causal, wrong), got in zip(cases, in_node("mask_builder", script), strict=True):
        ids = FRONT if front else IDS
        mask = package_mask(ids, padding, causal, wrong)
        assert [each["ids"] for each in got] == ids.tolist()
        assert [each["seen"] for each in got] == mask.tolist()
        query, key, value = vectors(ids)
        output, weights = scaled_dot_product_attention(query, key, value, mask)
        ours = torch.tensor([each["weights"] for each in got], dtype=torch.float64)
        torch.testing.assert_close(ours, weights, atol=1e-12, rtol=0)
        torch.testing.assert_close(ours, attention_weights(query, key, mask), atol=1e-12, rtol=0)
        outputs = torch.tensor([each["output"] for each in got], dtype=torch.float64)
        torch.testing.assert_close(outputs, output, atol=1e-12, rtol=0)


def test_refuses_batches_that_show_nothing():
    with pytest.raises(ValueError, match=r"sentences \(1\) must be two to five"):
        mask_builder(["one"])
    with pytest.raises(ValueError, match=r"sentences \(.*\) must have one to six words"):
        mask_builder(["one", ""])
    with pytest.raises(ValueError, match=r"sentences \(.*\) must differ in length"):
        mask_builder(["one", "two"])


@pytest.mark.browser
def test_switches_show_the_weights_of_the_package(shown):
    with shown(mask_builder()) as (page, seen):
        boxes = page.locator(".at-controls input[type=checkbox]")

        def check(ids, number, row, **rules):
            mask = package_mask(ids, **rules)
            query, key, value = vectors(ids)
            output, weights = scaled_dot_product_attention(query, key, value, mask)
            tables = page.locator(".at-drawing table")
            for b in range(len(ids)):
                hidden = tables.nth(b).locator("td[data-row]").evaluate_all(
                    "(cells) => cells.map((cell) => cell.classList.contains('at-hidden'))"
                )
                assert hidden == (~mask[b]).flatten().tolist()
            for n, values in ((len(ids), weights), (len(ids) + 1, output)):
                texts = tables.nth(n).locator("td[data-row]").all_text_contents()
                shown_values = [float(text.replace("−", "-")) for text in texts]
                assert shown_values == pytest.approx(values[number - 1].flatten().tolist(), abs=0.0051)
            status = page.locator(".at-status").inner_text()
            best = weights[number - 1, row].max().item()
            if best:
                assert f"{best:.2f}" in status
                words = [DATA["vocabulary"][i] for i in ids[number - 1][mask[number - 1, row]].tolist()]
                assert ", ".join(words) in status
            else:
                assert "nothing" in status and "zeros" in status

        check(IDS, 2, 1, padding=True, causal=True, wrong=False)
        boxes.nth(1).click()
        check(IDS, 2, 1, padding=True, causal=False, wrong=False)
        boxes.nth(3).click()
        check(IDS, 2, 1, padding=True, causal=False, wrong=True)  # all its weight on the padding
        boxes.nth(3).click()
        boxes.nth(1).click()
        boxes.nth(2).click()
        page.evaluate(MOVE_SLIDER, [0, 3])
        check(FRONT, 3, 1, padding=True, causal=True, wrong=False)  # blind
        page.evaluate(MOVE_SLIDER, [1, 3])
        boxes.nth(0).click()
        check(FRONT, 3, 3, padding=False, causal=True, wrong=False)
        page.locator(".at-reset").click()
        check(IDS, 2, 1, padding=True, causal=True, wrong=False)
        assert (seen.outside, seen.errors, seen.failed) == ([], [], [])
