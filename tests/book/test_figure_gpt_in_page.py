"""The GPT in the page, in a browser, from the disk: it computes what PyTorch does with the same weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from test_browser import violations

from annotated_transformer.data.shakespeare import CHARACTERS
from annotated_transformer.generation import GPTStep, next_token_probabilities
from annotated_transformer.interactive.base import bundle
from annotated_transformer.interactive.gpt_in_page import gpt_in_page, page_model, pick, uniform
from annotated_transformer.interactive.gpt_weights import dequantized, scripts
from annotated_transformer.shakespeare import load_shakespeare_gpt, tokenizer, write_text
from conftest import watch

pytestmark = pytest.mark.browser
VERSE = "ROMEO:\nO, she doth teach the torches to burn bright!\nIt seems she hangs upon the night\n"
LOADED = ".at-status:has-text('parameters in')"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The part of a built book that the figure needs."""
    root = tmp_path_factory.mktemp("built")
    (root / "book").mkdir()
    (root / "_static" / "gpt").mkdir(parents=True)
    for name, text in scripts(page_model()[1]).items():
        (root / "_static" / "gpt" / name).write_text(text, encoding="utf-8")
    return root


@pytest.fixture
def opened(contexts, folder):
    """Open HTML as a page of the book: `page, seen = opened(text)`."""
    pages = []

    def open_page(text: str, width: int = 1280):
        path = folder / "book" / "page.html"
        path.write_text(text, encoding="utf-8")
        pages.append(contexts(width, True, "light").new_page())
        seen = watch(pages[-1], folder.as_uri())
        pages[-1].goto(path.as_uri())
        return pages[-1], seen

    yield open_page
    for page in pages:
        page.close()


def text_of(page) -> str:
    return page.locator(".at-text").first.evaluate("(node) => node.textContent")


def path_of(page) -> str:
    return page.locator(".at-text").first.evaluate("(node) => node.lastChild.textContent")


def titles(page) -> list[str]:
    return page.locator(".at-bar").evaluate_all("(bars) => bars.map((bar) => bar.title)")


def looks(page) -> list[float]:
    """The weights of the chosen head."""
    nodes = page.locator(".at-text").nth(1).locator("span")
    return [float(text) for text in nodes.evaluate_all("(marks) => marks.map((mark) => mark.title)")]


def continued(prompt: str, seed: int, count: int, **settings) -> str:
    """What the package writes with the page's weights and the page's random numbers."""
    step, ids = GPTStep(page_model()[0], beyond="slide"), torch.tensor([tokenizer().encode(prompt)])
    for i in range(count):
        probabilities = next_token_probabilities(step(ids)[0], **settings)
        ids = torch.cat([ids, torch.tensor([[pick(probabilities.tolist(), uniform(seed, i))]])], dim=1)
    return tokenizer().decode(ids[0, len(prompt) :].tolist())


def test_logits_and_a_greedy_continuation_equal_those_of_pytorch(opened):
    """Over the whole context, and beyond it, where the older half is dropped; prints the speed."""
    figure = gpt_in_page(steps=0)
    data = json.loads(figure.json)["data"]
    names = "{ GPT, fetchWeights, readWeights, windowStart }"
    script = f'{bundle("gpt_in_page")}\nglobalThis.atTest = {names};'
    page, seen = opened(f'<!DOCTYPE html><script type="module">\n{script}</script>')
    ids = tokenizer().encode((VERSE * 3)[: data["shape"]["context"]])
    prompt, count = tokenizer().encode("The cat"), 300
    got = page.evaluate(
        """async ({ weights, shape, ids, prompt, count }) => {
          const { GPT, fetchWeights, readWeights, windowStart } = globalThis.atTest;
          const gpt = new GPT(readWeights(await fetchWeights(weights, () => {})), shape);
          const logits = ids.map((_, i) => { gpt.read(ids.slice(0, i + 1)); return [...gpt.logits]; });
          const [text, since] = [[...prompt], performance.now()];
          let start = 0;
          for (let i = 0; i < count; i += 1) {
            start = windowStart(text.length, start, shape.context);
            gpt.read(text.slice(start));
            text.push(gpt.logits.indexOf(Math.max(...gpt.logits)));
          }
          const rate = (1000 * count) / (performance.now() - since);
          return { logits, text: text.slice(prompt.length), rate };
        }""",
        {"weights": data["weights"], "shape": data["shape"], "ids": ids, "prompt": prompt, "count": count},
    )
    model = dequantized(load_shakespeare_gpt())
    with torch.no_grad():
        wanted = model(torch.tensor([ids]))[0]
    assert (torch.tensor(got["logits"]) - wanted).abs().max() < 1e-3
    assert tokenizer().decode(got["text"]) == "".join(write_text("The cat", count, model, 0, temperature=0))
    print(f"{got['rate']:.0f} characters a second")
    assert (seen.outside, seen.errors, seen.failed) == ([], [], [])


def test_it_shows_the_stored_example_before_anything_is_loaded(opened):
    figure = gpt_in_page(steps=3)
    stored = json.loads(figure.json)["data"]["stored"]
    page, seen = opened(figure.page())
    step = page.get_by_role("button", name="step")
    for i in range(3):
        probabilities = next_token_probabilities(torch.tensor(stored["logits"][i])).tolist()
        shown = [float(title.split(": ")[1].split(" ")[0]) for title in titles(page)]
        assert shown == pytest.approx(probabilities, abs=6e-5)
        assert looks(page) == pytest.approx([w / 1000 for w in stored["attention"][i][0][0]], abs=6e-3)
        step.click()
        assert path_of(page) == stored["text"][: i + 1]
        drawn = probabilities[CHARACTERS.index(stored["text"][i])]
        last = page.locator(".at-matrix td").last.inner_text()
        assert float(last) == pytest.approx(drawn, abs=6e-3)
    page.locator("input[type=range]").nth(0).fill("0.5")
    after = [float(title.split("→ ")[1]) for title in titles(page)]
    wanted = next_token_probabilities(torch.tensor(stored["logits"][3]), 0.5).tolist()
    assert after == pytest.approx(wanted, abs=6e-5)
    assert page.locator(".at-bar.at-next").count() == 1
    step.click()  # nothing is stored of what follows
    assert "load the model" in page.locator(".at-needs").inner_text()
    assert step.is_disabled()
    page.get_by_label("prompt").fill("To be")
    assert "load the model" in page.locator(".at-status").inner_text()
    page.get_by_label("prompt").fill("5 €")
    assert "€" in page.locator(".at-status").inner_text()
    page.get_by_role("button", name="reset").click()
    assert text_of(page) == "The cat" and not step.is_disabled()
    assert (seen.outside, seen.errors) == ([], [])
    assert not page.evaluate("'atWeights' in globalThis")


def test_the_loaded_model_writes_what_the_package_writes(opened, axe):
    figure = gpt_in_page(seed=7, steps=3)
    page, seen = opened(figure.page())
    before, weights = titles(page), looks(page)
    assert page.get_by_role("progressbar").is_hidden()
    page.get_by_role("button", name="load the model").click()
    page.locator(LOADED).wait_for()
    assert page.get_by_role("button", name="load the model").is_disabled()
    page.locator(".at-bar").first.wait_for()  # it has read the prompt
    for shown, wanted in zip(titles(page), before, strict=True):
        assert shown[0] == wanted[0]
        numbers = [[float(n) for n in title[3:].split(" → ")] for title in (shown, wanted)]
        assert numbers[0] == pytest.approx(numbers[1], abs=2e-4)
    assert looks(page) == pytest.approx(weights, abs=0.011)
    page.get_by_role("button", name="run").click()
    page.wait_for_function("document.querySelector('.at-text').lastChild.textContent.length >= 60")
    page.get_by_role("button", name="stop").click()
    assert path_of(page)[:60] == continued("The cat", 7, 60)
    print(page.locator(".at-status").inner_text())
    assert violations(page, axe) == []

    page.get_by_label("prompt").fill("KING RICHARD:\\nWhat")
    page.locator("input[type=range]").nth(0).fill("0.7")
    page.locator("input[type=range]").nth(1).fill("10")
    page.locator("input[type=range]").nth(2).fill("0.9")
    page.get_by_label("seed").fill("3")
    for i in range(8):
        page.wait_for_function(f"document.querySelector('.at-text').lastChild.textContent.length === {i}")
        page.locator(".at-bar").first.wait_for()
        page.get_by_role("button", name="step").click()
    wanted = continued("KING RICHARD:\nWhat", 3, 8, temperature=0.7, top_k=10, top_p=0.9)
    assert path_of(page) == wanted and text_of(page).startswith("KING RICHARD:\nWhat")
    page.locator("input[type=range]").nth(3).fill("2")
    assert "layer 2, head 1" in page.locator(".at-text").nth(1).get_attribute("aria-label")
    assert len(looks(page)) == len(text_of(page))
    assert (seen.outside, seen.errors, seen.failed) == ([], [], [])


def test_it_says_so_where_the_weights_are_not(opened):
    figure = gpt_in_page(steps=1, folder="../elsewhere/")
    page, seen = opened(figure.page())
    button = page.get_by_role("button", name="load the model")
    button.click()
    page.locator(".at-status:has-text('not beside this page')").wait_for()
    assert button.is_enabled()
    page.get_by_role("button", name="step").click()  # the stored example still works
    assert len(path_of(page)) == 1


@pytest.mark.parametrize("origin", ["http", "file"])
def test_it_runs_in_the_built_book(reader, origin):
    with reader("book/generation.html", origin) as (page, seen):
        figure = page.locator("[data-at-name=gpt_in_page]")
        figure.get_by_role("button", name="load the model").click()
        figure.locator(LOADED).wait_for()
        figure.get_by_role("button", name="step").click()
        page.wait_for_function("document.querySelector('[data-at-name=gpt_in_page] .at-matrix') !== null")
        assert (seen.outside, seen.errors, seen.failed) == ([], [], [])
