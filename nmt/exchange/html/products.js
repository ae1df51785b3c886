"use strict";
// The weights of a model, and products by its matrices: in WebAssembly where the page has it, else in JavaScript.
//
// A matrix has a row for each of its outputs, of one byte per weight, and a scale for each row: weight = byte · scale.
// It is never unpacked, so a model takes a byte of memory per parameter.

const TOGETHER = 16;  // rows that are multiplied at a time
const PAGE = 1 << 16;  // bytes in which the memory of WebAssembly is counted

class Weights {
  /**
   * Takes the bytes of all weights and, by name, where each is: {shape, at} and, of a matrix, {scales}.
   * `code` is products.wasm, compiled, or null.
   */
  static async of(bytes, parts, code) {
    let widest = 0;
    for (const {shape} of Object.values(parts)) widest = Math.max(widest, ...shape);
    const room = 2 * TOGETHER * widest * Float32Array.BYTES_PER_ELEMENT;  // for inputs and outputs of a product
    const found = new Weights();
    found.parts = parts;
    found.multiplyInCode = null;
    found.start = 0;  // where the weights begin in the memory
    if (code) {
      const memory = new WebAssembly.Memory({initial: Math.ceil((bytes.length + room) / PAGE) + 2});
      const {exports} = await WebAssembly.instantiate(code, {env: {memory}});
      found.multiplyInCode = exports.multiply;
      found.start = Math.ceil(exports.__heap_base.value / 16) * 16;  // behind the stack
      found.memory = memory.buffer;
      new Uint8Array(found.memory).set(bytes, found.start);
    } else {
      found.memory = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
    }
    found.scratch = Math.ceil((found.start + bytes.length) / 16) * 16;
    return found;
  }

  has(name) { return name in this.parts; }

  /** Returns a vector, such as a bias, or null if the model has none of this name. */
  vector(name) {
    const part = this.parts[name];
    return part ? new Float32Array(this.memory, this.start + part.at, part.shape[0]) : null;
  }

  matrix(name) {
    const {shape: [outputs, width], at, scales} = this.parts[name];
    return {
      outputs, width, at: this.start + at, scalesAt: this.start + scales,
      bytes: new Int8Array(this.memory, this.start + at, outputs * width),
      scales: new Float32Array(this.memory, this.start + scales, outputs),
    };
  }

  /** Adds a row of a matrix, times a factor, to `out` from `to` on. */
  addRow({bytes, scales, width}, row, factor, out, to) {
    const scale = scales[row] * factor;
    for (let i = 0; i < width; i++) out[to + i] += bytes[row * width + i] * scale;
  }

  /** Returns x · matrixᵀ: x has rows of `matrix.width` numbers, the result rows of `matrix.outputs`. */
  multiply(x, matrix) {
    const {outputs, width} = matrix;
    const rows = x.length / width;
    const out = new Float32Array(rows * outputs);
    if (!this.multiplyInCode) {
      multiplyPlainly(x, rows, matrix, out);
      return out;
    }
    for (let row = 0; row < rows; row += TOGETHER) {
      const count = Math.min(TOGETHER, rows - row);
      const resultAt = this.scratch + 4 * count * width;
      new Float32Array(this.memory, this.scratch, count * width).set(x.subarray(row * width, (row + count) * width));
      this.multiplyInCode(count, width, outputs, this.scratch, matrix.at, matrix.scalesAt, resultAt);
      out.set(new Float32Array(this.memory, resultAt, count * outputs), row * outputs);
    }
    return out;
  }
}

/** Multiplies four rows at a time, so that each weight is read once for all of them. */
function multiplyPlainly(x, rows, {bytes, scales, outputs, width}, out) {
  let row = 0;
  for (; row + 4 <= rows; row += 4) {
    const [first, second, third, fourth] = [0, 1, 2, 3].map((i) => x.subarray((row + i) * width, (row + i + 1) * width));
    for (let output = 0; output < outputs; output++) {
      const weights = bytes.subarray(output * width, (output + 1) * width);
      let a = 0, b = 0, c = 0, d = 0;
      for (let i = 0; i < width; i++) {
        const weight = weights[i];
        a += first[i] * weight;
        b += second[i] * weight;
        c += third[i] * weight;
        d += fourth[i] * weight;
      }
      const at = row * outputs + output;
      out[at] = a * scales[output];
      out[at + outputs] = b * scales[output];
      out[at + 2 * outputs] = c * scales[output];
      out[at + 3 * outputs] = d * scales[output];
    }
  }
  for (; row < rows; row++)
    for (let output = 0; output < outputs; output++) {
      let sum = 0;
      for (let i = 0; i < width; i++) sum += x[row * width + i] * bytes[output * width + i];
      out[row * outputs + output] = sum * scales[output];
    }
}
