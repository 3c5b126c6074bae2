import { canvasMap, decimals, dot, element, matrix, range, say, shade, softmax, weightColor } from "./shared.js";

// the weights of every head, when queries and keys of one width are cut into so many
export function headMaps(query, key, heads) {
  const width = query[0].length / heads;
  return range(heads).map((h) => {
    const [from, to] = [h * width, (h + 1) * width];
    return query.map((q) => softmax(key.map((k) => dot(q.slice(from, to), k.slice(from, to)) / Math.sqrt(width))));
  });
}

// a map of a trained model out of its thousandths; a causal one holds only what may be seen
export function unpack({ queries, keys, causal, maps }, layer, head) {
  let at = 0;
  return queries.map((_, i) => keys.map((__, j) => (causal && j > i ? 0 : maps[layer][head][at++] / 1000)));
}

export const largest = (row) => row.indexOf(Math.max(...row));

export function render(panel, data, labels) {
  const heads = panel.slider({ label: labels.heads, values: data.counts, value: data.heads });
  const trained = data.trained.length > 0;
  let text, layer, head, token;
  const item = () => data.trained[Number(text.value)];
  const limits = () => {
    layer.limit(item().maps.length);
    head.limit(item().maps[0].length);
    token.limit(item().queries.length);
  };
  if (trained) {
    const slider = (label, max, value) => panel.slider({ label, min: 1, max, value });
    text = panel.choice({ label: labels.text, options: data.trained.map(({ name }, i) => [i, name]), value: 0 });
    panel.resets.push(limits); // before the other three get their start values
    const start = item();
    layer = slider(labels.layer, start.maps.length, 1);
    head = slider(labels.head, start.maps[0].length, 1);
    token = slider(labels.token, start.queries.length, Math.min(6, start.queries.length));
  }

  const small = (values, label, size, name) => element("div", { class: "at-headmap" },
    canvasMap({ values, label, kind: "weight", cell: size / values[0].length, height: size }),
    element("span", { class: "at-note" }, name));

  // pointing at a token, or at its row, chooses it
  function choose(event) {
    const at = event.target.closest?.("[data-row]");
    if (!at || Number(at.dataset.row) + 1 === token.value) return;
    token.value = Number(at.dataset.row) + 1;
    panel.draw();
  }

  function trainedPart(values) {
    limits();
    const chosen = item();
    const [l, h, i] = [layer.value - 1, head.value - 1, token.value - 1];
    const weights = unpack(chosen, l, h);
    const key = largest(weights[i]);
    Object.assign(values, {
      layer: l + 1, head: h + 1, token: chosen.queries[i], key: chosen.keys[key], weight: decimals(weights[i][key]),
    });
    const chip = (name, attributes) => element("span", { ...attributes, class: `at-chip ${attributes.class ?? ""}` }, name);
    const part = element("div", { class: "at-trained" },
      element("p", { class: "at-note" }, labels.trained),
      element("div", { class: "at-chips at-queries" }, chosen.queries.map((name, row) => chip(name, { "data-row": row, class: row === i ? "at-picked" : "" }))),
      element("p", { class: "at-note" }, say(labels.asks, values)),
      element("div", { class: "at-chips at-keys" }, chosen.keys.map((name, j) => chip(name, { class: shade(weights[i][j]), style: `background:${weightColor(weights[i][j])}` }))),
      element("div", { class: "at-row" },
        matrix({
          values: weights, rows: chosen.queries, columns: chosen.keys, text: false, picked: [i], caption: say(labels.weights, values),
          seen: chosen.causal ? chosen.queries.map((_, row) => chosen.keys.map((__, j) => j <= row)) : null,
        }),
        element("div", { class: "at-row at-thumbs" }, range(chosen.maps[l].length).map((n) => small(
          unpack(chosen, l, n), say(labels.layermap, { head: n + 1, layer: l + 1 }), 66, say(labels.map, { head: n + 1 }))))),
    );
    part.addEventListener("pointerover", choose);
    part.addEventListener("click", choose);
    return part;
  }

  panel.start(() => {
    const maps = headMaps(data.query, data.key, heads.value);
    const width = data.query[0].length;
    const most = decimals(Math.max(...maps.flat(2)));
    const values = { heads: heads.value, width, dk: width / heads.value, most, length: data.words.length };
    panel.show(
      element("p", { class: "at-note" }, say(labels.fresh, values)),
      heads.value === 1
        ? matrix({ values: maps[0], rows: data.words, columns: data.words })
        : element("div", { class: "at-row at-fresh" }, maps.map((map, h) => small(
          map, say(labels.freshmap, { ...values, head: h + 1, most: decimals(Math.max(...map.flat())) }), 96, say(labels.map, { head: h + 1 })))),
      ...(trained ? [trainedPart(values)] : []),
    );
    panel.say(trained ? labels.looks : labels.status, values);
  }, labels.reset);
}
