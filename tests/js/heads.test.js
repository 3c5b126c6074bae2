import assert from "node:assert/strict";
import { test } from "node:test";
import { headMaps, largest, unpack } from "../../annotated_transformer/interactive/heads.js";

test("a head sees its own columns, scaled by its own width", () => {
  const [query, key] = [[[1, 0, 2, 1], [0, 3, 1, 0]], [[1, 1, 0, 1], [2, 0, 1, 1]]];
  const [first, second] = headMaps(query, key, 2);
  const share = (a, b) => Math.exp(a) / (Math.exp(a) + Math.exp(b));
  assert.ok(Math.abs(first[0][0] - share(1 / Math.SQRT2, 2 / Math.SQRT2)) < 1e-12);
  assert.ok(Math.abs(second[1][0] - share(0, 1 / Math.SQRT2)) < 1e-12);
  assert.equal(headMaps(query, key, 1).length, 1);
});

test("a causal map is filled up with zeros", () => {
  const maps = [[[1000, 250, 750]], [[1000, 0, 1000]]];
  const names = ["a", "b"];
  assert.deepEqual(unpack({ queries: names, keys: names, causal: true, maps }, 0, 0), [[1, 0], [0.25, 0.75]]);
  assert.deepEqual(unpack({ queries: names, keys: ["c"], causal: false, maps: [[[300, 700]]] }, 0, 0), [[0.3], [0.7]]);
  assert.equal(largest([0.2, 0.5, 0.3]), 1);
});
