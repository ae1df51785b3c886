"use strict";
// How the translations of a line's parts are joined, as nmt/decoding/splitter.py does it; for the worker and the page.

const WIDE_RANGES = "\\u2e80-\\u312f\\u31a0-\\u4dbf\\u4e00-\\u9fff\\uf900-\\ufaff\\uff00-\\uff9f\\u{20000}-\\u{323af}";
const UNSPACED_RANGES = "\\u0e00-\\u109f\\u1780-\\u17ff\\u1950-\\u19ff\\u1a20-\\u1aaf\\u1b00-\\u1b7f\\ua980-\\ua9ff\\uaa60-\\uaadf" + WIDE_RANGES;
const UNSPACED = new RegExp(`[${UNSPACED_RANGES}]`, "u");  // of scripts without spaces between words
const JOINS = new RegExp(`^(?![${UNSPACED_RANGES}])[_\\p{L}\\p{N}\\p{M}]$`, "u");  // of words of other scripts
const NO_SPACE_BEHIND = new RegExp(`[${WIDE_RANGES}]`, "u");

/** Returns what stands before and behind the translations of a line's parts, as text: one more than there are parts. */
function gaps(line, parts, texts) {
  const found = [];
  let last = 0, whole = "";
  parts.forEach(({text, start}, index) => {
    let between = line.slice(last, start);
    const isSpace = index && !between.trim() && !between.includes("\t");  // a tab stays
    if (isSpace && (!texts[index] || !whole.trim())) between = "";
    else if (isSpace && between.length < 2) {
      const isInWord = JOINS.test(line[last - 1]) && JOINS.test(line[last]);
      between = gapBehind(whole.slice(-1), between, line[last - 1], texts[index], isInWord);
    }
    found.push(between);
    whole += between + texts[index];
    last = start + text.length;
  });
  found.push(line.slice(last));
  return found;
}

/** Returns what follows a part that ends in `last`, and whose source ends in `source`, inside of a word or not. */
function gapBehind(last, between, source, next, isInWord) {
  if (NO_SPACE_BEHIND.test(last) || (UNSPACED.test(last) && JOINS.test(source))) return "";
  if (!between && UNSPACED.test(source)) return " ";
  return between || (!isInWord && JOINS.test(last) && JOINS.test(next?.[0] ?? "") ? " " : "");
}
