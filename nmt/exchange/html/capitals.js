"use strict";
// Texts in capitals, which the model translates in small letters: the rules of nmt/formats/capitals.py.

const FEWEST_CAPITALS = 4;
const isInCapitals = (text) => !/\p{Lowercase}/u.test(text) && (text.match(/\p{Uppercase}/gu) ?? []).length >= FEWEST_CAPITALS;
const inCapitals = (text, language) => text.toLocaleUpperCase(language);

/** Writes a text in capitals as the vocabulary has its words, and as its language begins sentences. */
function withoutCapitals(text, vocabulary, {language, stops, closing}) {
  const ended = new RegExp(`[${escaped(stops)}][${escaped(closing)}]*\\s[^\\p{L}\\p{N}_]*$`, "u");
  const size = (form) => vocabulary.encode(form).length;
  let last = 0;  // offset behind the word before
  return text.replace(/(?<![\p{L}\p{N}_])[\p{L}](?:[\p{L}\p{N}\p{M}_\u00ad]|['’·](?=[\p{L}\p{N}_]))*/gu, (word, at) => {
    const before = text.slice(last, at), begins = last ? ended.test(before) : !HAS_WORDS.test(before);
    last = at + word.length;
    const small = word.toLocaleLowerCase(language);
    const isInitial = word.length === 1 && text[last] === ".";  // J. R.
    if (isInitial || small.length !== word.length || /\p{N}/u.test(word)) return word;
    const withCapital = word[0] + small.slice(1), forms = [small, withCapital, word];
    if (language === "de") {
      forms.push(...forms.slice(0, 2).map((form) => form.replaceAll("ss", "ß\u00ad")));  // STRASSE
      if (size(small) > 1) forms.unshift(withCapital);  // of rare words, most are nouns
    }
    const form = forms.reduce((best, other) => size(other) < size(best) ? other : best);
    const isCapital = begins || (language === "en" && /^I(?![\p{L}\p{N}_])/u.test(word));
    return isCapital ? word[0] + form.slice(1) : form;
  });
}
