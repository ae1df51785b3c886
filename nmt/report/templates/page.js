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
