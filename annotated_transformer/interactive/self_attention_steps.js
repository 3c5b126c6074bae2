import { decimals, element, matrix, multiply, range, say, softmax, transpose } from "./shared.js";

export const splitWords = (text, most) => (text.toLowerCase().match(/[\u4e00-\u9fff]|[^\s\u4e00-\u9fff]+/g) ?? []).slice(0, most);

// the hash FNV-1a over the code points starts a generator; each number is one of 21 steps from −1 to 1
export function wordVector(word, known = {}, width = 4) {
  if (Object.hasOwn(known, word)) return known[word];
  let state = 2166136261;
  for (const letter of word) state = Math.imul(state ^ letter.codePointAt(0), 16777619) >>> 0;
  return range(width).map(() => {
    state = (Math.imul(1664525, state) + 1013904223) >>> 0;
    return (Math.floor((state * 21) / 2 ** 32) - 10) / 10;
  });
}

export function fiveSteps(data, text, causal) {
  const words = splitWords(text, data.most);
  const x = words.map((word) => wordVector(word, data.known));
  const [q, k, v] = [data.wq, data.wk, data.wv].map((w) => multiply(x, w));
  const seen = words.map((_, i) => words.map((_, j) => !causal || j <= i));
  const scores = multiply(q, transpose(k));
  const scaled = scores.map((row) => row.map((score) => score / Math.sqrt(k[0].length)));
  const weights = scaled.map((row, i) => softmax(row, seen[i]));
  return { words, x, q, k, v, seen, scores, scaled, weights, output: multiply(weights, v) };
}

// "0.5 · 1 + 0.8 · 1", negative numbers in brackets
export function spelled(a, b, digits) {
  const text = (x, places) => (x < 0 ? `(${decimals(x, places)})` : decimals(x, places));
  return a.map((x, i) => `${text(x, digits[0])} · ${text(b[i], digits[1])}`).join(" + ");
}

export function render(panel, data, labels) {
  const text = panel.text({ label: labels.words, value: data.text });
  const causal = panel.toggle({ label: labels.causal });
  const step = panel.slider({ label: labels.step, min: 1, max: 5, value: 1 });
  const go = (by) => () => {
    step.value = Math.min(Math.max(step.value + by, 1), 5);
    panel.draw();
  };
  const previous = panel.button(labels.previous, go(-1));
  const next = panel.button(labels.next, go(1));

  // the matrices of a step: name, kind of colour, digits
  const tables = {
    1: [["x", "signed", 1]],
    2: [["x", "signed", 1], ["wq", "signed", 0], ["wk", "signed", 0], ["wv", "signed", 0], ["q", "signed", 2], ["k", "signed", 2], ["v", "signed", 2]],
    3: [["q", "signed", 2], ["k", "signed", 2], ["scores", "signed", 2]],
    4: [["scores", "signed", 2], ["scaled", "signed", 2], ["weights", "weight", 2]],
    5: [["weights", "weight", 2], ["v", "signed", 2], ["output", "signed", 2]],
  };

  // one number of the step, spelled out: the last word, and where it looks most
  function example(all, values) {
    const i = all.words.length - 1;
    const j = all.weights[i].indexOf(Math.max(...all.weights[i]));
    const column = (rows) => rows.map((row) => row[0]);
    Object.assign(values, { word: all.words[i], key: all.words[j], weight: decimals(all.weights[i][j]) });
    const total = all.scaled[i].reduce((sum, score, s) => sum + (all.seen[i][s] ? Math.exp(score) : 0), 0);
    const more = {
      1: () => ({ sum: all.x[i].map((x) => decimals(x, 1)).join(", ") }),
      2: () => ({ sum: spelled(all.x[i], column(data.wq), [1, 0]), value: decimals(all.q[i][0]) }),
      3: () => ({ sum: spelled(all.q[i], all.k[j], [2, 2]), value: decimals(all.scores[i][j]) }),
      4: () => ({
        score: decimals(all.scores[i][j]), width: all.k[0].length, scaled: decimals(all.scaled[i][j]), total: decimals(total), value: values.weight,
      }),
      5: () => ({ sum: spelled(all.weights[i], column(all.v), [2, 2]), value: decimals(all.output[i][0]) }),
    };
    return say(labels[`number${values.step}`], { ...values, ...more[values.step]() });
  }

  panel.start(() => {
    previous.disabled = step.value === 1;
    next.disabled = step.value === 5;
    const values = { step: step.value, most: data.most };
    if (splitWords(text.value, data.most).length === 0) {
      panel.show(element("p", { class: "at-note" }, say(labels.empty, values)));
      panel.say(labels.empty, values);
      return;
    }
    const all = fiveSteps(data, text.value, causal.value);
    const square = new Set(["scores", "scaled", "weights"]);
    const all2 = { ...data, ...all };
    const sum = example(all, values);
    panel.show(
      element("p", {}, labels[`step${step.value}`]),
      element("div", { class: "at-row" }, tables[step.value].map(([name, kind, digits]) => matrix({
        values: all2[name], kind, digits, caption: say(labels[name], { shape: `(${all2[name].length}, ${all2[name][0].length})` }),
        rows: name.startsWith("w") && name !== "weights" ? null : all.words, columns: square.has(name) ? all.words : null,
        limit: name === "x" ? 1 : undefined,
        seen: (name === "weights" || name === "scaled") ? all.seen : null,
      }))),
      element("p", { class: "at-note at-sum" }, sum),
    );
    panel.say(labels.status, values);
  }, labels.reset);
}
