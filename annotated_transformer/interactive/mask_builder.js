import { decimals, dot, element, matrix, multiply, range, say, softmax } from "./shared.js";

export const paddingMask = (ids, pad) => ids.map((id) => id !== pad);

export const causalMask = (length) => range(length).map((i) => range(length).map((j) => j <= i));

// padding at the end, or in front
export function arrange(ids, pad, front) {
  const [words, rest] = [ids.filter((id) => id !== pad), ids.filter((id) => id === pad)];
  return front ? [...rest, ...words] : [...words, ...rest];
}

// what each row may look at: the rules that are switched on, or their opposite
export function seenBy(ids, pad, { padding, causal, wrong }) {
  const real = paddingMask(ids, pad);
  return causalMask(ids.length).map((row) => row.map((past, j) => ((!padding || real[j]) && (!causal || past)) !== wrong));
}

export function weightsOf(query, key, seen) {
  const scale = query[0].length ** -0.5;
  return query.map((q, i) => softmax(key.map((k) => dot(q, k) * scale), seen[i]));
}

export function attend(data, ids, seen) {
  const [query, key, value] = [data.query, data.key, data.value].map((rows) => ids.map((id) => rows[id]));
  const weights = weightsOf(query, key, seen);
  return { weights, output: multiply(weights, value) };
}

export function render(panel, data, labels) {
  const batch = data.ids.length;
  const length = data.ids[0].length;
  const sentence = panel.slider({ label: labels.sentence, min: 1, max: batch, value: 2 });
  const row = panel.slider({ label: labels.row, max: length - 1, value: 1 });
  const padding = panel.toggle({ label: labels.padding, value: true });
  const causal = panel.toggle({ label: labels.causal, value: true });
  const front = panel.toggle({ label: labels.front });
  const wrong = panel.toggle({ label: labels.wrong });

  panel.start(() => {
    const rules = { padding: padding.value, causal: causal.value, wrong: wrong.value };
    const all = data.ids.map((ids) => arrange(ids, data.pad, front.value));
    const names = all.map((ids) => ids.map((id) => data.vocabulary[id]));
    const masks = all.map((ids) => seenBy(ids, data.pad, rules));
    const chosen = sentence.value - 1;
    const { weights, output } = attend(data, all[chosen], masks[chosen]);
    const [i, words] = [row.value, names[chosen]];
    const looked = words.filter((_, j) => masks[chosen][i][j]);
    const best = weights[i].indexOf(Math.max(...weights[i]));
    const values = {
      batch, length, number: chosen + 1, row: i, word: words[i], seen: looked.join(", "), most: decimals(weights[i][best]), key: words[best],
    };
    const grids = masks.map((seen, b) => matrix({
      values: seen.map((line) => line.map(Number)), rows: names[b], columns: names[b], seen, text: false,
      caption: say(labels.sequence, { number: b + 1 }), picked: b === chosen ? [i] : null,
    }));
    panel.show(
      element("p", { class: "at-note" }, say(labels.masks, values)),
      element("div", { class: "at-row", style: "margin-bottom:0.9em" }, grids),
      element("div", { class: "at-row" },
        matrix({
          values: weights, rows: words, columns: words, seen: masks[chosen], picked: [i], corner: labels.queries,
          caption: say(labels.weights, { number: chosen + 1, shape: `(${length}, ${length})` }),
        }),
        matrix({
          values: output, rows: words, kind: "signed", limit: 2, picked: [i], caption: say(labels.output, { shape: `(${length}, ${output[0].length})` }),
        })),
    );
    panel.say(looked.length === 0 ? labels.blind : wrong.value ? labels.mixed : labels.status, values);
  }, labels.reset);
}
