"use strict";
// A table of terms [source, target]: where a text has a source, its translation should have the target.

const IN_WORD = "[\\p{L}\\p{N}\\p{M}_]";

/** Returns the place of a term in a text as [start, end], whatever its case, or null. */
function findTerm(term, text) {
  const literal = term.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&");
  const before = JOINS.test(term[0]) ? `(?<!${IN_WORD})` : "";
  const behind = JOINS.test(term.at(-1)) ? `(?!${IN_WORD})` : "";
  const found = new RegExp(before + literal + behind, "iu").exec(text);
  return found && [found.index, found.index + found[0].length];
}

/** Returns the terms of a text that an output lacks. */
const lackingTerms = (terms, text, output) =>
  terms.filter(([source, target]) => findTerm(source, text) && !output.toLowerCase().includes(target.toLowerCase()));

/**
 * Writes a term's translation in place of the words that stand for the term, by what the model attended to.
 * `attention` is what Translator.attention returns. Returns the new text, or null if no word stands for the term.
 */
function placeTerm([term, translation], {described, bytes}) {
  const {source, target_out: output, shapes: {cross: [layers, heads, queries, keys]}} = described;
  const [start, end] = findTerm(term, source.text) ?? [0, 0];
  const isOfTerm = spansOf(source).map(([from, to]) => from < end && to > start);
  const spans = spansOf(output);
  const first = bytes.length - layers * heads * queries * keys + (layers > 1 ? heads * queries * keys : 0);
  let changed = null;  // the span of the words that stand for the term
  spans.forEach((span, word) => {
    const sums = new Float64Array(isOfTerm.length);  // by word of the source
    for (let at = first; at < bytes.length; at++) {
      const query = Math.floor((at - first) / keys) % queries;
      if (output.wordOf[query] === word) sums[source.wordOf[(at - first) % keys]] += bytes[at];
    }
    const most = sums.indexOf(Math.max(...sums));
    if (isOfTerm[most] && span[1] > span[0]) changed = [changed?.[0] ?? span[0], span[1]];
  });
  return changed && output.text.slice(0, changed[0]) + translation + output.text.slice(changed[1]);
}

/** Returns where each word is in its text as [start, end]; an empty span for symbols that are no text. */
function spansOf({words, text}) {
  let end = 0;
  return words.map((word) => {
    const start = text.indexOf(word, end);
    if (start < 0) return [end, end];
    end = start + word.length;
    return [start, end];
  });
}
