"use strict";
// Lines in capitals and in title case, which the model translates as they would be written otherwise: the rules of
// nmt/formats/letter_case.py.

const FEWEST_LETTERS = 4, UNUSUAL = 1.6, FEWEST_WORDS = 3, FEWEST_UNUSUAL = 2, LONGEST_SMALL = 4;
const IN_CASED_WORD = "[\\p{L}\\p{N}_]";
const CASED_WORD = new RegExp(
  `(?<!${IN_CASED_WORD})\\p{L}(?:[\\p{L}\\p{N}\\p{M}_\\u00ad]|['’·](?=${IN_CASED_WORD}))*`, "gu");

const isInCapitals = (text) => !/(?!ß)\p{Lowercase}/u.test(text) && (text.match(/\p{Uppercase}/gu) ?? []).length >= FEWEST_LETTERS;

function isInTitleCase(text) {
  const words = casedWords(text);
  return words.length >= FEWEST_WORDS && words.every((word) => /^\p{Uppercase}/u.test(word));
}

const casedWords = (text) => (text.match(CASED_WORD) ?? []).filter((word) => !/\p{N}/u.test(word));

/** Tells how the translation of a line is to be written, which was changed to `usual`: "capitals", "title" or "". */
function styleOf(text, usual) {
  if (isInCapitals(text)) return usual === text ? "" : "capitals";
  return isInTitleCase(text) ? "title" : "";
}

/** Writes a translation in a style. */
function inStyle(text, style, language) {
  if (style === "capitals") return text.toLocaleUpperCase(language);
  return text.replace(CASED_WORD, (word) => {
    if (/\p{N}/u.test(word) || word !== word.toLocaleLowerCase(language)) return word;
    return word[0].toLocaleUpperCase(language) + word.slice(1);
  });
}

/** Writes a line in capitals or in title case as the vocabulary has its words; another line stays as it is. */
function asUsual(text, vocabulary, {language, stops, closing}) {
  const ended = new RegExp(`[${escaped(stops)}][${escaped(closing)}]*\\s[^\\p{L}\\p{N}_]*$`, "u");
  const isWhole = isInCapitals(text);
  const count = (form) => vocabulary.encode(form).length;
  const rareness = (form) => {
    const ids = vocabulary.encode(form), place = ids.length === 1 ? ids[0] : 0;
    return ids.length * 2 * vocabulary.symbols.length + place * (/^\p{Uppercase}/u.test(form) ? 2 : 1);
  };
  const rarest = (forms) => forms.reduce((best, other) => rareness(other) < rareness(best) ? other : best);
  let last = 0;  // offset behind the word before
  let before = 0, after = 0;  // subwords
  let unusual = 0;  // words that the vocabulary has in small letters alone
  const found = text.replace(CASED_WORD, (word, at) => {
    if (/\p{N}/u.test(word)) return word;
    const gap = text.slice(last, at), begins = last ? ended.test(gap) : !HAS_WORDS.test(gap);
    const isCapital = begins || (language === "en" && /^I(?![\p{L}\p{N}_])/u.test(word));
    last = at + word.length;
    const small = word.toLocaleLowerCase(language), withCapital = word[0] + small.slice(1);
    if (small.length !== word.length) return word;
    if (!isWhole) {
      if (word === small && word.length > LONGEST_SMALL) unusual = -Infinity;
      if (word !== withCapital || isCapital) return word;
      unusual += Number(count(small) < count(word));
      return rarest([small, word]);
    }
    if (word.length === 1 && text[last] === ".") return word;  // J. R.
    const forms = [small, withCapital, word];
    if (language === "de") {
      forms.push(...forms.slice(0, 2).map((form) => form.replaceAll("ss", "ß\u00ad")));  // STRASSE
      if (count(small) > 1) forms.unshift(withCapital);  // of rare words, most are nouns
    }
    const form = rarest(forms), written = isCapital ? word[0] + form.slice(1) : form;
    before += count(word);
    after += count(written);
    return written;
  });
  const isUnusual = isWhole ? before >= UNUSUAL * after : unusual >= FEWEST_UNUSUAL;
  return isUnusual ? found : text;
}
