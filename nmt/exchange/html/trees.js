"use strict";
// Trees as sequences of symbols, as nmt/parsing/linearization.py has them, and the rule that outputs are trees over exactly
// the words of their source, as in nmt/search/constraints.py.

const ANY = 0, WORD_OF_TREE = 1, MARK = 2, TRACE = 3;  // kinds of words; ANY fits all tags

/** Writes brackets in a word as treebanks do, to tell them from those of the tree. */
const escapeBrackets = (word) => word.replaceAll("(", "-LRB-").replaceAll(")", "-RRB-");

class TreeVocabulary {
  /** Takes the table of nmt/parsing/linearization.py:TreeVocabulary. */
  constructor({symbols, leaves, openers, closers, longestRun, fitting, tags, ambiguous, deleted, empty}) {
    Object.assign(this, {symbols, leaves, openers, closers, longestRun, fitting, empty});
    this.tags = new Map(Object.entries(tags));
    this.ambiguous = new Set(ambiguous);
    this.deleted = new Set(deleted);
    this.hasTags = fitting[ANY].length > 0;
  }

  kindOf(tag) {
    if (tag === this.empty) return TRACE;
    return this.deleted.has(tag) ? MARK : WORD_OF_TREE;
  }

  /** Returns what training has told of a word, or of its smallest class that is known: {tag, isAmbiguous}. */
  known(word) {
    const shape = shapesOf(word).find((each) => this.tags.has(each) || this.ambiguous.has(each));
    return {tag: this.tags.get(shape) ?? "XX", isAmbiguous: this.ambiguous.has(shape)};
  }

  /** Returns the kinds of words, by which leaves fit them. */
  kinds(words) {
    return words.map((word) => {
      const {tag, isAmbiguous} = this.known(escapeBrackets(word));
      return isAmbiguous ? ANY : this.kindOf(tag);
    });
  }

  /** Returns the tag of a word in a tree: the predicted leaf, if that is a tag of its kind. */
  tag(word, leaf) {
    const {tag, isAmbiguous} = this.known(word);
    return this.hasTags && (isAmbiguous || this.kindOf(leaf) === this.kindOf(tag)) ? leaf : tag;
  }

  /** Returns the constituents that ids stand for in brackets, over these words. */
  brackets(ids, words) {
    const rest = words.map(escapeBrackets);
    return ids.map((id) => {
      const symbol = this.symbols[id];
      if (id >= this.closers[0]) return ")";
      if (id >= this.openers[0]) return ` ${symbol}`;
      const word = rest.shift();
      return ` (${this.tag(word, symbol)} ${word})`;
    }).join("");
  }
}

/** Returns a word's classes, smallest first: itself; "!" of "!!!"; "", all symbols. */
function shapesOf(word) {
  const shape = word.replace(/\p{Nd}+/gu, "0").replace(/([^\p{L}\p{N}_])\1+/gu, "$1");
  if (!/[\p{L}\p{N}]/u.test(word)) return [word, shape, ""];
  return word[0] === "*" ? [word, shape] : [word];
}

/**
 * The rule of nmt/search/constraints.py:TreeConstraint. A state has the leaves, brackets and brackets in a row that are
 * left, and the innermost open bracket, which knows the one around it.
 */
class TreeRule {
  constructor(vocabulary, kinds, cap) { Object.assign(this, {vocabulary, kinds, cap}); }

  begin() {
    const words = this.kinds.length;
    return {leaves: words, brackets: Math.floor((this.cap - words - 1) / 2), run: this.vocabulary.longestRun, open: null};
  }

  /** Sets the logits of symbols that may not follow to -∞. */
  restrict({leaves, brackets, run, open}, row) {
    const {leaves: ofLeaves, openers, closers, longestRun, fitting, hasTags} = this.vocabulary;
    if (hasTags && leaves) fitLeaves(row.subarray(...ofLeaves), fitting[this.kinds[this.kinds.length - leaves]]);
    if (!leaves) row.fill(-Infinity, ...ofLeaves);
    if (leaves < 1 || brackets < 1 || run < 1) row.fill(-Infinity, ...openers);
    const closer = open && run === longestRun ? closers[0] + open.label : null;  // else the innermost bracket is empty
    const kept = row[closer];
    row.fill(-Infinity, ...closers);
    if (closer !== null) row[closer] = kept;
    if (leaves || open) row[EOS] = -Infinity;
  }

  advance({leaves, brackets, run, open}, symbol) {
    const {openers, closers, longestRun} = this.vocabulary;
    if (symbol >= closers[0]) return {leaves, brackets, run: longestRun, open: open.outer};
    if (symbol < openers[0]) return {leaves: leaves - 1, brackets, run: longestRun, open};
    return {leaves, brackets: brackets - 1, run: run - 1, open: {label: symbol - openers[0], outer: open}};
  }
}

/** Gives the probability of leaves that do not fit a word to those that do. */
function fitLeaves(leaves, fits) {
  const all = logSumExp(leaves);
  leaves.forEach((_, leaf) => { if (!fits[leaf]) leaves[leaf] = -Infinity; });
  const lost = all - logSumExp(leaves);
  leaves.forEach((logit, leaf) => { leaves[leaf] = logit + lost; });
}
