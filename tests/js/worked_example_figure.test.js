import assert from "node:assert/strict";
import { test } from "node:test";
import { compute, normalise, positionTable } from "../../annotated_transformer/interactive/worked_example_figure.js";

const near = (got, wanted, most = 1e-12) => got.flat().forEach((x, i) => assert.ok(Math.abs(x - wanted.flat()[i]) < most, `${got} ${wanted}`));
const eye = [[1, 0], [0, 1]];
const given = { embedded: [[1, 0], [0, 1]], W_Q: eye, W_K: eye, W_V: eye, W_O: [[2, 0], [0, 2]] };

test("positions are sine and cosine of slower and slower clocks", () => {
  near(positionTable(2, 4), [[0, 1, 0, 1], [Math.sin(1), Math.cos(1), Math.sin(0.01), Math.cos(0.01)]]);
});

test("rows get mean 0 and deviation 1", () => {
  near(normalise([[1, 3]]), [[-1, 1]], 1e-5);
});

test("without positions a token looks most at itself, by a sum that can be checked by hand", () => {
  const found = compute(given, false);
  const share = Math.exp(1 / Math.SQRT2) / (Math.exp(1 / Math.SQRT2) + 1);
  near(found.weights, [[share, 1 - share], [1 - share, share]]);
  near(found.attended, [[2 * share, 2 - 2 * share], [2 - 2 * share, 2 * share]]);
  near(found.added, [[1 + 2 * share, 2 - 2 * share], [2 - 2 * share, 1 + 2 * share]]);
});

test("with the causal mask the first token sees itself alone", () => {
  near(compute(given, false, true).weights, [[1, 0], compute(given, false).weights[1]]);
});
