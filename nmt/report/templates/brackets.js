// Parses bracketed trees, compares them by the rules of F1, and draws them.
const Brackets = (() => {
  "use strict";

  // Returns a line's root, the words that F1 counts, and the constituents that it counts, each with its span of words
  // [start, end); null if the line is no tree.
  function read(line, unscored) {
    const [nodes, open, words] = [[], [], []];
    let root = null;
    for (const [, opener, closer, word] of line.matchAll(/\(\s*([^()\s]*)|(\))|([^()\s]+)/g)) {
      const inner = open.at(-1);
      if (!inner && opener === undefined) return null;
      if (closer) {
        inner.end = words.length;
        open.pop();
      } else if (word !== undefined) {
        inner.word = word;
        if (!unscored.includes(inner.label)) words.push(word);
      } else {
        const node = { label: opener, name: nameOf(opener), start: words.length, end: null, children: [], word: null };
        inner?.children.push(node);
        root ??= node;
        open.push(node);
        nodes.push(node);
      }
    }
    const isScored = (node) => node.word === null && node.start < node.end && !unscored.includes(node.name);
    return root && !open.length ? { root, words, nodes: nodes.filter(isScored) } : null;
  }

  // Returns the label that F1 compares: without functional tags, and ADVP for PRT.
  function nameOf(label) {
    const name = label.split(/[-=]/)[0];
    return name === "PRT" ? "ADVP" : name;
  }

  const span = (node) => `${node.start} ${node.end} ${node.name}`;

  // Marks the constituents of `tree` that `other` lacks; each constituent of `other` matches once.
  function compare(tree, other) {
    const left = new Map();
    for (const node of other?.nodes ?? []) left.set(span(node), (left.get(span(node)) ?? 0) + 1);
    for (const node of tree?.nodes ?? []) {
      const there = left.get(span(node)) ?? 0;
      node.differs = there === 0;
      if (there) left.set(span(node), there - 1);
    }
  }

  const CHARACTER = 7.3, ROW = 36, GAP = 14; // pixels; CHARACTER depends on the font in brackets.css

  // Positions each node: leaves side by side in the bottom row, parents centred over their children and one row above
  // the highest child. A label wider than the node's children moves them to the right.
  function layOut(root) {
    let right = 0;
    const move = (node, by) => {
      node.x += by;
      for (const child of node.children) move(child, by);
    };
    const place = (node) => {
      const left = right;
      const width = CHARACTER * Math.max(node.label.length + (node.differs ? 2 : 0), node.word?.length ?? 0);
      node.children.forEach(place);
      const room = left + width - (right - GAP);
      if (room > 0) {
        for (const child of node.children) move(child, room / 2);
        right = left + width + GAP;
      }
      node.height = 1 + Math.max(-1, ...node.children.map((child) => child.height));
      node.x = node.children.length ? (node.children[0].x + node.children.at(-1).x) / 2 : left + width / 2;
    };
    place(root);
    return { width: right, rows: root.height };
  }

  function svg(kind, attributes, ...children) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", kind);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }

  // Draws a tree as SVG, highlighting the constituents that `compare` has marked.
  function draw(tree, title) {
    const { width, rows } = layOut(tree.root);
    const height = rows * ROW + 42;
    const size = { width, height, viewBox: `0 0 ${width} ${height}` };
    const picture = svg("svg", { ...size, class: "brackets", role: "img" }, svg("title", {}, title));
    const write = (node) => {
      const y = (rows - node.height) * ROW + 16;
      for (const child of node.children) {
        picture.append(svg("path", { d: `M${node.x} ${y + 5}v6H${child.x}V${(rows - child.height) * ROW + 3}` }));
        write(child);
      }
      const kind = node.word !== null ? "tag" : node.differs ? "differs" : "label";
      picture.append(svg("text", { x: node.x, y, class: kind }, node.differs ? `${node.label} ≠` : node.label));
      if (node.word !== null) picture.append(svg("text", { x: node.x, y: y + 20 }, node.word));
    };
    write(tree.root);
    return picture;
  }

  return { read, compare, draw };
})();
