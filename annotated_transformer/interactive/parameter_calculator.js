import { decimals, element, percent, say, svg, whole } from "./shared.js";
import { cache, memory, terms, total } from "./parameters.js";

const NUMBERS = ["d_model", "num_heads", "num_kv_heads", "d_ff", "vocab_size", "max_len"];
const ROLES = { tokens: "key", places: "key", segments: "key", patches: "key", attention: "query", cross: "query", ff: "value", output: "output" };
const SWITCHES = ["bias", "gated", "norm_first", "share_embeddings"];

// one decimal; two below a tenth of a million, where one would leave nothing
export const millions = (count) => decimals(count / 1e6, count > 0 && count < 1e5 ? 2 : 1);

export const sumOfRounded = (counts) => decimals(counts.reduce((sum, count) => sum + Number(millions(count)), 0), 1);

export const gigabytes = (bytes) => decimals(bytes / 1e9, bytes < 1e8 ? 4 : 2);

// what keeps a shape from being one: [the text's name, its values], or null; an image model reads no tokens
export function fault(shape) {
  for (const name of [...NUMBERS, "num_layers", "d_k"]) {
    const value = shape[name];
    const least = name === "vocab_size" && shape.patch_size ? 0 : 1;
    if (name === "d_k" ? value < 1 : !(Number.isInteger(value) && value >= least)) return ["small", { name, value }];
  }
  if (!Number.isInteger(shape.d_k)) return ["divide", { name: "num_heads", value: shape.num_heads, other: "d_model", whole: shape.d_model }];
  if (shape.num_heads % shape.num_kv_heads) {
    return ["divide", { name: "num_kv_heads", value: shape.num_kv_heads, other: "num_heads", whole: shape.num_heads }];
  }
  return null;
}

// what follows when one number changes: four times the width stays four times it, as many heads stay as many
export function follow(name, before, now) {
  const changes = {};
  if (name === "d_model" && before.d_ff === 4 * before.d_model) changes.d_ff = 4 * now.d_model;
  if (name === "num_heads" && before.num_kv_heads === before.num_heads) changes.num_kv_heads = now.num_heads;
  return changes;
}

function bars(counted, labels, width) {
  const most = Math.max(...counted.map(([, , count]) => count));
  const told = counted.map(([name, , count]) => `${labels[name]} ${millions(count)}`).join(", ");
  const [left, right, step] = [160, 60, 27];
  const node = svg("svg", { viewBox: `0 0 ${width} ${counted.length * step + 18}`, class: "at-chart", role: "img", "aria-label": say(labels.chart, { bars: told }) });
  counted.forEach(([name, , count], i) => {
    const length = ((width - left - right) * count) / most;
    const role = ROLES[name] ?? "residual";
    node.append(
      svg("text", { x: left - 8, y: i * step + 18, "text-anchor": "end" }, labels[name]),
      svg("rect", { class: `at-fill-${role}`, x: left, y: i * step + 4, height: 19, width: Math.max(length, 1) }),
      svg("text", { class: "at-number", x: left + length + 6, y: i * step + 18 }, millions(count)),
    );
  });
  node.append(svg("text", { class: "at-side", x: left, y: counted.length * step + 13 }, labels.millions));
  return node;
}

function rows(head, lines) {
  const [first, ...others] = head;
  return element("div", { class: "at-scroll", tabindex: 0, role: "group", "aria-label": first }, element("table", {},
    element("thead", {}, element("tr", {}, element("th", { scope: "col" }, first), others.map((name) => element("th", { scope: "col" }, name)))),
    element("tbody", {}, lines.map(([name, ...cells]) => element("tr", {}, element("th", { scope: "row" }, name),
      cells.map((cell) => element("td", {}, cell)))))));
}

export function render(panel, data, labels) {
  const start = data.shapes[data.start];
  const named = (values) => values.map((name) => [name, labels[name]]);
  const preset = panel.choice({ label: labels.preset, options: named(Object.keys(data.shapes)), value: data.start });
  const controls = { num_layers: panel.slider({ label: labels.num_layers, min: 1, max: 96, value: start.num_layers }) };
  for (const name of NUMBERS) controls[name] = panel.number({ label: labels[name], value: start[name], min: 0, max: 999999, step: 1 });
  for (const name of ["architecture", "positions", "norm"]) {
    controls[name] = panel.choice({ label: labels[name], options: named(data.choices[name]), value: start[name] });
  }
  for (const name of SWITCHES) controls[name] = panel.toggle({ label: labels[name], value: start[name] });
  const bytes = panel.choice({ label: labels.bytes, options: [[4, "4"], [2, "2"], [1, "1"]], value: 4 });
  const batch = panel.slider({ label: labels.batch, values: [1, 2, 4, 8, 16, 32, 64], value: 1 });
  const tokens = panel.slider({ label: labels.context, values: [256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072], value: 1024, format: whole });
  const read = () => Object.fromEntries(Object.entries(controls).map(([name, control]) => [name, control.value]));
  let before = read();

  panel.start((changed) => {
    const base = data.shapes[preset.value];
    if (changed === preset) for (const name of Object.keys(controls)) controls[name].value = base[name];
    const name = NUMBERS.find((each) => controls[each] === changed);
    for (const [other, value] of Object.entries(follow(name, before, read()))) controls[other].value = value;
    before = read();
    const free = base.d_model === before.d_model && base.num_heads === before.num_heads;
    const shape = { ...base, ...before, d_k: free ? base.d_k : before.d_model / before.num_heads };
    const wrong = fault(shape);
    for (const each of NUMBERS) controls[each].input.setAttribute("aria-invalid", String(wrong?.[1].name === each));
    if (wrong) {
      panel.say(labels[wrong[0]], wrong[1]);
      return;
    }
    const counted = terms(shape);
    const counts = counted.map(([, , count]) => count);
    const all = total(shape);
    const kept = memory(all, Number(bytes.value));
    const training = kept.weights + kept.gradients + kept.adam;
    const cached = cache(shape, tokens.value, batch.value, Number(bytes.value), tokens.value);
    const sums = say(labels.sums, { rounded: sumOfRounded(counts), exact: whole(all), total: millions(all) });
    panel.show(
      bars(counted.filter(([, , count]) => count > 0), labels, panel.width),
      element("p", { class: "at-note" }, sums),
      rows([labels.part, labels.formula, labels.parameters, labels.share], [
        ...counted.map(([part, formula, count]) => [labels[part], labels[formula] ?? formula, whole(count), percent(count / all, 1)]),
        [labels.total, "", whole(all), percent(1, 1)],
      ]),
      element("p", { class: "at-note" }, say(labels.letters, { k: shape.d_k })),
      rows([labels.memory, labels.gigabytes], [
        ...Object.entries(kept).map(([part, size]) => [labels[part], gigabytes(size)]),
        [labels.training, gigabytes(training)], [labels.cache, gigabytes(cached)],
      ]),
    );
    const largest = counted[counts.indexOf(Math.max(...counts))];
    const values = {
      total: whole(all), training: gigabytes(training), tokens: whole(batch.value * tokens.value), cache: gigabytes(cached),
      largest: labels[largest[0]], share: percent(largest[2] / all), name: labels[preset.value],
    };
    panel.say(all === total(base) && preset.value !== "rule-of-thumb" ? labels.same : labels.status, values);
  }, labels.reset);
}
