import assert from "node:assert/strict";
import { test } from "node:test";
import { cosine, noam } from "../../annotated_transformer/interactive/learning_rate.js";

test("the paper's schedule peaks at the end of the warm-up", () => {
  assert.ok(Math.abs(noam(4000, 512, 4000) - (512 * 4000) ** -0.5) < 1e-15);
  assert.equal(noam(0, 512, 4000), noam(1, 512, 4000));
});

test("the cosine starts above zero, peaks after the warm-up and ends at zero", () => {
  assert.equal(cosine(0, 1, 9, 100), 0.1);
  assert.equal(cosine(9, 1, 9, 100), 1);
  assert.equal(cosine(100, 1, 9, 100), 0);
});
