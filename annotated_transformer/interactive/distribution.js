// The distribution of the next character: settings of sampling as in the package's generation module, a seeded draw,
// and bars over the whole vocabulary that show what the settings do.
import { decimals, element, range, say, softmax } from "./shared.js";

export const visible = (text) => text.replaceAll(" ", "␣").replaceAll("\n", "⏎");

// before: the model's; after: what is drawn from; kept: what top-k, top-p and min-p leave; order: by likelihood
export function distribution(logits, { temperature = 1, topK = Infinity, topP = 1, minP = 0 } = {}) {
  const highest = Math.max(...logits);
  const scaled = logits.map((z) => (z - highest) / Math.max(temperature, 1e-38));
  const order = range(logits.length).sort((i, j) => logits[j] - logits[i]); // stable, as in the package
  const kept = logits.map(() => true);
  order.slice(topK).forEach((i) => { kept[i] = false; });
  if (topP < 1) {
    const shares = softmax(scaled, kept);
    let mass = 0;
    order.forEach((i, rank) => {
      if (rank > 0 && mass >= topP) kept[i] = false;
      mass += shares[i];
    });
  }
  if (minP > 0) scaled.forEach((z, i) => { if (z < Math.log(minP)) kept[i] = false; });
  const after = temperature === 0 ? logits.map((_, i) => Number(i === order[0])) : softmax(scaled, kept);
  return { before: softmax(logits), after, kept, order };
}

export const entropy = (probabilities) => probabilities.reduce((sum, p) => (p > 0 ? sum - p * Math.log2(p) : sum), 0);

// number i, from 0 to below 1, of a seed: the generator mulberry32, whose state is a counter
export function uniform(seed, i) {
  let t = (seed + Math.imul(i + 1, 0x6d2b79f5)) >>> 0;
  t = Math.imul(t ^ (t >>> 15), t | 1);
  t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
  return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
}

// the first token whose probability, added to those before it in the vocabulary, exceeds u
export function pick(probabilities, u) {
  let sum = 0;
  for (let i = 0; i < probabilities.length; i += 1) {
    sum += probabilities[i];
    if (u < sum) return i;
  }
  return probabilities.findLastIndex((p) => p > 0);
}

export const settingControls = (panel, data, labels, into) => {
  const all = data.characters.length;
  return {
    temperature: panel.slider({ label: labels.temperature, min: 0, max: 2, step: 0.05, value: 1, format: (x) => decimals(x), into }),
    topK: panel.slider({ label: labels.top_k, min: 1, max: all, value: all, format: (k) => (k === all ? labels.all : String(k)), into }),
    topP: panel.slider({ label: labels.top_p, min: 0.05, max: 1, step: 0.05, value: 1, format: (p) => decimals(p), into }),
  };
};

export const values = (controls) => Object.fromEntries(Object.entries(controls).map(([name, control]) => [name, control.value]));

// bars that are built once and then changed; labels: before, after, cut, bars, tip
export class Bars {
  constructor(characters, labels) {
    [this.characters, this.labels, this.columns] = [characters, labels, 0];
    this.node = element("div", { role: "img" });
    const mark = (kind) => element("span", { class: `at-mark ${kind}` });
    this.legend = element("p", { class: "at-note" }, mark("at-before"), ` ${labels.before}  `, mark("at-after"), ` ${labels.after}  `,
      mark("at-cut"), ` ${labels.cut}`);
    this.slots = [...characters].map(() => {
      const parts = ["at-before", "at-after"].map((kind) => element("div", { class: kind }));
      const name = element("span", {});
      return { parts, name, node: element("div", { class: "at-bar" }, element("div", { class: "at-column" }, parts), name) };
    });
  }

  // rows of bars as wide as there is room
  arrange(columns, log) {
    if (columns === this.columns && log === this.log) return;
    [this.columns, this.log] = [columns, log];
    const ticks = log ? [1, 0.1, 0.01, 0.001] : [1, 0.5, 0];
    const axis = () => element("div", { class: "at-axis" }, ticks.map((p) => element("span", { style: `bottom:${this.height(p)}%` }, String(p))));
    const rows = range(Math.ceil(this.slots.length / columns)).map((row) => element("div", { class: "at-bars", style: `--columns:${columns}` },
      axis(), this.slots.slice(row * columns, (row + 1) * columns).map((slot) => slot.node)));
    this.node.replaceChildren(...rows);
  }

  // in per cent; the logarithmic axis begins at 0.0001
  height(p) {
    return this.log ? 100 * Math.max(0, 1 + Math.log10(Math.max(p, 1e-9)) / 4) : 100 * p;
  }

  update({ before, after, kept, order }, { sorted = false, log = false, next = -1, width = 560 } = {}) {
    this.arrange(width < 540 ? Math.ceil(this.slots.length / Math.ceil((this.slots.length * 9) / width)) : this.slots.length, log);
    this.slots.forEach((slot, place) => {
      const id = sorted ? order[place] : place;
      const character = visible(this.characters[id]);
      slot.name.textContent = character;
      slot.node.className = `at-bar${kept[id] ? "" : " at-cut"}${id === next ? " at-next" : ""}`;
      slot.node.title = say(this.labels.tip, { character, before: decimals(before[id], 4), after: decimals(after[id], 4) });
      [before[id], after[id]].forEach((p, i) => { slot.parts[i].style.height = `${this.height(p).toFixed(2)}%`; });
    });
    const top = range(order.length).sort((i, j) => after[j] - after[i]).slice(0, 5)
      .map((i) => `${visible(this.characters[i])} ${decimals(after[i])}`).join(", ");
    this.node.setAttribute("aria-label", say(this.labels.bars, { top, kept: kept.filter(Boolean).length }));
  }
}
