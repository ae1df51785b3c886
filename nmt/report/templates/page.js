// Loads the page of a run that is under way anew from time to time, and keeps what was chosen.
const keep = (() => {
  "use strict";
  const seconds = Number(document.body.dataset.reload), name = `nmt ${location.pathname}`, reads = new Map(), writes = new Map();
  let kept = {}, restored = false;
  try {
    kept = JSON.parse(sessionStorage.getItem(name)) ?? {};
    sessionStorage.removeItem(name);
  } catch { /* no storage, or not ours: begin anew */ }
  const controls = () => [...document.querySelectorAll(".switches input, .chart details, section > details")].entries();

  function reload() {
    if (document.hidden || document.activeElement.matches("input[type=search]")) return;
    const values = {};
    for (const [index, each] of controls()) values[index] = each.open ?? each.checked;
    for (const [part, read] of reads) values[part] = read();
    values.scroll = scrollY;
    try {
      sessionStorage.setItem(name, JSON.stringify(values));
    } catch { return; }
    location.reload();
  }

  // Restores the controls in the order of the page, after all scripts have run.
  function restore() {
    for (const [index, each] of controls()) {
      const value = kept[index];
      if (value === undefined || value === (each.open ?? each.checked)) continue;
      each[each.matches("details") ? "open" : "checked"] = value;
      if (value || each.type === "checkbox") each.dispatchEvent(new Event("change", {bubbles: true}));
    }
    restored = true;
    for (const [part, write] of writes) if (kept[part] != null) write(kept[part]);
    if (kept.scroll) scrollTo({top: kept.scroll, behavior: "instant"});
  }

  document.addEventListener("DOMContentLoaded", restore);
  if (seconds) setInterval(reload, 1000 * seconds);

  // Has `read` called before the page is loaded anew, and `write` called afterwards with what that returned.
  return (part, read, write) => {
    reads.set(part, read);
    if (restored && kept[part] != null) write(kept[part]);
    writes.set(part, write);
  };
})();

// Sorts tables by the buttons in their headings: by the cells' `data-value`, numerically if all values are numbers.
(() => {
  "use strict";
  for (const button of document.querySelectorAll("table.sortable th button")) {
    button.addEventListener("click", () => {
      const head = button.closest("th"), table = head.closest("table"), column = head.cellIndex;
      const falling = head.getAttribute("aria-sort") !== "descending";
      const value = row => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const rows = [...table.tBodies[0].rows];
      const numbers = rows.every(row => value(row) !== "" && Number.isFinite(Number(value(row))));
      const compare = numbers
        ? (a, b) => Number(value(a)) - Number(value(b))
        : (a, b) => value(a).localeCompare(value(b));
      rows.sort((a, b) => (falling ? -compare(a, b) : compare(a, b)));
      for (const other of table.querySelectorAll("th[aria-sort]")) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      table.tBodies[0].append(...rows);
    });
  }
})();
