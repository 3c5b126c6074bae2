import assert from "node:assert/strict";
import { test } from "node:test";
import { decimals, multiply, percent, range, say, shade, softmax, transpose, whole } from "../../annotated_transformer/interactive/shared.js";

const near = (got, wanted) => got.forEach((x, i) => assert.ok(Math.abs(x - wanted[i]) < 1e-12, `${got} ${wanted}`));

test("numbers have a real minus sign and no negative zero", () => {
  assert.equal(decimals(-1.239), "−1.24");
  assert.equal(decimals(-0.001), "0.00");
  assert.equal(whole(1234567.4), "1,234,567");
  assert.equal(whole(999), "999");
  assert.equal(whole(-1234), "−1,234");
  assert.equal(percent(0.1234, 1), "12.3 %");
});

test("texts keep the holes that nothing fills", () => {
  assert.equal(say("{a} of {b}", { a: 0 }), "0 of {b}");
});

test("softmax survives large scores and gives zeros where nothing is seen", () => {
  near(softmax([1000, 1000]), [0.5, 0.5]);
  near(softmax([0, Math.log(3)]), [0.25, 0.75]);
  near(softmax([5, 1, 1], [false, true, true]), [0, 0.5, 0.5]);
  near(softmax([1, 2], [false, false]), [0, 0]);
});

test("matrices are multiplied row by column", () => {
  assert.deepEqual(multiply([[1, 2], [3, 4], [5, 6]], [[1, 0, 2], [0, 1, 3]]), [[1, 2, 8], [3, 4, 18], [5, 6, 28]]);
  assert.deepEqual(transpose([[1, 2, 3]]), [[1], [2], [3]]);
  assert.deepEqual(range(3), [0, 1, 2]);
});

test("a number changes its colour where the ground gets strong", () => {
  assert.equal(shade(0.62), "at-cell");
  assert.equal(shade(0.7), "at-cell at-flip-dark");
  assert.equal(shade(0.9), "at-cell at-flip-dark at-flip-light");
  assert.equal(shade(0.9, true), "at-cell at-flip-dark");
  assert.equal(shade(1, true), "at-cell at-flip-dark at-flip-light");
});
