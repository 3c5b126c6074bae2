import assert from "node:assert/strict";
import { test } from "node:test";
import { GPT, concatenate, decode, dequantize, gelu, layerNorm, linear, readWeights, windowStart } from "../../annotated_transformer/interactive/gpt_model.js";

const near = (got, wanted, most = 1e-6) => {
  assert.equal(got.length, wanted.length);
  got.forEach((x, i) => assert.ok(Math.abs(x - wanted[i]) <= most, `${got} ${wanted}`));
};
const shape = { layers: 2, heads: 2, width: 6, inner: 9, context: 5, vocabulary: 4 };

function fresh() {
  let state = 1;
  const random = (count) => Float32Array.from({ length: count }, () => { state = (state * 48271) % 2147483647; return state / 2147483647 - 0.5; });
  const weights = { "tokens.weight": random(24), "positions.weight": random(30), "decoder.norm.weight": random(6), "decoder.norm.bias": random(6) };
  for (let i = 0; i < shape.layers; i += 1) {
    const put = (name, rows, columns) => Object.assign(weights, {
      [`decoder.layers.${i}.${name}.weight`]: random(rows * columns), [`decoder.layers.${i}.${name}.bias`]: random(rows) });
    for (const part of ["query", "key", "value", "output"]) put(`self_attention.${part}_projection`, 6, 6);
    put("feed_forward.widen", 9, 6);
    put("feed_forward.narrow", 6, 9);
    put("residuals.0.norm", 6, 1);
    put("residuals.1.norm", 6, 1);
  }
  return new GPT(weights, shape);
}

test("base64 becomes bytes, parts become one", () => {
  assert.deepEqual([...decode("AAH/gA==")], [0, 1, 255, 128]);
  assert.deepEqual([...concatenate([decode("AAEC"), decode("Aw==")])], [0, 1, 2, 3]);
});

test("weights are read by name, and each row has a scale of its own", () => {
  const header = JSON.stringify({
    "a.scale": { dtype: "F32", shape: [2], data_offsets: [0, 8] }, b: { dtype: "F32", shape: [1], data_offsets: [8, 12] },
    a: { dtype: "I8", shape: [2, 2], data_offsets: [12, 16] },
  });
  const bytes = concatenate([new Uint8Array([header.length, 0, 0, 0, 0, 0, 0, 0]), new TextEncoder().encode(header),
    new Uint8Array(new Float32Array([0.5, 2, -1]).buffer), new Uint8Array([1, 255, 127, 129])]);
  const weights = readWeights(bytes);
  assert.deepEqual(Object.keys(weights), ["b", "a"]);
  near(weights.a, [0.5, -0.5, 254, -254]);
  near(weights.b, [-1]);
  near(dequantize(new Int8Array([1, 2, 3]), [2]), [2, 4, 6]);
});

test("a linear layer multiplies row by row and can add to what is there", () => {
  const [x, out] = [Float32Array.of(1, 2, 3, 4, 5), new Float32Array(2)];
  linear(out, x, Float32Array.of(1, 1, 1, 1, 1, 0, 0, 0, 0, 2), Float32Array.of(0.5, 0));
  near(out, [15.5, 10]);
  linear(out, x, Float32Array.of(0, 0, 0, 0, 1, 1, 0, 0, 0, 0), null, true);
  near(out, [20.5, 11]);
});

test("layer norm and GELU have the values of torch", () => {
  const out = new Float32Array(3);
  layerNorm(out, Float32Array.of(1, 2, 6), Float32Array.of(1, 1, 2), Float32Array.of(0, 0, 1));
  near(out, [-0.9258194, -0.4629097, 3.7774583], 1e-5);
  near([-1, 0, 0.5, 3].map(gelu), [-0.1588080, 0, 0.3457140, 2.9963627]);
});

test("a full context drops its older half", () => {
  assert.equal(windowStart(256, 0, 256), 0);
  assert.equal(windowStart(257, 0, 256), 129);
  assert.equal(windowStart(385, 129, 256), 129);
  assert.equal(windowStart(386, 129, 256), 258);
  assert.equal(windowStart(8, 0, 7), 4);
});

test("reading in steps, again and anew gives the same logits", () => {
  const model = fresh();
  model.read([3, 1, 2]);
  const logits = [...model.logits];
  model.read([3, 1, 2]);
  near(model.logits, logits, 0);
  model.read([3, 1, 2, 0, 0]);
  assert.ok(Math.abs(model.logits[0] - logits[0]) > 1e-4);
  model.read([3, 1, 2]); // shorter than what was read
  near(model.logits, logits, 0);
  model.read([0, 1]);
  for (const length of [1, 2, 3]) model.read([3, 1, 2].slice(0, length));
  near(model.logits, logits, 0);
  const other = fresh();
  other.read([3, 1, 2]);
  near(other.logits, logits, 0);
});

test("reading can stop by the clock and go on", () => {
  const [model, other] = [fresh(), fresh()];
  let calls = 0;
  while (!model.read([3, 1, 2, 2], 0)) calls += 1;
  assert.equal(calls, 3);
  other.read([3, 1, 2, 2]);
  near(model.logits, [...other.logits], 0);
});

test("each head's weights sum to one over the tokens so far", () => {
  const model = fresh();
  model.read([3, 1, 2]);
  const maps = model.attention();
  assert.deepEqual([maps.length, maps[0].length, maps[0][0].length], [2, 2, 3]);
  maps.flat().forEach((row) => near([row.reduce((sum, w) => sum + w, 0)], [1]));
});
