import assert from "node:assert/strict";
import { test } from "node:test";
import { distribution, entropy, pick, uniform, visible } from "../../annotated_transformer/interactive/distribution.js";

const near = (got, wanted) => got.forEach((x, i) => assert.ok(Math.abs(x - wanted[i]) < 1e-12, `${got} ${wanted}`));
const logits = [0.5, 0.25, 0.125, 0.125].map(Math.log);

test("settings that leave everything give the model's distribution", () => {
  const { before, after, kept, order } = distribution(logits);
  near(before, [0.5, 0.25, 0.125, 0.125]);
  near(after, before);
  assert.deepEqual([kept, order], [[true, true, true, true], [0, 1, 2, 3]]);
});

test("temperature sharpens and flattens and cuts nothing", () => {
  near(distribution(logits, { temperature: 0.5 }).after, [16, 4, 1, 1].map((x) => x / 22));
  near(distribution([0, 1, 1], { temperature: 0 }).after, [0, 1, 0]);
  assert.deepEqual(distribution(logits, { temperature: 0 }).kept, [true, true, true, true]);
});

test("each filter keeps the likeliest", () => {
  near(distribution(logits, { topK: 2 }).after, [2 / 3, 1 / 3, 0, 0]);
  near(distribution(logits, { topK: 3 }).after, [4 / 7, 2 / 7, 1 / 7, 0]);
  near(distribution(logits, { topP: 0.7 }).after, [2 / 3, 1 / 3, 0, 0]);
  near(distribution(logits, { topP: 0.01 }).after, [1, 0, 0, 0]);
  near(distribution(logits, { minP: 0.4 }).after, [2 / 3, 1 / 3, 0, 0]);
});

test("temperature comes before the filters, and top-k before top-p", () => {
  assert.deepEqual(distribution(logits, { temperature: 0.5, topP: 0.7 }).kept, [true, false, false, false]);
  assert.deepEqual(distribution(logits, { topK: 2, topP: 0.6 }).kept, [true, false, false, false]);
  assert.deepEqual(distribution(logits, { topP: 0.6 }).kept, [true, true, false, false]);
});

test("entropy is in bits", () => {
  assert.equal(entropy([0.25, 0.25, 0.25, 0.25, 0]), 2);
  assert.equal(entropy([1, 0]), 0);
});

test("numbers of a seed are spread evenly, the same each time", () => {
  const numbers = Array.from({ length: 4000 }, (_, i) => uniform(5, i));
  assert.ok(numbers.every((u) => u >= 0 && u < 1));
  assert.ok(Math.abs(numbers.reduce((sum, u) => sum + u, 0) / 4000 - 0.5) < 0.02);
  assert.equal(new Set(numbers).size, 4000);
  assert.equal(uniform(5, 7), numbers[7]);
});

test("a draw falls on the token whose share holds the number", () => {
  assert.deepEqual([0, 0.2, 0.31, 0.999].map((u) => pick([0.2, 0, 0.1, 0.7], u)), [0, 2, 3, 3]);
  assert.equal(pick([0.5, 0.4999999999, 0], 0.99999999999), 1);
});

test("spaces and line ends can be seen", () => {
  assert.equal(visible("a b\nc"), "a␣b⏎c");
});
