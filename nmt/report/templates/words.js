// Compares the words of an output with those of its reference.
const Words = (() => {
  "use strict";

  // Splits a text into runs of letters and digits and other single characters, ideographs among them. Returns pairs
  // [word with the space before it, word].
  const split = (text) => [...text.matchAll(/\s*((?:(?!\p{Ideo})[\p{L}\p{M}\p{N}])+|\S)/gu)];

  // Returns parts [kind, text] by the longest common subsequence of words; kind is 0 for words of both texts, 1 for
  // those only in the output, -1 for those only in the reference. A part begins with the space before its first word.
  function compare(reference, output) {
    const [expected, given] = [split(reference), split(output)];
    const [rows, columns] = [expected.length, given.length];
    const same = (row, column) => expected[row][1] === given[column][1];
    const longest = Array.from({ length: rows + 1 }, () => new Uint16Array(columns + 1));
    for (let row = rows - 1; row >= 0; row--)
      for (let column = columns - 1; column >= 0; column--)
        longest[row][column] = same(row, column) ? longest[row + 1][column + 1] + 1
          : Math.max(longest[row + 1][column], longest[row][column + 1]);
    const parts = [];
    const add = (kind, [spaced]) => {
      if (parts.at(-1)?.[0] === kind) parts.at(-1)[1] += spaced;
      else parts.push([kind, spaced]);
    };
    let [row, column] = [0, 0];
    while (row < rows || column < columns) {
      if (row < rows && column < columns && same(row, column)) {
        add(0, given[column++]);
        row++;
      } else if (column === columns || (row < rows && longest[row + 1][column] >= longest[row][column + 1])) {
        add(-1, expected[row++]);
      } else {
        add(1, given[column++]);
      }
    }
    return parts;
  }

  return { compare };
})();
