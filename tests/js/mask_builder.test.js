import assert from "node:assert/strict";
import { test } from "node:test";
import { arrange, attend, causalMask, paddingMask, seenBy, weightsOf } from "../../annotated_transformer/interactive/mask_builder.js";

const [on, off] = [{ padding: true, causal: true, wrong: false }, { padding: false, causal: false, wrong: false }];

test("padding is hidden from everybody, the future from those before it", () => {
  assert.deepEqual(paddingMask([5, 3, 0], 0), [true, true, false]);
  assert.deepEqual(causalMask(2), [[true, false], [true, true]]);
  assert.deepEqual(seenBy([5, 3, 0], 0, on), [[true, false, false], [true, true, false], [true, true, false]]);
  assert.ok(seenBy([5, 0], 0, off).flat().every((seen) => seen));
});

test("the wrong way round, every cell is the opposite", () => {
  const right = seenBy([0, 4, 2], 0, on);
  assert.deepEqual(seenBy([0, 4, 2], 0, { ...on, wrong: true }), right.map((row) => row.map((seen) => !seen)));
});

test("padding moves as one block", () => {
  assert.deepEqual(arrange([5, 3, 0, 0], 0, true), [0, 0, 5, 3]);
  assert.deepEqual(arrange([5, 3, 0, 0], 0, false), [5, 3, 0, 0]);
});

test("weights of a row sum to one, or to nothing where nothing is seen", () => {
  const weights = weightsOf([[1, 0], [0, 2]], [[1, 1], [0, 1]], [[true, true], [false, false]]);
  assert.ok(Math.abs(weights[0][0] + weights[0][1] - 1) < 1e-12 && weights[0][0] > weights[0][1]);
  assert.deepEqual(weights[1], [0, 0]);
  const data = { query: [[0], [1]], key: [[1], [1]], value: [[7, 0], [3, 1]] };
  assert.deepEqual(attend(data, [0, 1], [[false, true], [true, true]]).output, [[3, 1], [5, 0.5]]);
});
