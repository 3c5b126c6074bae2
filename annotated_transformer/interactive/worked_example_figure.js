import { decimals, element, matrix, multiply, range, say, softmax, transpose } from "./shared.js";

const EDITED = ["embedded", "W_Q", "W_K", "W_V", "W_O"];
// what stands side by side, step by step
const STEPS = {
  x: ["embedded", "positions", "x"],
  QKV: ["W_Q", "Q", "W_K", "K", "W_V", "V"],
  weights: ["scores", "weights"],
  attended: ["averaged", "W_O", "attended"],
  normalised: ["added", "normalised"],
};

export function positionTable(length, width) {
  return range(length).map((t) => range(width).map((i) => {
    const angle = t * 10000 ** (-(i - (i % 2)) / width);
    return i % 2 ? Math.cos(angle) : Math.sin(angle);
  }));
}

// to mean 0 and deviation 1, as nn.LayerNorm does with gain 1 and bias 0
export function normalise(rows) {
  return rows.map((row) => {
    const mean = row.reduce((sum, x) => sum + x, 0) / row.length;
    const variance = row.reduce((sum, x) => sum + (x - mean) ** 2, 0) / row.length;
    return row.map((x) => (x - mean) / Math.sqrt(variance + 1e-5));
  });
}

const add = (a, b) => a.map((row, i) => row.map((x, j) => x + b[i][j]));

// every matrix of the way, from those that are given
export function compute(given, usePositions = true, causal = false) {
  const width = given.embedded[0].length;
  const positions = positionTable(given.embedded.length, width);
  const x = usePositions ? add(given.embedded, positions) : given.embedded;
  const [Q, K, V] = [given.W_Q, given.W_K, given.W_V].map((weight) => multiply(x, weight));
  const scores = multiply(Q, transpose(K)).map((row) => row.map((score) => score / Math.sqrt(width)));
  const seen = scores.map((row, i) => row.map((_, j) => !causal || j <= i));
  const weights = scores.map((row, i) => softmax(row, seen[i]));
  const averaged = multiply(weights, V);
  const attended = multiply(averaged, given.W_O);
  const added = add(x, attended);
  return { ...given, positions, x, Q, K, V, scores, weights, averaged, attended, added, normalised: normalise(added), seen };
}

export function render(panel, data, labels) {
  const [tokens, columns] = [data.tokens, ["1", "2", "3", "4"]];
  const usePositions = panel.toggle({ label: labels.use_positions, value: true });
  const causal = panel.toggle({ label: labels.causal });
  const rowsOf = (name) => (data.start[name]?.length === 4 ? columns : tokens);
  let edited = null;
  const inputs = Object.fromEntries(EDITED.map((name) => [name, data.start[name].map((line, i) => line.map((value, j) => {
    const place = { name: labels[name], row: rowsOf(name)[i], column: columns[j] };
    const input = element("input", { type: "number", step: 0.1, value, class: "at-entry", "aria-label": say(labels.entry, place) });
    input.addEventListener("input", () => { edited = { ...place, input }; panel.draw(); });
    panel.resets.push(() => { input.value = value; edited = null; });
    return input;
  }))]));
  // the boxes stay, so that the one being edited keeps the focus; what is computed is drawn anew
  const places = Object.fromEntries(Object.values(STEPS).flat().map((name) => [name, element("div", {}, EDITED.includes(name) ? entries(name) : [])]));

  function entries(name) {
    const head = element("tr", {}, element("td", {}), columns.map((column) => element("th", { scope: "col" }, column)));
    const body = inputs[name].map((line, i) => element("tr", {}, element("th", { scope: "row" }, rowsOf(name)[i]),
      line.map((input) => element("td", { class: "at-holds-entry" }, input))));
    return element("div", { class: "at-scroll" }, element("table", {}, element("caption", {}, labels[name]), element("thead", {}, head), element("tbody", {}, body)));
  }

  function computed(name, values, seen) {
    const square = name === "scores" || name === "weights";
    const node = matrix({
      values, rows: tokens, columns: square ? tokens : columns, caption: labels[name], kind: name === "weights" ? "weight" : "signed",
      limit: 2, seen: square ? seen : null,
    });
    node.dataset.name = name;
    node.dataset.values = JSON.stringify(values);
    return node;
  }

  const steps = Object.entries(STEPS).flatMap(([step, names]) => [
    element("p", { class: "at-note" }, labels[`step_${step}`]), element("div", { class: "at-row" }, names.map((name) => places[name])),
  ]);
  panel.start(() => {
    if (!steps[0].isConnected) panel.show(steps);
    const all = Object.values(inputs).flat(2);
    const wrong = all.filter((input) => input.value.trim() === "" || !Number.isFinite(Number(input.value)));
    all.forEach((input) => input.setAttribute("aria-invalid", String(wrong.includes(input))));
    if (wrong.length) {
      panel.say(labels.wrong, edited ?? {});
      return;
    }
    const given = Object.fromEntries(EDITED.map((name) => [name, inputs[name].map((line) => line.map((input) => Number(input.value)))]));
    const found = compute(given, usePositions.value, causal.value);
    for (const [name, place] of Object.entries(places)) {
      if (!EDITED.includes(name)) place.replaceChildren(computed(name, found[name], found.seen));
    }
    const most = found.weights[0].indexOf(Math.max(...found.weights[0]));
    panel.say(edited ? labels.edited : labels.status, {
      ...edited, value: edited?.input.value, query: tokens[0], key: tokens[most], weight: decimals(found.weights[0][most]),
      vector: found.normalised[0].map((x) => decimals(x)).join(", "),
    });
  }, labels.reset);
}
