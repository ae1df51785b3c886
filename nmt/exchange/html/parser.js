"use strict";
// The parser, in a thread of its own so that the page never waits: it answers messages of the page.

const WIDEST = 4;  // hypotheses: trees come as one types, and a beam of 21, as in the paper, takes five times as long

class Parser {
  /** Unpacks a parser; throws an error if it is damaged. */
  static async load(values, packed, code) {
    const {block, model, isCompiled} = await unpack(values, packed, code);
    const {at, size} = values.vocabularies.source;
    const source = new Vocabulary(block.slice(at, at + size));
    return Object.assign(new Parser(), {values, model, isCompiled, source, trees: new TreeVocabulary(values.trees)});
  }

  /** Returns the tree of a line of words between spaces in brackets, "" if there is none. */
  parse(line) {
    const words = line.replace(/\p{Surrogate}/gu, "?").split(/[\t-\r ]+/).filter(Boolean);
    if (!words.length) return "";
    const {alpha, min_length: minLength, max_extra: extra} = this.values.decoding;
    const beam = Math.min(WIDEST, this.values.decoding.beam);
    const found = this.split(words).map(({ids, words: own}) => {
      const cap = Math.min(ids.length + extra, this.values.positions ?? Infinity);
      const rule = new TreeRule(this.trees, this.trees.kinds(own), cap);
      const [best] = search(this.model, ids, {beam, nBest: 1, alpha, cap, minLength, rule});
      return best ? this.trees.brackets(best.ids, own) : null;
    });
    return found.includes(null) ? "" : `(TOP${found.join("")})`;
  }

  /** Returns parts {ids, words} of at most `max_source` subwords, split between words. */
  split(words) {
    const limit = this.values.decoding.max_source;
    const parts = [];
    for (const word of words) {
      const subwords = this.source.encode(escapeBrackets(word));
      if (!parts.length || parts.at(-1).ids.length + subwords.length > limit) parts.push({ids: [], words: []});
      parts.at(-1).ids.push(...subwords.slice(0, limit));
      parts.at(-1).words.push(word);
    }
    return parts;
  }
}

// --- messages

let parser = null;
let newest = 0;  // number of the request that is being worked on; older ones are given up
const known = new Map();  // trees of lines

async function answer({kind, number, ...asked}) {
  const reply = (message) => self.postMessage({kind, number, ...message});
  if (kind === "load") {
    parser = await Parser.load(asked.values, asked.packed, asked.code);
    reply({isCompiled: parser.isCompiled});
    return;
  }
  newest = number;
  for (const [index, line] of asked.lines.entries()) {
    await new Promise((resolve) => { setTimeout(resolve); });  // so that a newer request may come
    if (number !== newest) return;
    if (!known.has(line)) known.set(line, parser.parse(line));
    reply({index, tree: known.get(line)});
  }
}

self.onmessage = async ({data}) => {
  try {
    await answer(data);
  } catch (error) {
    self.postMessage({kind: data.kind, number: data.number, problem: String(error.message ?? error)});
  }
};
