import assert from "node:assert/strict";
import { test } from "node:test";
import { fiveSteps, spelled, splitWords, wordVector } from "../../annotated_transformer/interactive/self_attention_steps.js";

const near = (got, wanted) => got.forEach((x, i) => assert.ok(Math.abs(x - wanted[i]) < 1e-9, `${got} ${wanted}`));
const data = {
  most: 6, known: { 我: [0.5, 0.8, -0.3, 0.2], 爱: [0.3, -0.5, 0.9, 0.1], 你: [-0.2, 0.7, 0.4, 0.6] },
  wq: [[1, 0], [1, 0], [0, 2], [0, 1]], wk: [[0, 1], [1, -1], [2, 0], [0, 2]], wv: [[1, 0], [0, 1], [1, 0], [0, -1]],
};

test("Chinese characters are words, others end at spaces, and no more than a few are kept", () => {
  assert.deepEqual(splitWords("我爱 The Cat ", 6), ["我", "爱", "the", "cat"]);
  assert.deepEqual(splitWords("a b c", 2), ["a", "b"]);
  assert.deepEqual(splitWords("  ", 6), []);
});

test("a word's vector depends on the word alone and stays within bounds", () => {
  assert.deepEqual(wordVector("cat"), wordVector("cat"));
  assert.notDeepEqual(wordVector("cat"), wordVector("act"));
  assert.ok(wordVector("anything at all").every((x) => Math.abs(x) <= 1 && Math.abs(10 * x - Math.round(10 * x)) < 1e-9));
  assert.equal(wordVector("我", data.known), data.known.我);
  assert.equal(wordVector("constructor", data.known).length, 4);
});

test("the worked example has the numbers of the chapter", () => {
  const all = fiveSteps(data, "我爱你", false);
  near(all.q[0], [1.3, -0.4]);
  near([all.scores[1][1]], [1.64]);
  near(all.weights[0].map((x) => Math.round(100 * x) / 100), [0.16, 0.34, 0.5]);
});

test("causal: the first word sees itself alone", () => {
  const all = fiveSteps(data, "我爱你", true);
  near(all.weights[0], [1, 0, 0]);
  near(all.output[0], all.v[0]);
});

test("sums are spelled with negative numbers in brackets", () => {
  assert.equal(spelled([0.5, -0.3], [1, -2], [1, 0]), "0.5 · 1 + (−0.3) · (−2)");
});
