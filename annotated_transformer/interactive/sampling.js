import { Bars, distribution, entropy, settingControls, values, visible } from "./distribution.js";
import { decimals, element, matrix, percent, range } from "./shared.js";

export function render(panel, data, labels) {
  const options = data.contexts.map(({ text }, i) => [String(i), visible(text)]);
  const context = panel.choice({ label: labels.context, options, value: "0" });
  const controls = settingControls(panel, data, labels);
  controls.minP = panel.slider({ label: labels.min_p, min: 0, max: 0.5, step: 0.01, value: 0, format: (p) => decimals(p) });
  const sorted = panel.toggle({ label: labels.sorted, value: true });
  const log = panel.toggle({ label: labels.log });
  const bars = new Bars(data.characters, labels);
  panel.start(() => {
    const { logits, text } = data.contexts[Number(context.value)];
    const made = distribution(logits, values(controls));
    bars.update(made, { sorted: sorted.value, log: log.value, width: panel.drawing.clientWidth - 40 });
    const kept = range(logits.length).filter((i) => made.kept[i]);
    const line = (probabilities) => [entropy(probabilities), 2 ** entropy(probabilities), Math.max(...probabilities)];
    panel.show(
      element("p", { class: "at-text" }, text, element("span", { class: "at-gap" }, "?")),
      bars.legend, bars.node,
      matrix({ values: [made.before, made.after].map(line), rows: [labels.before, labels.after],
        columns: [labels.entropy, labels.choices, labels.highest], caption: labels.numbers, kind: "plain" }),
    );
    panel.say(labels.status, {
      kept: kept.length, all: logits.length, mass: percent(kept.reduce((sum, i) => sum + made.before[i], 0), 1),
      from: decimals(entropy(made.before)), to: decimals(entropy(made.after)), choices: decimals(2 ** entropy(made.after), 1),
    });
  }, labels.reset);
}
