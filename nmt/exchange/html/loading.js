"use strict";
// Unpacks what nmt/exchange/javascript.py has packed.

/** Returns the block of all parts, the model and whether its products are compiled; throws an error if it is damaged. */
async function unpack(values, packed, code) {
  const block = await inflated(packed);
  const compiled = code && typeof WebAssembly === "object" ? await WebAssembly.compile(fromBase64(code)).catch(() => null) : null;
  const weights = await Weights.of(block.subarray(0, values.weights), values.tensors, compiled);
  return {block, model: new Transformer(values.config, weights), isCompiled: compiled !== null};
}

function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);  // much faster; browsers have it since 2025
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = letters.charCodeAt(i);
  return bytes;
}

async function inflated(packed) {
  const {readable, writable} = new DecompressionStream("deflate");
  const writer = writable.getWriter();
  const written = packed.map((piece) => writer.write(fromBase64(piece)));
  const [block] = await Promise.all([new Response(readable).arrayBuffer(), ...written, writer.close()]);
  return new Uint8Array(block);
}
