"use strict";
// The page of a parser: it draws the trees that the worker of nmt/exchange/html/parser.js finds. All that comes from a
// text or a model is set as text, never as markup.

function parse() {
  const lines = byId("text").value.split(/\r?\n/).filter((line) => line.trim());
  const places = lines.map(() => element("figure", {}, "…"));
  byId("trees").replaceChildren(...places);
  progress(0, lines.length);
  newest = ask({kind: "lines", lines}, ({number, index, tree}) => {
    if (number !== newest) return;
    places[index].replaceChildren(...drawn(lines[index], tree));
    progress(index + 1, lines.length);
  });
}

/** Returns a picture of a tree, which can be scrolled, and the tree in brackets to copy. */
function drawn(line, tree) {
  const read = Brackets.read(tree, []);
  if (!read) return [element("p", {}, `No tree was found for: ${line}`)];
  const picture = element("div", {className: "drawing", tabIndex: 0, role: "group", "aria-label": line}, Brackets.draw(read, line));
  return [picture, element("figcaption", {}, tree)];
}

function progress(done, all) {
  byId("progress").hidden = all < 2 || done === all;
  byId("progress").max = Math.max(1, all);
  byId("progress").value = done;
  const sentences = `${all} ${all === 1 ? "sentence" : "sentences"}`;
  if (done < all) tell(`${done} of ${sentences} …`);
  else tell(all ? `${sentences} parsed.` : "Ready.");
}

start(parse);
