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

/** Returns the terms of a text that an output lacks; it may have numbers in digits of another script, or 1,912 for 1912. */
const lackingTerms = (terms, text, output) =>
  terms.filter(([source, target]) => findTerm(source, text) && !findTerm(inPlainDigits(target), inPlainDigits(output)));

const SEPARATOR = /(?<=\d)[., '’\u00a0\u202f](?=\d{3}(?!\d))/g;  // of thousands
const inPlainDigits = (text) => text.replace(/\p{Nd}/gu, valueOf).replace(SEPARATOR, "");

const CONVERTED =  // what translations may write with other numbers: 5 miles, half past 7, um halb 8
  /\b(?:half past|halb|halv|miles?|feet|foot|inch(?:es)?|yards?|acres?|pounds?|lbs?|ounces?|gallons?|fahrenheit)\b|°F\b/i;
const LARGEST_WORD = 12;  // larger numbers seldom become words; also the hours that p.m. adds or takes
const GROUPED = /(?<!\p{Nd})\p{Nd}{1,3}(?:[., '’\u00a0\u202f]\p{Nd}{3})+(?!\p{Nd})/gu;

/**
 * Returns an output with plain numbers of its source for those that it has instead, as nmt/formats/numbers.py does it;
 * `plain` matches a number alone.
 */
function withNumbersOf(source, output, plain) {
  if (CONVERTED.test(source)) return output;
  const grouped = (text) => (text.match(GROUPED) ?? []).map((number) => number.replace(/\P{Nd}/gu, ""));
  const numbersIn = (text) => [...(text.match(/\p{Nd}{1,9}/gu) ?? []), ...grouped(text)].map(valueOf);
  const there = numbersIn(output), known = numbersIn(source);
  const lost = (source.match(plain) ?? []).filter((number) => {
    const at = there.indexOf(valueOf(number));
    if (at >= 0) there.splice(at, 1);
    return at < 0;
  });
  const invented = [...output.matchAll(plain)].filter(([number]) => !known.includes(valueOf(number)));
  const large = lost.filter((number) => valueOf(number) > LARGEST_WORD);
  const numbers = large.length === invented.length ? large : lost;
  if (numbers.length !== invented.length) return output;
  let text = "", last = 0;
  for (const [rank, {0: number, index}] of invented.entries()) {
    if (Math.abs(valueOf(number) - valueOf(numbers[rank])) === LARGEST_WORD) return output;  // 5 p.m. may become 17 hours
    const zero = number.codePointAt(0) - valueOf(String.fromCodePoint(number.codePointAt(0)));  // of the output's digits
    text += output.slice(last, index);
    for (const digit of numbers[rank]) text += String.fromCodePoint(zero + valueOf(digit));
    last = index + number.length;
  }
  return text + output.slice(last);
}

/** Returns the value of digits, which may be those of any script: each has its ten in a row. */
function valueOf(digits) {
  let value = 0;
  for (const digit of digits) {
    let zero = digit.codePointAt(0);
    while (zero % 16 && /\p{Nd}/u.test(String.fromCodePoint(zero - 1))) zero -= 1;
    value = 10 * value + (digit.codePointAt(0) - zero);
  }
  return value;
}

/**
 * Writes terms' translations in place of the words that stand for the terms, by what the model attended to.
 * `attention` is what Translator.attention returns. Returns the new text; terms for which no word stands are not in it.
 */
function placeTerms(terms, attention) {
  const places = terms.map(([source, target]) => [placeOf(source, attention), target]).filter(([place]) => place);
  places.sort(([one], [other]) => other[0] - one[0]);  // from the end, so that the places before stay where they are
  let {text} = attention.described.target_out;
  let last = text.length;
  for (const [[start, end], target] of places) {
    if (end > last) continue;  // the same words stand for two terms
    text = text.slice(0, start) + target + text.slice(end);
    last = start;
  }
  return text;
}

/** Returns where the words of an output stand for a term as [start, end], or null. */
function placeOf(term, {described, bytes}) {
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
  return changed;
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
