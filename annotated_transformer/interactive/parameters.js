// How many parameters a model has: the formulas of annotated_transformer/parameter_count.py, for the figures
// that count. A shape has the fields of the package's ModelShape.

const attention = (s) => {
  const [queries, keys] = [s.num_heads * s.d_k, s.num_kv_heads * s.d_k];
  return s.d_model * (2 * queries + 2 * keys) + (s.bias ? queries + 2 * keys + s.d_model : 0);
};

const feedForward = (s) => (s.gated ? 3 : 2) * s.d_model * s.d_ff + (s.bias ? (s.gated ? 2 : 1) * s.d_ff + s.d_model : 0);

export const normSize = (s) => (s.norm === "layer" ? 2 : 1) * s.d_model;

// what one block of a layer has, by kind
export const blocks = { attention, feedForward, norm: normSize };

// [key, formula, count] of every term that the shape has
export function terms(s) {
  const both = s.architecture === "encoder-decoder";
  const [stacks, two] = both ? [2, "2"] : [1, ""];
  const tables = both && !s.share_embeddings ? 2 : 1;
  const [d, size, wide] = [s.d_model, s.norm === "layer" ? 2 : 1, s.gated ? 2 : 1];
  const projections = `2dHk + 2dGk${s.bias ? " + Hk + 2Gk + d" : ""}`;
  const matrices = `${wide + 1}df${s.bias ? ` + ${s.gated ? "2f" : "f"} + d` : ""}`;
  const norms = (both ? 5 : 2) * size;
  const positions = { learned: [`${two}L · d`, stacks * s.max_len * d], relative: [`${two}R · H`, stacks * s.buckets * s.num_heads] };
  const output = s.share_embeddings ? ["tied", 0]
    : [s.output_bias ? "V · d + V" : "V · d", s.vocab_size * d + (s.output_bias ? s.vocab_size : 0)];
  return [
    ["tokens", tables === 2 ? "2V · d" : "V · d", tables * s.vocab_size * d],
    ["places", ...(positions[s.positions] ?? ["none", 0])],
    s.segments && ["segments", `${s.segments} · d`, s.segments * d],
    s.patch_size && ["patches", "(p²c + 2) · d", (s.patch_size ** 2 * s.channels + 2) * d],
    s.embedding_norm && ["first_norm", `${size}d`, size * d],
    ["attention", `${two}N · (${projections})`, stacks * s.num_layers * attention(s)],
    both && ["cross", `N · (${projections})`, s.num_layers * attention(s)],
    ["ff", `${two}N · (${matrices})`, stacks * s.num_layers * feedForward(s)],
    ["norms", `N · ${norms}d`, s.num_layers * norms * d],
    ["last_norms", s.norm_first ? `${stacks * size}d` : "none", s.norm_first ? stacks * size * d : 0],
    s.pooler && ["pooler", "d² + d", d * d + d],
    s.classes && ["classes", "C · d + C", s.classes * d + s.classes],
    ["output", ...output],
  ].filter(Boolean);
}

export const total = (shape) => terms(shape).reduce((sum, [, , count]) => sum + count, 0);

// weights, gradients, and Adam's two running means in float32
export const memory = (parameters, bytes) => ({ weights: parameters * bytes, gradients: parameters * bytes, adam: parameters * 8 });

// a key and a value for each layer, token and key/value head; an encoder keeps none
export function cache(s, tokens, batch, bytes, source = 0) {
  if (s.architecture === "encoder") return 0;
  const kept = tokens + (s.architecture === "encoder-decoder" ? source : 0);
  return 2 * s.num_layers * s.num_kv_heads * s.d_k * kept * batch * bytes;
}
