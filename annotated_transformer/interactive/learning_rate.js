import { chart, decimals, range, say, whole } from "./shared.js";

export function noam(step, width, warmup) {
  const n = Math.max(step, 1);
  return width ** -0.5 * Math.min(n ** -0.5, n * warmup ** -1.5);
}

export function cosine(step, peak, warmup, total) {
  if (step < warmup) return (peak * (step + 1)) / (warmup + 1);
  if (step >= total) return 0;
  return (peak / 2) * (1 + Math.cos((Math.PI * (step - warmup)) / (total - warmup)));
}

export function render(panel, data, labels) {
  const warmup = panel.slider({ label: labels.warmup, min: 500, max: 16000, step: 500, value: data.warmup, format: whole });
  const width = panel.slider({ label: labels.width, values: data.widths, value: data.d_model, format: whole });
  const steps = panel.slider({ label: labels.updates, min: 10000, max: 100000, step: 10000, value: data.steps, format: whole });
  panel.start(() => {
    const x = range(201).map((i) => (steps.value * i) / 200);
    const peak = noam(warmup.value, width.value, warmup.value);
    const values = {
      warmup: whole(warmup.value), peak: decimals(1e3 * peak, 3), steps: whole(steps.value),
      last: decimals(1e3 * noam(steps.value, width.value, warmup.value), 3),
    };
    panel.show(chart({
      width: panel.width, x, label: say(labels.chart, values), xlabel: labels.step, ylabel: labels.rate, low: 0, digits: 2,
      series: [
        { name: labels.noam, role: "query", values: x.map((n) => 1e3 * noam(n, width.value, warmup.value)) },
        { name: labels.cosine, role: "key", dash: "6 4", values: x.map((n) => 1e3 * cosine(n, peak, warmup.value, steps.value)) },
      ],
    }));
    panel.say(labels.status, values);
  }, labels.reset);
}
