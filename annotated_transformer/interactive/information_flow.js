import { element, range, say, svg, whole } from "./shared.js";

// steps on the way from a token to one that stands `distance` further
export function pathLength(kind, distance, kernel) {
  return { recurrence: distance + 1, convolution: Math.max(1, Math.ceil(distance / (kernel - 1))), attention: 1 }[kind];
}

export const sequentialSteps = (kind, length) => (kind === "recurrence" ? length : 1);

export function work(kind, length, width, kernel) {
  return { recurrence: length * width ** 2, convolution: kernel * length * width ** 2, attention: length ** 2 * width }[kind];
}

// has token j reached token i after so many steps? The recurrence reads from left to right, a state a step;
// the other two are a layer further with each step. Only attention sees tokens to the right.
export function hasReached(kind, i, j, step, kernel) {
  if (kind === "attention") return step >= 1;
  if (j > i) return false;
  return kind === "recurrence" ? step > i : step >= pathLength(kind, i - j, kernel);
}

export function reach(kind, length, step, kernel) {
  return range(length).map((i) => range(length).map((j) => hasReached(kind, i, j, step, kernel)));
}

export const count = (row) => row.filter(Boolean).length;

// arrows of one kind: [from token, from level, to token, to level]; level 0 holds the tokens
export function arrows(kind, length, step, kernel) {
  if (step === 0) return [];
  const all = range(length);
  if (kind === "attention") return all.flatMap((i) => all.map((j) => [j, 0, i, 1]));
  if (kind === "recurrence") {
    return all.slice(0, step).flatMap((i) => [[i, 0, i, 1], ...(i > 0 ? [[i - 1, 1, i, 1]] : [])]);
  }
  const levels = levelsOf(kind, length, step, kernel);
  return range(levels).flatMap((level) => all.flatMap((i) => range(kernel).filter((b) => b <= i).map((b) => [i - b, level, i, level + 1])));
}

// more layers of convolution than the last token needs change nothing, so no more are drawn
export function levelsOf(kind, length, step, kernel) {
  return kind === "convolution" ? Math.min(step, pathLength(kind, length - 1, kernel)) : 1;
}

function drawing(kind, state, labels) {
  const { length, step, kernel, token } = state;
  const [width, height, low, high] = [176, 170, 150, 20];
  const cell = (width - 8) / length;
  const levels = Math.max(levelsOf(kind, length, step, kernel), 1);
  const x = (i) => 4 + (i + 0.5) * cell;
  const y = (level) => low - ((low - high) * level) / levels;
  const seen = reach(kind, length, step, kernel)[token];
  const parts = arrows(kind, length, step, kernel);
  const node = svg("svg", {
    class: "at-flow", viewBox: `0 0 ${width} ${height}`, role: "img", style: "width:150px",
    "aria-label": say(labels.drawing, { kind: labels[kind], step, reached: count(seen), length, token: token + 1 }),
  });
  // what lies on a way to the chosen token is drawn strongly: go back from it through the arrows
  const on = new Set([`${token},${levels}`]);
  for (const [i, a, j, b] of [...parts].reverse()) if (on.has(`${j},${b}`)) on.add(`${i},${a}`);
  for (const [i, a, j, b] of parts) {
    const strong = on.has(`${j},${b}`);
    node.append(svg("line", {
      class: strong ? "at-query" : "at-grid", x1: x(i), y1: y(a), x2: x(j), y2: y(b), "stroke-width": strong ? 1.4 : 0.7,
    }));
  }
  const radius = Math.min(cell * 0.36, 7);
  for (const level of range(levels + 1)) {
    for (const i of range(length)) {
      const reached = level === 0 ? seen[i] : level === levels && i === token && seen.some(Boolean);
      node.append(svg("circle", {
        class: reached ? (level === 0 ? "at-fill-query at-source" : "at-fill-output") : "at-residual", fill: reached ? null : "none",
        "stroke-width": 1.2, cx: x(i), cy: y(level), r: radius,
      }));
    }
  }
  return node;
}

function grid(kind, state, labels) {
  const { length, step, kernel, token } = state;
  const [width, cell] = [176, 168 / length];
  const rows = reach(kind, length, step, kernel);
  const node = svg("svg", {
    class: "at-reach", viewBox: `0 0 ${width} ${width}`, role: "img", style: "width:150px",
    "aria-label": say(labels.grid, { kind: labels[kind], pairs: count(rows.flat()), all: length ** 2 }),
  });
  rows.forEach((row, i) => row.forEach((seen, j) => node.append(svg("rect", {
    class: seen ? (i === token ? "at-fill-query" : "at-fill-residual") : "at-grid", fill: seen ? null : "none", "fill-opacity": seen && i !== token ? 0.55 : 1,
    x: 4 + j * cell, y: 4 + i * cell, width: cell - 1.5, height: cell - 1.5,
  }))));
  return node;
}

export function render(panel, data, labels) {
  const slider = (label, [min, max], value) => panel.slider({ label, min, max, value });
  const limits = () => {
    step.limit(length.value);
    token.limit(length.value);
  };
  const length = slider(labels.length, data.lengths, data.length);
  panel.resets.push(limits); // before step and token get their start values
  const kernel = slider(labels.kernel, data.kernels, data.kernel);
  const step = slider(labels.step, [0, data.length], 2);
  const token = slider(labels.token, [1, data.length], data.length);
  const width = panel.slider({ label: labels.width, values: data.widths, value: data.width });

  panel.start(() => {
    limits();
    const state = { length: length.value, kernel: kernel.value, step: step.value, token: token.value - 1 };
    const values = { step: state.step, token: token.value };
    for (const kind of data.kinds) values[kind] = count(reach(kind, state.length, state.step, state.kernel)[state.token]);
    const row = (kind) => [
      labels[kind], values[kind], pathLength(kind, state.length - 1, state.kernel), sequentialSteps(kind, state.length),
      say(labels.works, { formula: labels[`${kind}work`], value: whole(work(kind, state.length, width.value, state.kernel)) }),
    ];
    const head = [say(labels.reached, values), labels.path, labels.steps, labels.work];
    panel.show(
      element("div", { class: "at-row" }, data.kinds.map((kind) => element("div", {},
        element("p", { class: "at-note" }, labels[kind]), drawing(kind, state, labels), grid(kind, state, labels)))),
      element("div", { class: "at-scroll", style: "margin-top:0.6em", tabindex: 0, role: "group", "aria-label": labels.work }, element("table", { class: "at-counts" },
        element("thead", {}, element("tr", {}, element("td", {}), head.map((text) => element("th", { scope: "col" }, text)))),
        element("tbody", {}, data.kinds.map((kind) => element("tr", {}, row(kind).map((text, i) => (
          i === 0 ? element("th", { scope: "row" }, text) : element("td", {}, String(text)))))))),
      ),
    );
    panel.say(labels.status, values);
  }, labels.reset);
}
