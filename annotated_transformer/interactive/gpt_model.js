// A GPT in plain JavaScript: reads a safetensors file of eight-bit weights and computes what the package's GPT does,
// one token at a time, with a cache of keys and values. Numbers are stored as float32, sums are made in float64.

// base64 -> bytes
export function decode(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i += 1) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

export function concatenate(parts) {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  parts.reduce((at, part) => { whole.set(part, at); return at + part.length; }, 0);
  return whole;
}

// bytes of a safetensors file -> float32 tensors by name; matrices are multiplied with the scale of each row
export function readWeights(bytes) {
  const begin = 8 + new DataView(bytes.buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, begin)));
  const raw = (name) => {
    const { dtype, data_offsets: [from, to] } = header[name];
    const part = bytes.slice(begin + from, begin + to);
    return dtype === "I8" ? new Int8Array(part.buffer) : new Float32Array(part.buffer);
  };
  const weights = {};
  for (const name of Object.keys(header).filter((each) => !each.endsWith(".scale"))) {
    const numbers = raw(name);
    weights[name] = numbers instanceof Int8Array ? dequantize(numbers, raw(`${name}.scale`)) : numbers;
  }
  return weights;
}

export function dequantize(whole, scales) {
  const [numbers, columns] = [new Float32Array(whole.length), whole.length / scales.length];
  for (let row = 0, at = 0; row < scales.length; row += 1) {
    for (let i = 0; i < columns; i += 1, at += 1) numbers[at] = whole[at] * scales[row];
  }
  return numbers;
}

// out = weight x + bias, the weight row by row; `add` adds to what out holds. Four rows at once: each number of x
// is read once for them, and no sum waits for another.
export function linear(out, x, weight, bias, add = false) {
  const columns = x.length;
  const whole = out.length - (out.length % 4);
  if (!add) out.fill(0);
  if (bias) for (let row = 0; row < out.length; row += 1) out[row] += bias[row];
  for (let row = 0; row < whole; row += 4) {
    let a = 0;
    let b = 0;
    let c = 0;
    let d = 0;
    for (let i = 0, at = row * columns; i < columns; i += 1, at += 1) {
      const z = x[i];
      a += weight[at] * z;
      b += weight[at + columns] * z;
      c += weight[at + 2 * columns] * z;
      d += weight[at + 3 * columns] * z;
    }
    out[row] += a;
    out[row + 1] += b;
    out[row + 2] += c;
    out[row + 3] += d;
  }
  for (let row = whole; row < out.length; row += 1) {
    for (let i = 0; i < columns; i += 1) out[row] += weight[row * columns + i] * x[i];
  }
}

export function layerNorm(out, x, scale, shift) {
  let sum = 0;
  let squares = 0;
  for (let i = 0; i < x.length; i += 1) sum += x[i];
  const mean = sum / x.length;
  for (let i = 0; i < x.length; i += 1) squares += (x[i] - mean) ** 2;
  const factor = 1 / Math.sqrt(squares / x.length + 1e-5);
  for (let i = 0; i < x.length; i += 1) out[i] = (x[i] - mean) * factor * scale[i] + shift[i];
}

export const gelu = (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)));

// where the window begins after the text has grown to `length`: a full context drops its older half
export const windowStart = (length, start, context) => (length - start > context ? length - ((context + 1) >> 1) : start);

export class GPT {
  // shape: layers, heads, width, inner (of the feed-forward networks), context, vocabulary
  constructor(weights, shape) {
    this.shape = shape;
    const { layers, heads, width, inner, context, vocabulary } = shape;
    const parts = ["attention.query_projection", "attention.key_projection", "attention.value_projection", "attention.output_projection"];
    const names = { query: `self_${parts[0]}`, key: `self_${parts[1]}`, value: `self_${parts[2]}`, mix: `self_${parts[3]}`,
      widen: "feed_forward.widen", narrow: "feed_forward.narrow", before: "residuals.0.norm", between: "residuals.1.norm" };
    const pair = (name) => [weights[`${name}.weight`], weights[`${name}.bias`]];
    this.layers = Array.from({ length: layers }, (_, i) => ({
      ...Object.fromEntries(Object.entries(names).map(([short, name]) => [short, pair(`decoder.layers.${i}.${name}`)])),
      keys: new Float32Array(context * width), values: new Float32Array(context * width),
      attention: new Float32Array(heads * context),
    }));
    [this.tokens, this.positions, this.norm] = [weights["tokens.weight"], weights["positions.weight"], pair("decoder.norm")];
    [this.x, this.y, this.query, this.mixed] = [1, 2, 3, 4].map(() => new Float32Array(width));
    [this.inner, this.logits, this.past] = [new Float32Array(inner), new Float32Array(vocabulary), []];
  }

  // reads the tokens of `ids` that are new, by the clock until `until` at most; true when all are read
  read(ids, until = Infinity) {
    let same = 0;
    while (same < this.past.length && ids[same] === this.past[same]) same += 1;
    if (same < this.past.length) this.past.length = Math.min(same, ids.length - 1); // the last one again, for its logits
    while (this.past.length < ids.length) {
      this.append(ids[this.past.length]);
      if (this.past.length < ids.length && performance.now() > until) return false;
    }
    return true;
  }

  append(id) {
    const { x, y, inner } = this;
    const { width } = this.shape;
    const at = this.past.length;
    for (let i = 0; i < width; i += 1) x[i] = this.tokens[id * width + i] + this.positions[at * width + i];
    for (const layer of this.layers) {
      layerNorm(y, x, ...layer.before);
      this.attend(layer, at);
      layerNorm(y, x, ...layer.between);
      linear(inner, y, ...layer.widen);
      for (let i = 0; i < inner.length; i += 1) inner[i] = gelu(inner[i]);
      linear(x, inner, ...layer.narrow, true);
    }
    layerNorm(y, x, ...this.norm);
    linear(this.logits, y, this.tokens, null);
    this.past.push(id);
  }

  attend(layer, at) {
    const { x, y, query, mixed } = this;
    const { heads, width, context } = this.shape;
    const depth = width / heads;
    const scale = 1 / Math.sqrt(depth);
    const row = (store) => store.subarray(at * width, (at + 1) * width);
    linear(query, y, ...layer.query);
    linear(row(layer.keys), y, ...layer.key);
    linear(row(layer.values), y, ...layer.value);
    mixed.fill(0);
    for (let head = 0; head < heads; head += 1) {
      const weights = layer.attention.subarray(head * context, head * context + at + 1);
      const from = head * depth;
      let highest = -Infinity;
      for (let t = 0; t <= at; t += 1) {
        let score = 0;
        for (let i = 0; i < depth; i += 1) score += query[from + i] * layer.keys[t * width + from + i];
        weights[t] = score * scale;
        if (weights[t] > highest) highest = weights[t];
      }
      let total = 0;
      for (let t = 0; t <= at; t += 1) total += weights[t] = Math.exp(weights[t] - highest);
      for (let t = 0; t <= at; t += 1) {
        weights[t] /= total;
        for (let i = 0; i < depth; i += 1) mixed[from + i] += weights[t] * layer.values[t * width + from + i];
      }
    }
    linear(x, mixed, ...layer.mix, true);
  }

  // what the last token looked at: layers of heads of weights
  attention() {
    const { heads, context } = this.shape;
    const rows = (store) => Array.from({ length: heads }, (_, head) =>
      Array.from(store.subarray(head * context, head * context + this.past.length)));
    return this.layers.map((layer) => rows(layer.attention));
  }
}
