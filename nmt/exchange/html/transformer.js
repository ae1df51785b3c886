"use strict";
// The encoder-decoder Transformer of "Attention Is All You Need", in plain arrays. It knows neither text nor search.
//
// Ids go in, logits come out. All numbers are in Float32Arrays of rows, one behind the other: x has a row of d_model
// numbers for each symbol. A search goes step by step, so the decoder keeps the keys and values of all symbols so far.
// Each has a place among them, and a hypothesis is known by the places of its symbols, which it shares with others.

const BASE = 10000, WORD_BASE = 60;  // of the sinusoids of positions, and of the numbers of words

class Transformer {
  constructor(config, weights) {
    this.config = config;
    this.weights = weights;
    this.matrices = new Map();
    this.vectors = new Map();
    const tied = (name, otherwise) => this.weights.has(name) ? name : otherwise;
    this.source = "source_embedding.weight";
    this.target = tied("target_embedding.weight", this.source);
    this.output = tied("output_embedding.weight", this.target);
  }

  // --- the encoder

  /** Encodes source ids, which end in </s>; returns what the decoder needs of them. `record` gets attention weights. */
  encode(ids, record = () => {}) {
    const {layers, d_model: width} = this.config;
    const all = ids.map((_, index) => index);
    const words = this.countWords(ids, "source").map((count) => Math.max(0, count - 1));
    let x = new Float32Array(ids.length * width);
    ids.forEach((id, row) => this.embed(id, row, words[row], this.source, "source", x, row * width));
    for (let layer = 0; layer < layers; layer++) {
      const name = `encoder.${layer}`;
      x = this.residual(x, `${name}.attention_residual`, (y) => {
        const {queries, keys, values} = this.queriesKeysValues(y, name);
        const mixed = this.attend(queries, keys, values, ids.map(() => all), record("encoder", layer));
        return this.linear(mixed, `${name}.attention.out`);
      });
      x = this.residual(x, `${name}.feed_forward_residual`, (y) => this.feedForward(y, `${name}.feed_forward`));
    }
    return this.lastNorm(x, "encoder_norm");
  }

  // --- the decoder

  /** Begins outputs of at most `longest` symbols for a source's states: `beam` hypotheses at a time. */
  begin(states, longest, beam) {
    const {decoder_layers: layers, heads, d_k, d_v, d_model} = this.config;
    const past = {own: [], source: [], length: states.length / d_model, used: 0};
    for (let layer = 0; layer < layers; layer++) {
      const [keys, values] = this.split(this.linear(states, `decoder.${layer}.cross.key_value`), [heads * d_k, heads * d_v]);
      past.source.push({keys, values});
      const rows = longest * beam;
      past.own.push({keys: new Float32Array(rows * heads * d_k), values: new Float32Array(rows * heads * d_v)});
    }
    return past;
  }

  /**
   * Appends a symbol to each hypothesis {symbol, places, words}; returns the logits of all next symbols, a row for each.
   * The last of its `places` is that of the symbol; `words` have begun in it, for `positions: words`.
   */
  step(past, hypotheses, record = () => {}) {
    const {decoder_layers: layers, heads, d_k, d_v, d_model: width} = this.config;
    const everything = Array.from({length: past.length}, (_, index) => index);
    let x = new Float32Array(hypotheses.length * width);
    hypotheses.forEach(({symbol, places, words}, row) =>
      this.embed(symbol, places.length - 1, words, this.target, "target", x, row * width));
    for (let layer = 0; layer < layers; layer++) {
      const name = `decoder.${layer}`;
      const own = past.own[layer];
      const source = past.source[layer];
      x = this.residual(x, `${name}.attention_residual`, (y) => {
        const {queries, keys, values} = this.queriesKeysValues(y, name);
        hypotheses.forEach(({places}, row) => {
          own.keys.set(keys.subarray(row * heads * d_k, (row + 1) * heads * d_k), places.at(-1) * heads * d_k);
          own.values.set(values.subarray(row * heads * d_v, (row + 1) * heads * d_v), places.at(-1) * heads * d_v);
        });
        const seen = hypotheses.map(({places}) => places);
        return this.linear(this.attend(queries, own.keys, own.values, seen, record("decoder", layer)), `${name}.attention.out`);
      });
      x = this.residual(x, `${name}.cross_residual`, (y) => {
        const queries = this.linear(y, `${name}.cross.query`);
        const seen = hypotheses.map(() => everything);
        return this.linear(this.attend(queries, source.keys, source.values, seen, record("cross", layer)), `${name}.cross.out`);
      });
      x = this.residual(x, `${name}.feed_forward_residual`, (y) => this.feedForward(y, `${name}.feed_forward`));
    }
    const logits = this.weights.multiply(this.lastNorm(x, "decoder_norm"), this.matrix(this.output));
    return this.addBias(logits, "output_bias");
  }

  // --- section 3.2: attention

  queriesKeysValues(y, name) {
    const {heads, d_k, d_v} = this.config;
    const together = this.linear(y, `${name}.attention.qkv`);
    const [queries, keys, values] = this.split(together, [heads * d_k, heads * d_k, heads * d_v]);
    return {queries, keys, values};
  }

  /**
   * Attends from each query to the keys in the rows that `seen` lists for it, by every head (equation 1).
   * Returns the mixed values, a row for each query. `record`, if given, is called with each head's weights.
   */
  attend(queries, keys, values, seen, record) {
    const {heads, d_k, d_v} = this.config;
    const scale = d_k ** -0.5;
    const mixed = new Float32Array(seen.length * heads * d_v);
    for (let query = 0; query < seen.length; query++) {
      const rows = seen[query];
      const weights = new Float64Array(rows.length);
      for (let head = 0; head < heads; head++) {
        const of = query * heads + head;
        const queryOfHead = queries.subarray(of * d_k, (of + 1) * d_k);
        const mixedOfHead = mixed.subarray(of * d_v, (of + 1) * d_v);
        for (let i = 0; i < rows.length; i++) weights[i] = scale * dot(queryOfHead, keys, (rows[i] * heads + head) * d_k);
        softmax(weights);
        for (let i = 0; i < rows.length; i++) addTimes(weights[i], values, (rows[i] * heads + head) * d_v, mixedOfHead);
        if (record) record(query, head, weights);
      }
    }
    return mixed;
  }

  // --- section 3.3: feed-forward networks

  feedForward(y, name) {
    const inner = this.linear(y, `${name}.inner`);
    ACTIVATE[this.config.activation](inner);
    return this.linear(inner, `${name}.outer`);
  }

  // --- section 3.1: residual connections and LayerNorm

  /** Returns LayerNorm(x + sublayer(x)) or, in pre-norm, x + sublayer(LayerNorm(x)). */
  residual(x, name, sublayer) {
    const isPre = this.config.norm === "pre";
    const output = sublayer(isPre ? this.layerNorm(x, `${name}.norm`) : x);
    const sum = new Float32Array(x.length);
    for (let i = 0; i < x.length; i++) sum[i] = x[i] + output[i];
    return isPre ? sum : this.layerNorm(sum, `${name}.norm`);
  }

  lastNorm(x, name) { return this.weights.has(`${name}.weight`) ? this.layerNorm(x, name) : x; }

  layerNorm(x, name) {
    const {d_model: width, norm_epsilon: epsilon} = this.config;
    const gain = this.vector(`${name}.weight`), bias = this.vector(`${name}.bias`);
    const out = new Float32Array(x.length);
    for (let at = 0; at < x.length; at += width) {
      let mean = 0, variance = 0;
      for (let i = 0; i < width; i++) mean += x[at + i] / width;
      for (let i = 0; i < width; i++) variance += (x[at + i] - mean) ** 2 / width;
      const scale = 1 / Math.sqrt(variance + epsilon);
      for (let i = 0; i < width; i++) out[at + i] = (x[at + i] - mean) * scale * gain[i] + bias[i];
    }
    return out;
  }

  linear(x, name) { return this.addBias(this.weights.multiply(x, this.matrix(`${name}.weight`)), `${name}.bias`); }

  addBias(rows, name) {
    const bias = this.vector(name);
    if (bias) for (let i = 0; i < rows.length; i++) rows[i] += bias[i % bias.length];
    return rows;
  }

  // --- sections 3.4 and 3.5: embeddings and positions

  /** Adds the embedding of a symbol at a position to `out` from `to` on; its word's number counts in `positions: words`. */
  embed(id, position, word, table, side, out, to) {
    const {d_model: width, positions} = this.config;
    this.weights.addRow(this.matrix(table), id, Math.sqrt(width), out, to);
    if (positions === "learned") {
      const learned = this.matrix(`${side}_positions.table`);
      this.weights.addRow(learned, Math.min(position, learned.outputs - 1), 1, out, to);
    } else if (positions === "words") {
      addTimes(1, sinusoids(position, width / 2, BASE), 0, out.subarray(to, to + width / 2));
      addTimes(1, sinusoids(word, width / 2, WORD_BASE), 0, out.subarray(to + width / 2, to + width));
    } else {
      const encode = {fairseq: sinesFirst, marian: sinusoidsOfMarian}[positions] ?? sinusoids;
      addTimes(1, encode(position, width, BASE), 0, out.subarray(to, to + width));
    }
  }

  /** Returns how many words have begun up to each symbol; the model tells by `starts` which symbols begin one. */
  countWords(ids, side) {
    let count = 0;
    return ids.map((id) => count += this.beginsWord(id, side));
  }

  beginsWord(id, side) { return Number(this.config.starts?.[side][id] ?? 0); }

  // --- arrays

  /** Splits rows of several parts, of these widths, into an array for each part. */
  split(x, widths) {
    const whole = widths.reduce((sum, width) => sum + width);
    const rows = x.length / whole;
    let start = 0;
    return widths.map((width) => {
      const part = new Float32Array(rows * width);
      for (let row = 0; row < rows; row++) {
        const from = row * whole + start;
        part.set(x.subarray(from, from + width), row * width);
      }
      start += width;
      return part;
    });
  }

  matrix(name) {
    if (!this.matrices.has(name)) this.matrices.set(name, this.weights.matrix(name));
    return this.matrices.get(name);
  }

  vector(name) {
    if (!this.vectors.has(name)) this.vectors.set(name, this.weights.vector(name));
    return this.vectors.get(name);
  }
}

/** Returns the product of a vector with one of the same length that begins at `at`. */
function dot(vector, others, at) {
  let sum = 0;
  for (let i = 0; i < vector.length; i++) sum += vector[i] * others[at + i];
  return sum;
}

/** Adds a vector that begins at `at`, times a factor, to `out`. */
function addTimes(factor, vectors, at, out) {
  for (let i = 0; i < out.length; i++) out[i] += factor * vectors[at + i];
}

function softmax(x) {
  let most = -Infinity, sum = 0;
  for (let i = 0; i < x.length; i++) if (x[i] > most) most = x[i];
  for (let i = 0; i < x.length; i++) sum += x[i] = Math.exp(x[i] - most);
  for (let i = 0; i < x.length; i++) x[i] /= sum;
}

const tables = new Map();  // encodings that have been computed before

/** Returns PE(p, 2i) = sin(p / base^(2i / divisor)), and PE(p, 2i+1), which is the cosine. */
function sinusoids(position, width, base, divisor = width) {
  const key = `${position} ${width} ${base} ${divisor}`;
  if (!tables.has(key)) {
    const encoding = new Float32Array(width);
    for (let i = 0; i < width; i += 2) {
      const angle = position * base ** (-i / divisor);
      encoding[i] = Math.sin(angle);
      encoding[i + 1] = Math.cos(angle);
    }
    tables.set(key, encoding);
  }
  return tables.get(key);
}

/** Returns the same as Marian has it: with 1 / base as the last rate. */
function sinusoidsOfMarian(position, width, base) { return sinusoids(position, width, base, width - 2); }

/** Returns the same as fairseq has it: positions from 2, all sines before all cosines, and 1 / base as the last rate. */
function sinesFirst(position, width, base) {
  const encoding = new Float32Array(width);
  for (let i = 0; i < width; i += 2) {
    const angle = (position + 2) * base ** (-i / (width - 2));
    encoding[i / 2] = Math.sin(angle);
    encoding[(width + i) / 2] = Math.cos(angle);
  }
  return encoding;
}

const ACTIVATE = {  // in place
  relu: (x) => { for (let i = 0; i < x.length; i++) if (x[i] < 0) x[i] = 0; },
  silu: (x) => { for (let i = 0; i < x.length; i++) x[i] /= 1 + Math.exp(-x[i]); },
  gelu: (x) => { for (let i = 0; i < x.length; i++) x[i] *= 0.5 * (1 + errorFunction(x[i] / Math.SQRT2)); },
};

/** Returns erf(x) by its series e^(-x²) · 2/√π · Σ 2ⁿ x^(2n+1) / (2n+1)!!, whose terms have one sign. */
function errorFunction(x) {
  if (Math.abs(x) > 5) return Math.sign(x);
  let term = x, sum = x;
  for (let n = 1; Math.abs(term) > 1e-10 * Math.abs(sum); n++) {
    term *= 2 * x * x / (2 * n + 1);
    sum += term;
  }
  return sum * Math.exp(-x * x) * 2 / Math.sqrt(Math.PI);
}
