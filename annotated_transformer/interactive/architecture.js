import { element, say, svg, whole } from "./shared.js";
import { blocks, total } from "./parameters.js";

const CHAPTERS = {
  ids: "tokenization", tokens: "embeddings", places: "positional_encoding", segments: "embeddings", first_norm: "residual",
  self: "multi_head_attention", causal: "attention", across: "encoder_decoder", ff: "feed_forward", norm: "residual",
  last_norm: "residual", pooler: "parameter_count", linear: "transformer", softmax: "decoding",
};
const ROLES = { self: "query", causal: "query", across: "key", ff: "value", linear: "output", softmax: "output" };
const attend = "softmax(Q Kᵀ / √k) V";
const FORMULAS = {
  tokens: "√d · E[id]", places: "x + p", segments: "x + s", self: attend, causal: attend, across: attend, pooler: "tanh(W x₁ + b)",
  linear: "h Eᵀ", softmax: "exp(z) / Σ exp(z)",
};

export const written = (shape) => `(${shape.join(", ")})`;

// the blocks of one stack in the order in which data meets them; layered ones stand in every layer
export function stack(s, side, { batch, source, target }, { cross, output, first }) {
  const [d, T] = [s.d_model, side === "encoder" ? source : target];
  const [wide, pre] = [[batch, T, d], s.norm_first];
  const [embed, layer] = [side === "encoder" ? "src_embed" : "tgt_embed", `${side}.layers.0`];
  const places = { learned: s.max_len * d, relative: s.buckets * s.num_heads }[s.positions] ?? 0;
  const sublayers = [[side === "encoder" ? "self" : "causal", "self_attention", blocks.attention(s)]];
  if (cross) sublayers.push(["across", "cross_attention", blocks.attention(s)]);
  sublayers.push(["ff", "feed_forward", blocks.feedForward(s)]);
  const layered = sublayers.flatMap(([kind, path, own], i) => {
    const norm = { kind: "norm", path: `${layer}.residuals.${i}.norm`, count: blocks.norm(s) };
    const work = { kind, path: `${layer}.${path}`, count: own };
    return pre ? [norm, work] : [work, norm];
  }).map((block) => ({ ...block, layered: true }));
  const bias = !s.share_embeddings && s.output_bias ? s.vocab_size : 0;
  return [
    { kind: "ids", count: 0, shape: [batch, T] },
    { kind: "tokens", path: `${embed}.tokens`, count: s.share_embeddings && !first ? 0 : s.vocab_size * d },
    { kind: "places", path: `${embed}.positions`, count: places },
    s.segments && { kind: "segments", count: s.segments * d },
    s.embedding_norm && { kind: "first_norm", count: blocks.norm(s) },
    ...layered,
    pre && { kind: "last_norm", path: `${side}.norm`, count: blocks.norm(s) },
    side === "encoder" && s.pooler && { kind: "pooler", count: d * d + d, shape: [batch, d] },
    output && { kind: "linear", path: "generator", count: s.share_embeddings ? 0 : s.vocab_size * d + bias, shape: [batch, T, s.vocab_size] },
    output && { kind: "softmax", count: 0, shape: [batch, T, s.vocab_size] },
  ].filter(Boolean).map((block) => ({ shape: wide, layered: false, ...block, side }));
}

// the stacks of a view: "encoder", "decoder" (which may read a memory), or "encoder-decoder"
export function plan(s, view, sizes, cross) {
  const both = view === "encoder-decoder";
  const encoder = stack(s, "encoder", sizes, { cross: false, output: false, first: true });
  const decoder = stack(s, "decoder", sizes, { cross: both || cross, output: true, first: !both });
  return both ? [encoder, decoder] : view === "encoder" ? [encoder] : [decoder];
}

export const sumOf = (stacks, layers) => stacks.flat().reduce((sum, block) => sum + block.count * (block.layered ? layers : 1), 0);

export function fault(s) {
  for (const name of ["d_ff", "vocab_size"]) {
    if (!(Number.isInteger(s[name]) && s[name] >= 1)) return ["small", { name, value: s[name] }];
  }
  return Number.isInteger(s.d_k) ? null : ["divide", { value: s.num_heads, whole: s.d_model }];
}

const STEP = 58;

function column(stack, x, half, layers, labels, height, at, place) {
  const y = (i) => height - 24 - i * STEP;
  const [first, last] = [stack.findIndex((block) => block.layered), stack.findLastIndex((block) => block.layered)];
  const [top, bottom, left, narrow] = [y(last) - 16, y(first) + 16, x - half - 13, half < 70];
  const nodes = [
    svg("path", { class: "at-line at-side-line", d: `M${left + 5},${top} H${left} V${bottom} H${left + 5}` }),
    svg("text", { class: "at-side", "text-anchor": "middle", transform: `translate(${left - 4} ${bottom - 16}) rotate(-90)` }, say(labels.times, { layers })),
  ];
  stack.forEach((block, i) => {
    if (i) nodes.push(arrow(x, y(i - 1) - 16, x, y(i) + 18), svg("text", { class: "at-side at-halo", x: x + (narrow ? 4 : 6), y: y(i) + 33, style: narrow ? "font-size:12px" : null }, narrow ? written(stack[i - 1].shape).replaceAll(" ", "") : written(stack[i - 1].shape)));
    // the residual path runs beside each sublayer and its norm
    if (block.layered && (i - first) % 2 === 0) {
      const [from, to] = [y(i) + 25, y(i + 1) - (stack[i + 1].kind === "norm" ? -25 : 25)];
      nodes.push(svg("path", { class: "at-line at-residual", d: `M${x},${from} H${x - half - 6} V${to} H${x}` }));
    }
    nodes.push(place(block, x, y(i), half, block === at));
  });
  return nodes;
}

function arrow(x1, y1, x2, y2, role = "residual") {
  const [dx, dy] = [Math.sign(x2 - x1), Math.sign(y2 - y1)];
  const head = `M${x2 - 6 * dx - 4 * dy},${y2 - 6 * dy - 4 * dx} L${x2},${y2} L${x2 - 6 * dx + 4 * dy},${y2 - 6 * dy + 4 * dx}`;
  return svg("path", { class: `at-line at-${role}`, d: `M${x1},${y1} L${x2},${y2} ${head}` });
}

function draw(stacks, layers, width, values) {
  const { labels, at, pick, view, memory, names } = values;
  const [two, height] = [stacks.length === 2, Math.max(...stacks.map((each) => each.length)) * STEP + 12];
  const left = two && width < 376 ? 6 : 0; // leaves room for the shapes
  const [half, middleOf] = [two ? Math.min(width / 4 - 24 - left, 100) : 90, (i) => (two ? (width * (2 * i + 1)) / 4 - left : width / 2 + 50)];
  const told = stacks.flat().map((block) => say(labels.block, { name: names(block), shape: written(block.shape) })).join(", ");
  const node = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "at-chart", style: "overflow:visible", role: "group", "aria-label": say(labels.picture, { view: labels[view], blocks: told }) });
  const place = (block, x, y, wide, strong) => svg("g", {
    class: `at-token at-${ROLES[block.kind] ?? "residual"}${strong ? " at-strong" : ""} at-block`, role: "button", tabindex: 0, "aria-pressed": String(strong),
    "aria-label": say(labels.block, { name: names(block), shape: written(block.shape) }), "data-block": block.key, onclick: () => pick(block),
    onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(block); } },
  }, svg("rect", { x: x - wide, y: y - 16, width: 2 * wide, height: 32, rx: 8 }), svg("text", { x, y: y + 5, "text-anchor": "middle", style: wide < 70 ? "font-size:12px" : null }, names(block)));
  stacks.forEach((each, i) => node.append(...column(each, middleOf(i), half, layers, labels, height, at, place)));
  const across = stacks[stacks.length - 1].findIndex((block) => block.kind === "across");
  if (across >= 0) {
    const [both, y] = [stacks.length === 2, height - 24 - across * STEP];
    const [top, to, turn] = [height - 24 - (stacks[0].length - 1) * STEP, middleOf(stacks.length - 1) - half, width / 2 - 4];
    if (both) node.append(svg("path", { class: "at-line at-key", d: `M${middleOf(0)},${top - 16} V${top - 26} H${turn} V${y} H${to}` }));
    const told = (text, x, level) => svg("text", { class: "at-side", x, y: level, "text-anchor": both ? "middle" : "start" }, text);
    node.append(arrow(both ? turn : 4, y, to, y, "key"));
    node.append(...(both ? [told(`${labels.memory} ${written(memory)}`, middleOf(0), top - 33)] : [told(labels.memory, 4, y - 7), told(written(memory), 4, y + 17)]));
  }
  return node;
}

// a list of tabs: arrow keys, Home and End go from one to the next, and choose it
function tabs(panel, names, label, labels, start) {
  let chosen = start;
  const buttons = names.map((name) => element("button", { type: "button", role: "tab", onclick: () => choose(name) }, labels[name]));
  const put = (name) => {
    chosen = name;
    buttons.forEach((button, i) => { button.setAttribute("aria-selected", String(names[i] === name)); button.tabIndex = names[i] === name ? 0 : -1; });
  };
  const choose = (name) => { put(name); panel.draw(); };
  const list = panel.add(element("div", { role: "tablist", "aria-label": label, class: "at-tabs" }, buttons));
  list.addEventListener("keydown", (event) => {
    const i = names.indexOf(chosen);
    const to = { ArrowRight: (i + 1) % names.length, ArrowLeft: (i + names.length - 1) % names.length, Home: 0, End: names.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    choose(names[to]);
    buttons[to].focus();
  });
  panel.resets.push(() => put(start));
  put(start);
  return { get value() { return chosen; }, set value(name) { put(name); } };
}

export function render(panel, data, labels) {
  const base = data.shapes.paper;
  const named = (values, prefix = "") => values.map((name) => [name, labels[prefix + name]]);
  const view = tabs(panel, ["encoder", "decoder", "encoder-decoder"], labels.view, labels, "encoder-decoder");
  const assembly = panel.choice({ label: labels.assembly, options: named(data.names), value: "paper" });
  const sizes = Object.fromEntries(Object.entries(data.sizes).map(([name, value]) => [name, panel.slider({ label: labels[name], min: 1, max: name === "batch" ? 64 : 512, value })]));
  const own = {
    d_model: panel.slider({ label: labels.d_model, values: [64, 128, 256, 512, 768, 1024, 2048, 4096], value: base.d_model, format: whole }),
    num_heads: panel.slider({ label: labels.num_heads, values: [1, 2, 4, 8, 12, 16, 32, 64], value: base.num_heads }),
    num_layers: panel.slider({ label: labels.num_layers, min: 1, max: 48, value: base.num_layers }),
    d_ff: panel.number({ label: labels.d_ff, value: base.d_ff, min: 1, step: 1 }),
    vocab_size: panel.number({ label: labels.vocab_size, value: base.vocab_size, min: 1, step: 1 }),
    norm: panel.choice({ label: labels.norm, options: named(["layer", "rms"]), value: base.norm }),
    positions: panel.choice({ label: labels.places, options: named(data.positions), value: base.positions }),
    bias: panel.toggle({ label: labels.bias, value: base.bias }),
    share_embeddings: panel.toggle({ label: labels.share_embeddings, value: base.share_embeddings }),
  };
  const order = panel.choice({ label: labels.order, options: named(["pre", "post"]), value: "post" });
  const gate = panel.choice({ label: labels.gate, options: named(["plain", "gated"]), value: "plain" });
  const kind = panel.choice({ label: labels.kind, options: named(["each", "grouped", "single"]), value: "each" });
  const cross = panel.toggle({ label: labels.cross, value: true });
  let [at, width, stacks] = ["encoder-0", base.d_model, []];
  const go = (step) => {
    const keys = stacks.flat().map((block) => block.key);
    at = keys[Math.min(Math.max(keys.indexOf(at) + step, 0), keys.length - 1)];
    panel.draw();
  };
  for (const [label, step] of [[labels.back, -1], [labels.on, 1]]) panel.button(label, () => go(step));
  panel.resets.push(() => { [at, width] = ["encoder-0", base.d_model]; });
  const [names, pick] = [(block) => labels[`name_${block.kind}`], (block) => { at = block.key; panel.draw(); }];
  const detail = element("div", { class: "at-note", "aria-live": "polite" });

  function take(shape) {
    for (const [name, control] of Object.entries(own)) control.value = shape[name];
    [order.value, gate.value] = [shape.norm_first ? "pre" : "post", shape.gated ? "gated" : "plain"];
    [kind.value, cross.value, view.value, width] = ["each", shape.architecture === "encoder-decoder", shape.architecture, shape.d_model];
  }

  panel.drawing.setAttribute("role", "tabpanel");
  panel.start((changed) => {
    const given = data.shapes[assembly.value];
    if (changed === assembly) take(given);
    if (changed === own.d_model && own.d_ff.value === 4 * width) own.d_ff.value = 4 * own.d_model.value;
    width = own.d_model.value;
    const picked = Object.fromEntries(Object.entries(own).map(([name, control]) => [name, control.value]));
    const s = { ...given, ...picked, architecture: view.value, norm_first: order.value === "pre", gated: gate.value === "gated", d_k: picked.d_model / picked.num_heads };
    s.num_kv_heads = { each: s.num_heads, grouped: Math.ceil(s.num_heads / 4), single: 1 }[kind.value];
    const wrong = fault(s);
    if (wrong) return panel.say(labels[wrong[0]], wrong[1]);
    const lengths = Object.fromEntries(Object.entries(sizes).map(([name, control]) => [name, control.value]));
    stacks = plan(s, view.value, lengths, cross.value);
    stacks.forEach((each) => each.forEach((block, i) => { block.key = `${block.side}-${i}`; }));
    panel.drawing.setAttribute("aria-label", labels[view.value]);
    const flat = stacks.flat();
    const now = flat.find((block) => block.key === at) ?? flat[0];
    at = now.key;
    const focused = panel.drawing.contains(document.activeElement) ? document.activeElement.dataset.block : null;
    panel.show(draw(stacks, s.num_layers, panel.width, { labels, at: now, pick, view: view.value, memory: [lengths.batch, lengths.source, s.d_model], names }), detail);
    if (focused) panel.drawing.querySelector(`[data-block="${focused}"]`)?.focus();
    explain(now, s, lengths, names(now));
    const all = sumOf(stacks, s.num_layers);
    const values = { step: flat.indexOf(now) + 1, steps: flat.length, name: names(now), shape: written(now.shape), total: whole(all), model: labels[assembly.value] };
    panel.say(all === total(given) && view.value === given.architecture ? labels.same : labels.status, values);
  }, labels.reset);

  function explain(block, s, { source, target }, name) {
    const f = s.gated ? "W₂ (silu(W₁ x) ⊙ W₃ x)" : "W₂ max(0, W₁ x)";
    const norm = s.norm === "layer" ? "(x − μ) / σ · g + b" : "x / rms(x) · g";
    const formula = { ...FORMULAS, ff: f, norm, first_norm: norm, last_norm: norm }[block.kind];
    const told = labels[`tell_${block.kind}`] ?? labels[`tell_${block.kind}_${block.kind === "norm" ? (s.norm_first ? "pre" : "post") : s.positions}`];
    const shared = s.share_embeddings && (block.kind === "linear" || block.kind === "tokens") && !block.count;
    const cost = { one: whole(block.count), all: whole(block.count * s.num_layers), layers: s.num_layers };
    const price = shared ? labels.tied : block.count === 0 ? labels.none : say(block.layered ? labels.counts : labels.count, cost);
    const page = `${CHAPTERS[block.kind]}${location.pathname.endsWith(".html") ? ".html" : ".ipynb"}`; // in the book, or in Jupyter
    const values = { V: whole(s.vocab_size), d: whole(s.d_model), f: whole(s.d_ff), H: s.num_heads, k: s.d_k, S: source, T: target };
    const lines = [formula ? `${labels.formula}: ${formula}` : "", `${labels.parameters}: ${price}`].filter(Boolean);
    detail.replaceChildren(element("p", {}, element("strong", {}, name), ` ${written(block.shape)}. `, say(told, values)),
      ...lines.map((line) => element("p", {}, line)),
      element("p", {}, element("a", { href: page }, say(labels.chapter, { name: CHAPTERS[block.kind] }))));
  }
}
