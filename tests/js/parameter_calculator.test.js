import assert from "node:assert/strict";
import { test } from "node:test";
import { fault, follow, gigabytes, millions, sumOfRounded } from "../../annotated_transformer/interactive/parameter_calculator.js";
import { cache, memory, terms, total } from "../../annotated_transformer/interactive/parameters.js";

const rough = {
  architecture: "decoder", vocab_size: 50000, max_len: 1024, d_model: 768, num_layers: 12, num_heads: 12, num_kv_heads: 12, d_k: 64,
  d_ff: 3072, gated: false, bias: false, norm: "rms", norm_first: false, positions: "sinusoidal", buckets: 32, share_embeddings: true,
  output_bias: false, segments: 0, embedding_norm: false, pooler: false, patch_size: 0, channels: 3, classes: 0,
};
const gpt2 = { ...rough, vocab_size: 50257, bias: true, norm: "layer", norm_first: true, positions: "learned" };

test("the rule of thumb gives the document's terms, and both sums", () => {
  const counts = terms(rough).map(([, , count]) => count).filter(Boolean);
  assert.deepEqual(counts.map(millions), ["38.4", "28.3", "56.6", "0.02"]);
  assert.equal(sumOfRounded(counts), "123.3");
  assert.equal(millions(total(rough)), "123.4");
});

test("what the rule leaves out makes GPT-2", () => {
  assert.equal(total(gpt2), 124439808);
  assert.equal(total({ ...gpt2, share_embeddings: false }) - total(gpt2), 50257 * 768);
  assert.equal(total(gpt2) - total({ ...gpt2, num_kv_heads: 3 }), 12 * 2 * (768 + 1) * 9 * 64);
});

test("memory holds weights, gradients and Adam's two means", () => {
  assert.deepEqual(memory(10, 2), { weights: 20, gradients: 20, adam: 80 });
  assert.equal(cache(gpt2, 1024, 1, 2), 37748736);
  assert.equal(cache({ ...gpt2, num_kv_heads: 1 }, 1024, 1, 2) * 12, 37748736);
  assert.equal(cache({ ...gpt2, architecture: "encoder" }, 1024, 1, 2), 0);
  assert.equal(cache({ ...gpt2, architecture: "encoder-decoder" }, 1000, 1, 2, 24), 37748736);
  assert.equal(gigabytes(37748736), "0.0377");
  assert.equal(gigabytes(1991036928), "1.99");
});

test("an impossible shape is told as the package tells it", () => {
  assert.equal(fault(rough), null);
  assert.deepEqual(fault({ ...rough, num_heads: 5, num_kv_heads: 5, d_k: 768 / 5 }), ["divide", { name: "num_heads", value: 5, other: "d_model", whole: 768 }]);
  assert.deepEqual(fault({ ...rough, num_kv_heads: 5 }), ["divide", { name: "num_kv_heads", value: 5, other: "num_heads", whole: 12 }]);
  assert.deepEqual(fault({ ...rough, vocab_size: 0 }), ["small", { name: "vocab_size", value: 0 }]);
  assert.equal(fault({ ...rough, vocab_size: 0, patch_size: 16 }), null);
  assert.deepEqual(fault({ ...rough, d_ff: 2.5 }), ["small", { name: "d_ff", value: 2.5 }]);
});

test("what was tied to a changed number follows it", () => {
  assert.deepEqual(follow("d_model", rough, { d_model: 512 }), { d_ff: 2048 });
  assert.deepEqual(follow("num_heads", rough, { num_heads: 6 }), { num_kv_heads: 6 });
  assert.deepEqual(follow("num_heads", { ...rough, num_kv_heads: 4 }, { num_heads: 6 }), {});
  assert.deepEqual(follow(undefined, rough, rough), {});
});
