import { Bars, distribution, pick, settingControls, uniform, values, visible } from "./distribution.js";
import { GPT, concatenate, decode, readWeights, windowStart } from "./gpt_model.js";
import { canvasMap, decimals, element, matrix, range, say, shade, weightColor, whole } from "./shared.js";

const [SLICE, MOST] = [12, 200]; // milliseconds of work between two drawings, at least and at most
const HEIGHT = 5; // of a head's row, in pixels

// adds the scripts of the weights to the page, one after the other; each leaves its part in atWeights
export async function fetchWeights({ folder, digest, parts }, onprogress) {
  const part = (i) => globalThis.atWeights?.[digest]?.[i];
  for (let i = 0; i < parts; i += 1) {
    if (!part(i)) {
      await new Promise((resolve) => {
        const done = () => { script.remove(); resolve(); };
        const script = element("script", { src: `${folder}weights-${i + 1}.js?${digest}`, onload: done, onerror: done });
        document.head.append(script);
      });
    }
    if (!part(i)) return null;
    onprogress(i + 1);
  }
  return concatenate(range(parts).map((i) => decode(part(i))));
}

// the text so far: characters are added as they are drawn, so that a long text costs no more than a short one
class Path {
  constructor(labels) {
    this.prompt = element("span", { class: "at-prompt" });
    this.drawn = element("span", {});
    this.text = element("p", { class: "at-text at-scroll", tabindex: 0, role: "group", "aria-label": labels.text }, this.prompt, this.drawn);
    [this.labels, this.shown] = [labels, null];
  }

  update(prompt, drawn) {
    this.prompt.textContent = prompt;
    if (this.shown !== drawn) { // another text
      this.drawn.replaceChildren();
      [this.shown, this.count] = [drawn, 0];
    }
    for (const { character, p } of drawn.slice(this.count)) {
      this.drawn.append(element("span", { class: shade(p), style: `background:${weightColor(p)}`, title: decimals(p) }, character));
    }
    this.count = drawn.length;
    const last = drawn.slice(-12);
    const table = last.length ? [matrix({ values: [last.map(({ p }) => p)], rows: [this.labels.probability],
      columns: last.map(({ character }) => visible(character)), caption: this.labels.drawn })] : [];
    return [element("p", { class: "at-note" }, this.labels.text), this.text, ...table];
  }
}

// the window's characters shaded by one head, and a map of all heads
function attentionView(maps, characters, layer, head, labels, width) {
  const weights = maps[layer][head];
  const most = weights.indexOf(Math.max(...weights));
  const words = say(labels.attention, { layer: layer + 1, head: head + 1, at: visible(characters[most]), weight: decimals(weights[most]) });
  const marks = weights.map((w, t) => element("span", { class: shade(w), style: `background:${weightColor(w)}`, title: decimals(w) },
    characters[t] === "\n" ? "⏎\n" : characters[t]));
  const rows = maps.flat();
  const canvas = canvasMap({ values: rows, label: `${labels.heads} ${words}`, kind: "weight", cell: 30, width: width - 70, height: HEIGHT * rows.length });
  const frame = element("div", { class: "at-frame", style: `top:${HEIGHT * (layer * maps[0].length + head)}px;height:${HEIGHT}px` });
  const names = element("div", {}, maps.map((heads, i) => element("span", { style: `display:block;height:${HEIGHT * heads.length}px` },
    say(labels.rows, { layer: i + 1 }))));
  return [element("p", { class: "at-note" }, words), element("p", { class: "at-text at-scroll", tabindex: 0, role: "group", "aria-label": words }, marks),
    element("p", { class: "at-note" }, labels.heads), element("div", { class: "at-heads" }, names, element("div", {}, canvas, frame))];
}

export function render(panel, data, labels) {
  const { characters, shape, stored, weights } = data;
  let [model, drawn, start, run, note] = [null, [], 0, null, {}];
  const group = () => panel.add(element("div", { class: "at-row" }));
  const [first, second, third, fourth] = range(4).map(group);
  const loader = panel.button(say(labels.load, { size: weights.megabytes }), load, first);
  const bar = panel.add(element("progress", { max: weights.parts, value: 0, "aria-label": labels.progress, hidden: true }), first);
  const prompt = panel.text({ label: labels.prompt, value: data.prompt.replaceAll("\n", "\\n"), length: data.longest, into: first });
  const controls = settingControls(panel, data, labels, second);
  const seed = panel.number({ label: labels.seed, value: data.seed, min: 0, max: 2 ** 32 - 1, step: 1, into: second });
  seed.input.style.width = "8em";
  const stepper = panel.button(labels.step, () => { stop(); if (advance()) panel.draw(); }, third);
  const runner = panel.button(labels.run, () => (run ? finish() : begin()), third);
  panel.button(labels.again, () => { restart(); panel.draw(); }, third);
  const layer = panel.slider({ label: labels.layer, min: 1, max: shape.layers, value: 1, into: fourth });
  const head = panel.slider({ label: labels.head, min: 1, max: shape.heads, value: 1, into: fourth });
  const log = panel.toggle({ label: labels.log, into: fourth });
  const [bars, path] = [new Bars(characters, labels), new Path(labels)];
  const next = element("p", { class: "at-note" });
  panel.resets.push(restart);
  const asked = () => prompt.value.replaceAll("\\n", "\n"); // a field of one line
  let given = [asked(), seed.value].join("\n");

  function restart() {
    stop();
    [drawn, start, note] = [[], 0, {}];
  }

  async function load() {
    loader.disabled = true;
    bar.hidden = false;
    const show = (done) => { bar.value = done; panel.say(labels.loading, { done, all: weights.parts }); };
    show(0);
    const bytes = await fetchWeights(weights, show);
    bar.hidden = true;
    loader.disabled = bytes !== null;
    model = bytes && new GPT(readWeights(bytes), shape);
    tell(model ? say(labels.loaded, { parameters: whole(data.parameters), layers: shape.layers }) : labels.missing);
    panel.draw();
  }

  // what is known of the place after the text: null where the stored example says nothing, or the model still reads
  function look() {
    const text = asked() + drawn.map(({ character }) => character).join("");
    if (!model) {
      const at = text.length - data.prompt.length;
      const logits = (data.prompt + stored.text).startsWith(text) ? stored.logits[at] : undefined;
      if (!logits) return null;
      const maps = () => stored.attention[at].map((rows) => rows.map((row) => row.map((w) => w / 1000)));
      return { logits, maps, window: text.slice(-stored.attention[at][0][0].length) };
    }
    start = windowStart(text.length, start, shape.context);
    const window = text.slice(start);
    const done = model.read([...window].map((character) => characters.indexOf(character)), performance.now() + SLICE);
    return done ? { logits: Array.from(model.logits), window, maps: () => model.attention() } : null;
  }

  function draws(here) {
    const made = distribution(here.logits, values(controls));
    const u = uniform(seed.value, drawn.length);
    return { made, u, id: pick(made.after, u) };
  }

  function advance() {
    const here = valid() && look();
    if (!here) return false;
    const { made, id } = draws(here);
    drawn.push({ character: characters[id], p: made.after[id] });
    return true;
  }

  function begin() {
    run = { since: performance.now(), drawn: performance.now(), count: drawn.length };
    runner.textContent = labels.stop;
    requestAnimationFrame(tick);
  }

  function tick() {
    if (!run) return;
    const now = performance.now(); // two thirds of the time are for writing, where drawing is slow
    const until = now + Math.min(Math.max(SLICE, 2 * (now - run.drawn)), MOST);
    let going = true;
    while (going && performance.now() < until) going = advance() && drawn.length < run.count + data.most;
    if (going || (model && drawn.length < run.count + data.most)) requestAnimationFrame(tick);
    else finish();
    if (!run) return;
    run.drawn = performance.now();
    panel.draw();
  }

  function stop() {
    run = null;
    runner.textContent = labels.run;
  }

  function finish() {
    const [count, seconds] = [drawn.length - run.count, (performance.now() - run.since) / 1000];
    stop();
    if (count) tell(say(labels.rate, { count: whole(count), seconds: decimals(seconds, 1), rate: whole(count / seconds) }));
    panel.draw();
  }

  // a message stands until the reader changes something
  const state = () => JSON.stringify([prompt, seed, layer, head, log, ...Object.values(controls)].map((control) => control.value).concat(drawn.length));
  const tell = (text) => { note = { text, state: state() }; };
  const foreign = () => [...new Set(asked())].filter((character) => !characters.includes(character));
  const valid = () => asked() !== "" && foreign().length === 0;

  panel.start(() => {
    const now = [asked(), seed.value].join("\n");
    if (now !== given) restart();
    given = now;
    const here = valid() ? look() : null;
    stepper.disabled = runner.disabled = !here && !run;
    const parts = path.update(asked(), drawn);
    const spoken = note.state === state() ? note.text : "";
    if (!here) {
      const waits = model && valid();
      if (waits) requestAnimationFrame(() => panel.draw());
      const words = waits ? say(labels.reading, { done: model.past.length, all: asked().length + drawn.length - start })
        : valid() ? labels.needs : say(labels.foreign, { characters: foreign().map(visible).join(" ") });
      panel.show(parts, element("p", { class: "at-needs" }, words));
      panel.say(spoken || words);
      return;
    }
    const { made, u, id } = draws(here);
    bars.update(made, { log: log.value, next: id, width: panel.drawing.clientWidth - 40 });
    next.textContent = say(labels.next, { u: decimals(u, 4), character: visible(characters[id]) });
    panel.show(parts, next, bars.legend, bars.node, attentionView(here.maps(), here.window, layer.value - 1, head.value - 1, labels, panel.width));
    path.text.scrollTop = path.text.scrollHeight;
    const top = made.order[0];
    panel.say(run ? labels.writing : spoken || labels.status, { text: asked().length + drawn.length,
      character: visible(characters[top]), before: decimals(made.before[top]), after: decimals(made.after[top]) });
  }, labels.reset);
}
