import { canvasMap, chart, decimals, dot, element, range, say, svg, whole } from "./shared.js";

export const frequency = (pair, width) => Math.exp(2 * pair * (-Math.log(10000) / width));

export function encoding(length, width) {
  return range(length).map((t) => range(width).map((column) => {
    const angle = t * frequency(Math.floor(column / 2), width);
    return column % 2 ? Math.cos(angle) : Math.sin(angle);
  }));
}

// product of the first row with each row; it depends on their distance alone, so any other row gives the same
export const products = (rows) => rows.map((row) => dot(rows[0], row) / (row.length / 2));

// a pair of numbers turned by an angle, as rotary position embedding turns the pairs of queries and keys
export function turn([x, y], angle) {
  return [x * Math.cos(angle) - y * Math.sin(angle), x * Math.sin(angle) + y * Math.cos(angle)];
}

export const degrees = (angle) => (((angle * 180) / Math.PI) % 360 + 360) % 360;

// the angle between two hands, 0 to 180 degrees
export function between(angle) {
  const turned = degrees(angle);
  return turned > 180 ? 360 - turned : turned;
}

// which clocks are drawn: a fast one, slower ones, and the chosen one
export function dials(pair, width) {
  const all = [...new Set([0, width / 16, width / 8, width / 4].map(Math.floor).concat(pair))];
  return all.sort((a, b) => a - b);
}

function dial(pair, picked, query, key, width, labels) {
  const omega = frequency(pair, width);
  const [left, top, radius] = [66, 60, 48];
  // positive angles go against the clock; the page's y axis points down, so the hands turn with it
  const hand = (position, role, dash) => {
    const [x, y] = turn([0, -radius], position * omega);
    return svg("line", { class: `at-line at-${role}`, x1: left, y1: top, x2: left + x, y2: top + y, "stroke-dasharray": dash });
  };
  const values = {
    pair, query: whole(degrees(query * omega)), key: whole(degrees(key * omega)), between: whole(between((query - key) * omega)),
  };
  return svg("svg", { class: "at-dial", viewBox: "0 0 132 154", role: "img", "aria-label": say(labels.dial, values), style: "width:132px" },
    svg("circle", { class: picked ? "at-box at-output" : "at-box", cx: left, cy: top, r: radius + 4 }),
    hand(key, "key", "6 4"), hand(query, "query", null),
    svg("text", { x: left, y: 130, "text-anchor": "middle", class: picked ? "at-output" : "" }, say(labels.dialname, values)),
    svg("text", { x: left, y: 149, "text-anchor": "middle", class: "at-side at-between" }, say(labels.apart, values)));
}

// below the map: where the chosen pair is
function ruler(pair, width, room, labels) {
  const size = room / width;
  const middle = (2 * pair + 1) * size;
  const name = `${2 * pair}, ${2 * pair + 1}`;
  return svg("svg", { viewBox: `0 0 ${room} 30`, style: `width:${room}px`, "aria-hidden": "true" },
    svg("rect", { class: "at-fill-output", x: 2 * pair * size, y: 2, width: 2 * size, height: 6 }),
    svg("text", { class: "at-output", x: Math.min(Math.max(middle, 52), room - 60), y: 24, "text-anchor": "middle" }, `${labels.column} ${name}`));
}

export function render(panel, data, labels) {
  const limits = () => {
    pair.limit(width.value / 2 - 1);
    query.limit(length.value - 1);
    key.limit(length.value - 1);
  };
  const [low, high] = data.lengths;
  const length = panel.slider({ label: labels.length, min: low, max: high, value: data.length });
  const width = panel.slider({ label: labels.width, values: data.widths, value: data.width });
  panel.resets.push(limits); // before the other three get their start values
  const pair = panel.slider({ label: labels.pair, max: data.width / 2 - 1, value: data.pair });
  const query = panel.slider({ label: labels.query, max: data.length - 1, value: data.query });
  const key = panel.slider({ label: labels.key, max: data.length - 1, value: data.key });

  panel.start(() => {
    limits();
    const rows = encoding(length.value, width.value);
    const [i, t, s] = [pair.value, query.value, key.value];
    const x = range(length.value);
    const near = products(rows);
    const distance = Math.abs(t - s);
    const values = {
      length: length.value, width: width.value, pair: i, query: t, last: length.value - 1, pairs: width.value / 2, distance,
      sine: decimals(rows[t][2 * i], 3), cosine: decimals(rows[t][2 * i + 1], 3), product: decimals(near[distance], 3),
      between: whole(between((t - s) * frequency(i, width.value))), wavelength: decimals((2 * Math.PI) / frequency(i, width.value), 1),
    };
    const room = panel.width;
    const column = (text, j, role, dash) => ({
      name: say(text, { column: j }), role, dash, values: rows.map((row) => row[j]),
    });
    panel.show(
      element("p", { class: "at-note" }, say(labels.table, values)),
      canvasMap({ values: rows, label: say(labels.map, values), cell: room, width: room, height: 200 }),
      ruler(i, width.value, room, labels),
      chart({
        width: room, height: 190, x, label: say(labels.curves, values), xlabel: labels.position, ylabel: labels.value, low: -1, high: 1, digits: 0,
        series: [column(labels.sine, 2 * i, "output"), column(labels.cosine, 2 * i + 1, "residual", "6 4")],
      }),
      chart({
        width: room, height: 200, x: range(2 * length.value - 1).map((j) => j - length.value + 1), label: say(labels.products, values),
        xlabel: labels.distance, ylabel: labels.product, high: 1, digits: 2,
        series: [{ name: labels.encoding, role: "query", values: [...near.slice(1).reverse(), ...near] }],
      }),
      element("p", { class: "at-note" }, labels.rotary),
      element("div", { class: "at-row" }, dials(i, width.value).map((j) => dial(j, j === i, t, s, width.value, labels))),
    );
    panel.say(labels.status, values);
  }, labels.reset);
}
