// What the figures share: elements, number formats, controls, tables of numbers with colour, a few lines of
// linear algebra. Each figure exports render(panel, data, labels); mountAll calls it for every copy on the page.

export function element(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children.flat());
  return node;
}

// --- numbers and texts

export function decimals(x, digits = 2) {
  const text = x.toFixed(digits);
  return (Number(text) === 0 ? text.replace("-", "") : text).replace("-", "−");
}

export const whole = (x) => Math.round(x).toString().replace(/\B(?=(\d{3})+$)/g, ",").replace("-", "−");

export const percent = (x, digits = 0) => `${decimals(100 * x, digits)} %`;

export function say(text, values = {}) {
  return text.replace(/{(\w+)}/g, (hole, name) => (name in values ? values[name] : hole));
}

// --- linear algebra on arrays of rows

export const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);

export const transpose = (a) => a[0].map((_, j) => a.map((row) => row[j]));

export function multiply(a, b) {
  const columns = transpose(b);
  return a.map((row) => columns.map((column) => dot(row, column)));
}

// softmax over what is seen; nothing seen gives zeros, as in the package
export function softmax(scores, seen = null) {
  const open = scores.filter((_, i) => !seen || seen[i]);
  if (open.length === 0) return scores.map(() => 0);
  const highest = Math.max(...open);
  const powers = scores.map((x, i) => (!seen || seen[i] ? Math.exp(x - highest) : 0));
  const total = powers.reduce((sum, x) => sum + x, 0);
  return powers.map((x) => x / total);
}

export const range = (n) => Array.from({ length: n }, (_, i) => i);

// --- colours: from the style sheet's variables, so they follow the theme by themselves

const share = (x) => `${(100 * Math.min(Math.max(x, 0), 1)).toFixed(1)}%`;

export function weightColor(weight) {
  return `color-mix(in srgb, var(--at-query) ${share(weight)}, var(--at-page))`;
}

export function signedColor(value, limit) {
  const role = value < 0 ? "--at-key" : "--at-query";
  return `color-mix(in srgb, var(${role}) ${share(Math.abs(value) / (limit || 1))}, var(--at-page))`;
}

// how strong the colour under a number is, for the style sheet to choose black or white in either theme
export function shade(strength, negative = false) {
  const light = strength > (negative ? 0.98 : 0.85);
  return `at-cell${strength > 0.62 ? " at-flip-dark" : ""}${light ? " at-flip-light" : ""}`;
}

// --- a matrix as a table; kind is "weight" (0 to 1), "signed" (symmetric about 0) or "plain"

export function matrix({ values, rows, columns, corner = "", caption = "", kind = "weight", limit, digits = 2,
  seen = null, picked = null, onpick = null, text = true }) {
  const most = limit ?? Math.max(...values.flat().map(Math.abs), 1e-12);
  const body = values.map((line, i) => element("tr", {}, element("th", { scope: "row" }, rows?.[i] ?? ""),
    line.map((value, j) => cell(value, i, j))));
  function cell(value, i, j) {
    const hidden = seen && !seen[i][j];
    const strength = kind === "weight" ? value : kind === "signed" ? Math.abs(value) / most : 0;
    const color = kind === "weight" ? weightColor(value) : kind === "signed" ? signedColor(value, most) : "transparent";
    const isPicked = picked && picked[0] === i && (picked[1] === undefined || picked[1] === j);
    const shown = decimals(value, digits);
    return element("td", {
      class: `${shade(strength, value < 0)}${hidden ? " at-hidden" : ""}${isPicked ? " at-picked" : ""}`,
      style: hidden ? null : `background:${color}`, "data-row": i, "data-column": j,
      tabindex: onpick ? (picked ? (picked[0] === i && (picked[1] ?? 0) === j ? 0 : -1) : i + j === 0 ? 0 : -1) : null,
      "aria-label": text ? null : `${rows?.[i] ?? i}, ${columns?.[j] ?? j}: ${shown}`,
    }, text ? shown : "");
  }
  const head = columns ? [element("thead", {}, element("tr", {}, element("td", {}, corner),
    columns.map((name) => element("th", { scope: "col" }, name))))] : [];
  const node = element("table", { class: `at-matrix${text ? "" : " at-small"}` },
    caption ? [element("caption", {}, caption)] : [], head, element("tbody", {}, body));
  if (onpick) letPick(node, onpick);
  return element("div", { class: "at-scroll", tabindex: onpick ? null : 0, role: "group", "aria-label": caption || corner || "matrix" }, node);
}

// one cell is in the tab order; arrow keys move from cell to cell; hovering and touching pick too
function letPick(node, onpick) {
  const at = (event) => event.target.closest?.("td[data-row]");
  const pick = (cell) => onpick(Number(cell.dataset.row), Number(cell.dataset.column));
  node.addEventListener("pointerover", (event) => at(event) && pick(at(event)));
  node.addEventListener("click", (event) => at(event) && pick(at(event)));
  node.addEventListener("focusin", (event) => at(event) && pick(at(event)));
  node.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    const from = at(event);
    if (!step || !from) return;
    const [row, column] = [Number(from.dataset.row) + step[0], Number(from.dataset.column) + step[1]];
    const next = node.querySelector(`td[data-row="${row}"][data-column="${column}"]`);
    if (!next) return;
    event.preventDefault();
    from.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
}

// --- many cells: a canvas; colours are read from the theme when it is drawn

export function canvasMap({ values, label, kind = "signed", limit = 1, cell = 6, width = 560, height = null }) {
  const [rows, columns] = [values.length, values[0].length];
  const node = element("canvas", { width: columns, height: rows, role: "img", "aria-label": label, class: "at-canvas" });
  const size = Math.min(cell, width / columns);
  node.style.width = `${columns * size}px`;
  node.style.height = `${height ?? rows * size}px`;
  node.paint = (host) => {
    const [page, query, key] = ["--at-page", "--at-query", "--at-key"].map((name) => rgb(host, name));
    const context = node.getContext("2d");
    const image = context.createImageData(columns, rows);
    values.flat().forEach((value, i) => {
      const [end, part] = kind === "weight" ? [query, value] : [value < 0 ? key : query, Math.abs(value) / limit];
      page.forEach((from, c) => { image.data[4 * i + c] = from + (end[c] - from) * Math.min(part, 1); });
      image.data[4 * i + 3] = 255;
    });
    context.putImageData(image, 0, 0);
  };
  return node;
}

export function rgb(host, name) {
  const text = getComputedStyle(host).getPropertyValue(name).trim().replace("#", "");
  return [0, 2, 4].map((i) => parseInt(text.slice(i, i + 2), 16));
}

// --- lines: x values, named series of y values, both axes labelled

export function chart({ x, series, label, xlabel, ylabel, width = 560, height = 240, low, high, digits = 2 }) {
  const [left, right, top, bottom] = [58, 80, 28, 40];
  const all = series.flatMap((line) => line.values).filter(Number.isFinite);
  const [floor, roof] = [low ?? Math.min(...all), high ?? Math.max(...all)];
  const [first, last] = [x[0], x[x.length - 1]];
  const toX = (value) => left + ((value - first) / (last - first || 1)) * (width - left - right);
  const toY = (value) => height - bottom - ((value - floor) / (roof - floor || 1)) * (height - top - bottom);
  const node = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, class: "at-chart" });
  for (const tick of [floor, (floor + roof) / 2, roof]) {
    node.append(svg("line", { class: "at-grid", x1: left, x2: width - right, y1: toY(tick), y2: toY(tick) }),
      svg("text", { class: "at-side", x: left - 6, y: toY(tick) + 4, "text-anchor": "end" }, decimals(tick, digits)));
  }
  for (const tick of [first, (first + last) / 2, last]) {
    node.append(svg("text", { class: "at-side", x: toX(tick), y: height - bottom + 17, "text-anchor": "middle" }, whole(tick)));
  }
  series.forEach((line) => {
    const points = line.values.map((y, i) => `${toX(x[i]).toFixed(1)},${toY(y).toFixed(1)}`).join(" ");
    node.append(svg("polyline", { class: `at-line at-${line.role}`, points, "stroke-dasharray": line.dash ?? "" }),
      svg("text", { class: `at-name at-${line.role}`, x: toX(last) + 6, y: toY(line.values[line.values.length - 1]) + 4 }, line.name));
  });
  node.append(svg("text", { class: "at-side", x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, xlabel),
    svg("text", { class: "at-side", x: 4, y: 13 }, ylabel));
  return node;
}

// --- the frame: controls on top, a drawing, one line that says what changed

export class Panel {
  constructor(host) {
    const find = (name) => host.querySelector(`.at-${name}`);
    this.host = host;
    [this.controls, this.drawing, this.status] = ["controls", "drawing", "status"].map(find);
    this.resets = [];
    this.draw = () => {};
  }

  // draws now, and again after each change; adds the button that puts every control back
  start(draw, resetLabel = "reset") {
    this.draw = draw;
    this.button(resetLabel, () => this.reset()).classList.add("at-reset");
    this.controls.hidden = false;
    draw();
    // canvases are painted in the colours of the theme, drawings are as wide as there is room: draw again
    let width = this.width;
    new ResizeObserver(() => { if (this.width !== width) { width = this.width; this.draw(); } }).observe(this.host);
    new MutationObserver(() => this.draw()).observe(document.documentElement, { attributeFilter: ["data-theme", "theme"] });
  }

  reset() {
    this.resets.forEach((put) => put());
    this.draw();
  }

  say(text, values) {
    const line = say(text, values);
    if (this.status.textContent !== line) this.status.textContent = line;
  }

  show(...nodes) {
    this.drawing.replaceChildren(...nodes.flat());
    this.drawing.querySelectorAll("canvas").forEach((node) => node.paint?.(this.host));
  }

  // how wide a drawing can be, so that its texts keep their size on a narrow screen
  get width() {
    return Math.min(Math.max(this.drawing.clientWidth || 560, 300), 560);
  }

  add(node, into = this.controls) {
    into.append(node);
    return node;
  }

  // values: the allowed values where they are not min, min + step, …
  slider({ label, min = 0, max, step = 1, value, values = null, format = String, into }) {
    const start = values ? values.indexOf(value) : value;
    const input = element("input", { type: "range", min: values ? 0 : min, max: values ? values.length - 1 : max, step: values ? 1 : step, value: start });
    const output = element("output", {});
    const control = {
      input,
      get value() { return values ? values[Number(input.value)] : Number(input.value); },
      set value(x) { input.value = values ? values.indexOf(x) : x; control.show(); },
      show() { output.textContent = format(control.value); input.setAttribute("aria-valuetext", format(control.value)); },
      limit(most) { input.max = most; control.show(); },
    };
    input.addEventListener("input", () => { control.show(); this.draw(control); });
    this.resets.push(() => { control.value = value; });
    control.show();
    this.add(element("label", { class: "at-slider" }, element("span", {}, label), " ", input, " ", output), into);
    return control;
  }

  // options: [value, text] pairs; radio buttons, or a list where there are more than five
  choice({ label, options, value, into }) {
    const name = `at-${(globalThis.atCount = (globalThis.atCount ?? 0) + 1)}`;
    let control;
    if (options.length > 5) {
      const select = element("select", {}, options.map(([each, text]) => element("option", { value: each }, text)));
      control = { get value() { return select.value; }, set value(x) { select.value = x; } };
      select.addEventListener("change", () => this.draw(control));
      this.add(element("label", {}, element("span", {}, label), " ", select), into);
    } else {
      const inputs = options.map(([each]) => element("input", { type: "radio", name, value: each }));
      control = {
        get value() { return inputs.find((input) => input.checked).value; },
        set value(x) { inputs.forEach((input) => { input.checked = input.value === String(x); }); },
      };
      inputs.forEach((input) => input.addEventListener("change", () => this.draw(control)));
      this.add(element("fieldset", {}, element("legend", {}, label),
        inputs.map((input, i) => element("label", {}, input, " ", options[i][1]))), into);
    }
    control.value = value;
    this.resets.push(() => { control.value = value; });
    return control;
  }

  toggle({ label, value = false, into }) {
    const input = element("input", { type: "checkbox" });
    input.checked = value;
    input.addEventListener("change", () => this.draw());
    this.resets.push(() => { input.checked = value; });
    this.add(element("label", {}, input, " ", label), into);
    return { input, get value() { return input.checked; }, set value(x) { input.checked = x; } };
  }

  text({ label, value, length = 60, into }) {
    const input = element("input", { type: "text", maxlength: length, value, size: Math.min(length, 28), spellcheck: "false" });
    input.addEventListener("input", () => this.draw());
    this.resets.push(() => { input.value = value; });
    this.add(element("label", {}, element("span", {}, label), " ", input), into);
    return { input, get value() { return input.value; }, set value(x) { input.value = x; } };
  }

  number({ label, value, min, max, step = "any", into }) {
    const input = element("input", { type: "number", value, min, max, step });
    const control = { input, get value() { return Number(input.value); }, set value(x) { input.value = x; } };
    input.addEventListener("input", () => this.draw(control));
    this.resets.push(() => { input.value = value; });
    this.add(element("label", {}, element("span", {}, label), " ", input), into);
    return control;
  }

  button(label, onclick, into) {
    return this.add(element("button", { type: "button", onclick }, label), into);
  }
}

export function mountAll(identifier, render) {
  for (const host of document.querySelectorAll(`[data-at="${identifier}"]`)) {
    if (host.dataset.mounted) continue;
    host.dataset.mounted = "true";
    const { data, labels } = JSON.parse(host.querySelector('script[type="application/json"]').textContent);
    render(new Panel(host), data, labels);
  }
}
