"""Live controls: they run the reader's own model on the reader's own text, and so need a kernel.

Each is a thin shell of ipywidgets around plain functions, which can be called without it: `continue_text` and
`next_tokens` for writing, `head_weights` and `fresh_heads` for attention. Where nothing is live, in the built
book or on GitHub, the text of the control stands in its place.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from matplotlib.colors import to_rgb
from torch import Tensor

from ..embeddings import Embeddings
from ..generation import GPTStep, generate, next_token_probabilities
from ..gpt import GPT
from ..multi_head_attention import MultiHeadAttention, attention_maps
from ..plots import COLORS
from ..positional_encoding import PositionalEncoding
from ..runtime import check_size, evaluating

VIEW = "application/vnd.jupyter.widget-view+json"
MOST_TOKENS = 40  # of a map of attention: more cells are too small to read
FRESH_WIDTH = 48
HEAD_COUNTS = tuple(n for n in range(1, 17) if FRESH_WIDTH % n == 0)  # 1, 2, 3, 4, 6, 8, 12, 16

# Every word of the controls, so that a translation can replace them.
WRITING = {
    "prompt": "prompt",
    "temperature": "temperature",
    "top_k": "top-k",
    "top_p": "top-p",
    "characters": "characters",
    "seed": "seed",
    "write": "Write",
    "next": "next",
    "model": "the model's",
    "drawn": "drawn from",
    "table": "The character after the prompt",
}
HEADS = {
    "text": "text",
    "layer": "layer",
    "head": "head",
    "heads": "heads",
    "trained": "Trained: rows ask, columns are asked. Colours from 0 to 1.",
    "fresh": "Fresh: {heads} heads of width {width}. Colours from 0 to {highest:.2f}.",
    "looks": "looks mostly at",
}


class NextToken(NamedTuple):
    """A candidate for the next place: its text, the model's probability, and the one it is drawn with."""

    text: str
    model: float
    drawn: float


def next_tokens(model: GPT, tokenizer: Any, text: str, most: int = 10, **settings: Any) -> list[NextToken]:
    """The likeliest next tokens of a text, before and after the settings, in the order of the model.

    Args:
        model: a GPT.
        tokenizer: its tokenizer, with `encode` and `decode`.
        text: at least one token.
        most: the number of candidates listed.
        settings: see :func:`annotated_transformer.generation.next_token_probabilities`.

    Returns:
        at most `most` candidates.

    Raises:
        ValueError: when the text is empty or has unknown characters, or a setting is out of its range.
    """
    check_size("most", most)
    with evaluating(model):
        logits = GPTStep(model, beyond="slide")(encoded(model, tokenizer, text, "text"))
    before, after = next_token_probabilities(logits)[0], next_token_probabilities(logits, **settings)[0]
    order = before.argsort(descending=True, stable=True)[:most].tolist()
    return [NextToken(tokenizer.decode([i]), before[i].item(), after[i].item()) for i in order]


def continue_text(
    model: GPT, tokenizer: Any, prompt: str, characters: int = 60, seed: int = 0, **settings: Any
) -> tuple[str, list[NextToken]]:
    """Continue a prompt: what a press of the button computes.

    Args:
        model: a GPT.
        tokenizer: its tokenizer, with `encode` and `decode`.
        prompt: at least one token.
        characters: the number of tokens drawn.
        seed: the same seed writes the same text.
        settings: temperature, top_k, top_p and min_p, as in
            :func:`annotated_transformer.generation.next_token_probabilities`.

    Returns:
        what was drawn, without the prompt, and the candidates for its first place.

    Raises:
        ValueError: when the prompt is empty or has unknown characters, or a setting is out of its range.
    """
    ids = encoded(model, tokenizer, prompt, "prompt")
    generator = torch.Generator().manual_seed(seed)
    written = generate(model, ids, characters, generator=generator, **settings)[0, ids.size(1) :]
    return tokenizer.decode(written.tolist()), next_tokens(model, tokenizer, prompt, **settings)


def head_weights(model: GPT, tokenizer: Any, text: str, layer: int, head: int) -> Tensor:
    """Where each token of a text looks in one head of a trained model.

    Args:
        model: a GPT.
        tokenizer: its tokenizer, with `encode`.
        text: 1 to 40 tokens.
        layer: from 0, the one that reads the embeddings.
        head: from 0.

    Shape:
        output (T, T), each row sums to one

    Raises:
        TypeError: when layer or head is not a whole number.
        ValueError: when the text, the layer or the head is out of its range.
    """
    ids = encoded(model, tokenizer, text, "text", MOST_TOKENS)
    maps = list(attention_maps(model, ids).values())
    for name, value, count in (("layer", layer, len(maps)), ("head", head, maps[0].size(1))):
        check_size(name, value, minimum=0)
        if value >= count:
            raise ValueError(f"{name} ({value}) must be below {count}")
    return maps[layer][0, head].cpu()


def fresh_heads(
    tokenizer: Any, text: str, num_heads: int, d_model: int = FRESH_WIDTH, seed: int = 0
) -> Tensor:
    """Where each token looks in every head of an attention that has learned nothing.

    Args:
        tokenizer: gives the tokens; each has a random vector, to which its position is added.
        text: 1 to 40 tokens.
        num_heads: must divide the width.
        d_model: the width.
        seed: of the random weights; the caller's generator is left as it was.

    Shape:
        output (H, T, T), each row sums to one

    Raises:
        ValueError: when the text is out of its range, or `num_heads` does not divide the width.
    """
    ids = encoded(None, tokenizer, text, "text", MOST_TOKENS)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        attention = MultiHeadAttention(d_model, num_heads)
        x = PositionalEncoding(d_model, dropout=0.0)(Embeddings(len(tokenizer), d_model)(ids))
        return attention.weights(x, x)[0]


def encoded(model: GPT | None, tokenizer: Any, text: str, name: str, most: int | None = None) -> Tensor:
    """The ids of a text as a batch of one, where the model is; raises when there are none or too many."""
    ids = tokenizer.encode(text)
    if not ids:
        raise ValueError(f"{name} ({text!r}) must have at least one token")
    if most is not None and len(ids) > most:
        raise ValueError(f"{name} ({len(ids)} tokens) must have at most {most} tokens")
    return torch.tensor([ids], device=None if model is None else model.tokens.weight.device)


class Picture:
    """What an action draws, and what it raises.

    ipywidgets swallows an exception of a callback. Here it is shown in place of the picture, and kept as the
    output of an Output widget, where `notebook_errors` finds it.

    Args:
        draw: returns HTML; what its first call raises is raised here.
    """

    def __init__(self, draw: Callable[[], str]):
        import ipywidgets

        self.draw = draw
        self.widget, self.problem = ipywidgets.HTML(draw()), ipywidgets.Output()

    def redraw(self, *_: Any) -> None:
        """Draw again; a callback of buttons and sliders."""
        try:
            self.widget.value, self.problem.outputs = self.draw(), ()
        except Exception as error:
            kind, message = type(error).__name__, str(error)
            self.widget.value = f'<p role="alert"><b>{kind}</b>: {html.escape(message)}</p>'
            line = {"output_type": "error", "ename": kind, "evalue": message}
            self.problem.outputs = ({**line, "traceback": [f"{kind}: {message}"]},)


class Control:
    """A widget, and a text that stands in its place where there is no kernel.

    Args:
        parts: what ipywidgets shows, from top to bottom: fields for the reader's settings, and pictures.
        text: what the control says at the moment.
    """

    def __init__(self, parts: Mapping[str, Any], text: Callable[[], str]):
        import ipywidgets

        self.parts, self.text = parts, text
        self.widget = ipywidgets.VBox([getattr(part, "widget", part) for part in parts.values()])

    def __repr__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        view = {"version_major": 2, "version_minor": 0, "model_id": self.widget.model_id}
        return {"text/plain": repr(self), VIEW: view}


def generation_control(
    model: GPT,
    tokenizer: Any,
    prompt: str = "The cat",
    characters: int = 60,
    seed: int = 0,
    labels: Mapping[str, str] = WRITING,
) -> Control:
    """A control that writes with the reader's own model: prompt, temperature, top-k, top-p, length, seed.

    The sliders redraw the candidates for the next character at once; the button writes.

    Args:
        model: a GPT.
        tokenizer: its tokenizer, with `encode`, `decode` and a length.
        prompt: what to begin with.
        characters: what to draw with each press.
        seed: the same seed writes the same text.
        labels: every word of the control.

    Raises:
        ValueError: when the prompt is empty or has unknown characters, or `characters` is below 1.
    """
    import ipywidgets

    check_size("characters", characters)
    wide = {"style": {"description_width": "90px"}, "layout": ipywidgets.Layout(width="95%")}

    def field(kind: Any, name: str, **options: Any) -> Any:
        return kind(description=labels[name], **options, **wide)

    fields = {
        "prompt": field(ipywidgets.Textarea, "prompt", value=prompt, rows=2, continuous_update=False),
        "temperature": field(ipywidgets.FloatSlider, "temperature", value=1.0, min=0.0, max=2.0, step=0.05),
        "top_k": field(ipywidgets.IntSlider, "top_k", value=len(tokenizer), min=1, max=len(tokenizer)),
        "top_p": field(ipywidgets.FloatSlider, "top_p", value=1.0, min=0.05, max=1.0, step=0.05),
        "characters": field(
            ipywidgets.IntSlider, "characters", value=characters, min=1, max=max(500, characters)
        ),
        "seed": field(ipywidgets.IntText, "seed", value=seed),
    }

    def read(*names: str) -> dict[str, Any]:
        return {name: fields[name].value for name in names}

    def write() -> tuple[str, list[NextToken]]:
        return continue_text(model, tokenizer, **read(*fields))

    def draw_text() -> str:
        return text_html(fields["prompt"].value, write()[0])

    def draw_table() -> str:
        settings = read("temperature", "top_k", "top_p")
        return table_html(next_tokens(model, tokenizer, fields["prompt"].value, **settings), labels)

    def text() -> str:
        drawn, candidates = write()
        settings = [f"{labels[name]} {fields[name].value}" for name in fields if name != "prompt"]
        rows = [f"{visible(c.text):>6}  {c.model:11.3f}  {c.drawn:10.3f}" for c in candidates[:5]]
        head = f"{labels['next']:>6}  {labels['model']:>11}  {labels['drawn']:>10}"
        return "\n".join([", ".join(settings), "", fields["prompt"].value + drawn, "", head, *rows])

    button = ipywidgets.Button(description=labels["write"], button_style="primary")
    written, table = Picture(draw_text), Picture(draw_table)
    button.on_click(written.redraw)
    for name in ("prompt", "temperature", "top_k", "top_p"):
        fields[name].observe(table.redraw, names="value")
    return Control({**fields, "write": button, "written": written, "table": table}, text)


def heads_control(
    model: GPT,
    tokenizer: Any,
    text: str = "The cat sat.",
    num_heads: int = 4,
    labels: Mapping[str, str] = HEADS,
) -> Control:
    """A control that shows attention on the reader's own text: a head of a trained model, and fresh heads.

    Args:
        model: a GPT.
        tokenizer: its tokenizer, with `encode`, `decode` and a length.
        text: 1 to 40 tokens.
        num_heads: of the fresh attention of width 48: 1, 2, 3, 4, 6, 8, 12 or 16.
        labels: every word of the control.

    Raises:
        ValueError: when the text is out of its range, or `num_heads` is not one of these.
    """
    import ipywidgets

    if num_heads not in HEAD_COUNTS:
        raise ValueError(f"num_heads ({num_heads}) must be one of {', '.join(map(str, HEAD_COUNTS))}")
    wide = {"style": {"description_width": "60px"}, "layout": ipywidgets.Layout(width="95%")}
    layers, heads = model.config.num_layers, model.config.num_heads
    fields = {
        "text": ipywidgets.Text(value=text, description=labels["text"], continuous_update=False, **wide),
        "layer": ipywidgets.IntSlider(value=1, min=1, max=layers, description=labels["layer"], **wide),
        "head": ipywidgets.IntSlider(value=1, min=1, max=heads, description=labels["head"], **wide),
        "heads": ipywidgets.SelectionSlider(
            options=HEAD_COUNTS, value=num_heads, description=labels["heads"], **wide
        ),
    }

    def tokens() -> list[str]:
        return [visible(tokenizer.decode([i])) for i in tokenizer.encode(fields["text"].value)]

    def trained_weights() -> Tensor:
        place = fields["layer"].value - 1, fields["head"].value - 1
        return head_weights(model, tokenizer, fields["text"].value, *place)

    def draw_trained() -> str:
        return f"<p>{html.escape(labels['trained'])}</p>" + heat_map_html(trained_weights(), tokens(), True)

    def draw_fresh() -> str:
        weights = fresh_heads(tokenizer, fields["text"].value, fields["heads"].value)
        highest, count = weights.max().item(), len(weights)
        line = labels["fresh"].format(heads=count, width=FRESH_WIDTH // count, highest=highest)
        maps = "".join(heat_map_html(map_, tokens(), highest=highest) for map_ in weights)
        grid = "display:flex;flex-wrap:wrap;gap:12px"
        return f'<p>{html.escape(line)}</p><div style="{grid}">{maps}</div>'

    def say() -> str:
        names, weights = tokens(), trained_weights()
        place = ", ".join(f"{labels[name]} {fields[name].value}" for name in ("layer", "head"))
        rows = zip(names, *weights.max(dim=-1), strict=True)
        lines = [f"{name} {labels['looks']} {names[at]} {share:.2f}" for name, share, at in rows]
        return "\n".join([place, *lines])

    trained, fresh = Picture(draw_trained), Picture(draw_fresh)
    for name in ("text", "layer", "head"):
        fields[name].observe(trained.redraw, names="value")
    for name in ("text", "heads"):
        fields[name].observe(fresh.redraw, names="value")
    order = ("text", "layer", "head", "trained", "heads", "fresh")
    parts = {**fields, "trained": trained, "fresh": fresh}
    return Control({name: parts[name] for name in order}, say)


def visible(text: str) -> str:
    """A token as one sees it: spaces and line ends as signs."""
    return text.replace(" ", "␣").replace("\n", "⏎")


def shade(share: float) -> str:
    """The background of a cell: nothing at 0, the blue of queries at 1, on a light page and on a dark one."""
    red, green, blue = (round(255 * part) for part in to_rgb(COLORS["query"]))
    return f"background:rgba({red},{green},{blue},{min(1.0, share):.2f})"


def text_html(prompt: str, drawn: str) -> str:
    """The prompt, set back, and what was drawn."""
    block = "white-space:pre-wrap;font-family:monospace;line-height:1.4;margin:8px 0"
    prompt, drawn = html.escape(prompt), html.escape(drawn)
    return f'<div style="{block}"><span style="opacity:.7">{prompt}</span><b>{drawn}</b></div>'


def table_html(candidates: Sequence[NextToken], labels: Mapping[str, str] = WRITING) -> str:
    """The candidates as a table, each probability as a number on a bar."""

    def bar(share: float) -> str:
        block = f"{shade(0.35)};width:{120 * share:.0f}px;white-space:nowrap;padding-left:4px"
        return f'<td style="width:130px;text-align:left"><div style="{block}">{share:.3f}</div></td>'

    head = "".join(f'<th scope="col">{html.escape(labels[name])}</th>' for name in ("next", "model", "drawn"))
    rows = "".join(
        f'<tr><th scope="row"><code>{html.escape(visible(token))}</code></th>{bar(model)}{bar(drawn)}</tr>'
        for token, model, drawn in candidates
    )
    caption = f'<caption style="caption-side:top">{html.escape(labels["table"])}</caption>'
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def heat_map_html(
    weights: Tensor, tokens: Sequence[str], causal: bool = False, highest: float = 1.0
) -> str:
    """Weights as a table of shaded cells, queries as rows; what a causal mask hides is hatched.

    Args:
        weights: from 0 to `highest`.
        tokens: a name for each row and column.
        causal: whether later tokens are hidden.
        highest: the weight with the full colour.

    Shape:
        weights (T, T)
    """
    size = "width:15px;min-width:15px;height:15px;padding:0;text-align:center;font:11px monospace"
    grey = COLORS["masked"]
    hatched = f"background:repeating-linear-gradient(45deg,{grey} 0 1px,transparent 1px 4px)"
    names = [html.escape(token) for token in tokens]

    def cell(row: int, column: int) -> str:
        if causal and column > row:
            return f'<td style="{size};{hatched}"></td>'
        share = weights[row, column].item()
        words = f"{names[row]} → {names[column]}: {share:.2f}"
        return f'<td style="{size};{shade(share / highest)}" title="{words}"></td>'

    head = "".join(f'<th scope="col" style="{size}">{name}</th>' for name in names)
    rows = "".join(
        f'<tr><th scope="row" style="{size}">{name}</th>'
        + "".join(cell(row, column) for column in range(len(names)))
        + "</tr>"
        for row, name in enumerate(names)
    )
    return f'<table style="border-collapse:collapse"><tr><td></td>{head}</tr>{rows}</table>'
