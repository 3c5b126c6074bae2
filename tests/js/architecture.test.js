import assert from "node:assert/strict";
import { test } from "node:test";
import { fault, plan, sumOf, written } from "../../annotated_transformer/interactive/architecture.js";

const base = {
  architecture: "encoder-decoder", vocab_size: 37000, max_len: 1024, d_model: 512, num_layers: 6, num_heads: 8, num_kv_heads: 8, d_k: 64,
  d_ff: 2048, gated: false, bias: true, norm: "layer", norm_first: false, positions: "sinusoidal", buckets: 32, share_embeddings: true,
  output_bias: true, segments: 0, embedding_norm: false, pooler: false, patch_size: 0, channels: 3, classes: 0,
};
const sizes = { batch: 2, source: 3, target: 5 };

test("the paper's base model has its count, and each block its shape", () => {
  const stacks = plan(base, "encoder-decoder", sizes, true);
  assert.equal(sumOf(stacks, 6), 63082496);
  assert.deepEqual(stacks[0].map((block) => block.kind), ["ids", "tokens", "places", "self", "norm", "ff", "norm"]);
  assert.deepEqual(stacks[1].map((block) => written(block.shape)), ["(2, 5)", ...Array(8).fill("(2, 5, 512)"), "(2, 5, 37000)", "(2, 5, 37000)"]);
});

test("pre-norm turns the order round and adds a norm after each stack", () => {
  const kinds = plan({ ...base, norm_first: true }, "encoder", sizes, true)[0].map((block) => block.kind);
  assert.deepEqual(kinds, ["ids", "tokens", "places", "norm", "self", "norm", "ff", "last_norm"]);
});

test("a decoder without memory has no cross-attention", () => {
  const kinds = (cross) => plan(base, "decoder", sizes, cross)[0].map((block) => block.kind);
  assert.ok(kinds(true).includes("across") && !kinds(false).includes("across"));
});

test("heads that do not divide the width are told", () => {
  assert.equal(fault(base), null);
  assert.deepEqual(fault({ ...base, num_heads: 12, d_k: 512 / 12 }), ["divide", { value: 12, whole: 512 }]);
  assert.deepEqual(fault({ ...base, d_ff: 0 }), ["small", { name: "d_ff", value: 0 }]);
});
