import assert from "node:assert/strict";
import { test } from "node:test";
import { between, degrees, dials, encoding, frequency, products, turn } from "../../annotated_transformer/interactive/positional_encoding_figure.js";

const near = (got, wanted) => assert.ok(Math.abs(got - wanted) < 1e-12, `${got} ${wanted}`);

test("sines stand in even columns, cosines in odd ones, each pair slower than the one before", () => {
  const rows = encoding(6, 8);
  rows.forEach((row, t) => [0, 1, 2, 3].forEach((i) => {
    near(row[2 * i], Math.sin(t / 10000 ** (2 * i / 8)));
    near(row[2 * i + 1], Math.cos(t / 10000 ** (2 * i / 8)));
  }));
  near(frequency(0, 8), 1);
  near(frequency(3, 8), 10000 ** -0.75);
});

test("the product of two rows depends on their distance", () => {
  const rows = encoding(9, 16);
  const near0 = products(rows);
  near(near0[0], 1);
  near(near0[3], rows[5].reduce((sum, x, j) => sum + x * rows[8][j], 0) / 8);
});

test("a turn keeps lengths and adds up", () => {
  const [x, y] = turn(turn([0.6, -0.8], 1.1), -0.4);
  const [u, v] = turn([0.6, -0.8], 0.7);
  near(x, u);
  near(y, v);
  near(Math.hypot(x, y), 1);
});

test("angles are told as people tell them", () => {
  near(degrees(-Math.PI / 2), 270);
  near(between(-Math.PI / 2), 90);
  near(between(3 * Math.PI), 180);
});

test("the chosen clock is always among those drawn, and none twice", () => {
  assert.deepEqual(dials(5, 64), [0, 4, 5, 8, 16]);
  assert.deepEqual(dials(0, 8), [0, 1, 2]);
});
