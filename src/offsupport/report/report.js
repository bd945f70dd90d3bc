"use strict";
// Names come from the user's files: they enter the page as text, never as markup.
(() => {
  const make = (tag, text, ...children) => {
    const element = document.createElement(tag);
    if (text) element.textContent = text;
    element.append(...children);
    return element;
  };

  // Sorting: by the value behind a number, else by its words; what is empty stays at the end.
  const keyOf = (row, column) => {
    const cell = row.cells[column];
    const words = cell.textContent.trim();
    const plain = words.replace(/,(?=\d{3})/g, "");
    if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
    return plain !== "" && !Number.isNaN(Number(plain)) ? Number(plain) : words;
  };
  const compare = (a, b) => {
    if (a === "" || b === "") return null;
    if (typeof a === "number" && typeof b === "number") return a - b;
    return String(a).localeCompare(String(b), undefined, { numeric: true });
  };
  const sort = (heading) => {
    const body = heading.closest("table").tBodies[0];
    const down = heading.getAttribute("aria-sort") === "ascending";
    for (const other of heading.parentElement.cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...body.rows].map((row, place) => ({ row, place, key: keyOf(row, heading.cellIndex) }));
    rows.sort((a, b) => {
      const order = compare(a.key, b.key);
      if (order === null) return (a.key === "") - (b.key === "") || a.place - b.place;
      return (down ? -order : order) || a.place - b.place;
    });
    body.append(...rows.map((each) => each.row));
  };

  // Filters: a column of numbers is cut off at one of them, any other asks for one of its words.
  const filter = (bar) => {
    const rows = [...bar.nextElementSibling.querySelector("tbody").rows];
    const asked = [...bar.querySelectorAll("select")].filter((each) => each.value !== "");
    const fits = (row, each) => {
      const key = keyOf(row, Number(each.dataset.column));
      return each.dataset.most ? typeof key === "number" && key <= Number(each.value) : String(key) === each.value;
    };
    for (const row of rows) row.hidden = !asked.every((each) => fits(row, each));
    bar.querySelector("output").textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
  };
  for (const bar of document.querySelectorAll(".filters")) {
    const rows = [...bar.nextElementSibling.querySelector("tbody").rows];
    for (const select of bar.querySelectorAll("select")) {
      const keys = [...new Set(rows.map((row) => keyOf(row, Number(select.dataset.column))))].filter((key) => key !== "");
      if (keys.length && keys.every((key) => typeof key === "number")) {
        select.dataset.most = "1";
        const steps = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].filter((step) => keys.some((key) => key > step) && keys.some((key) => key <= step));
        for (const step of steps) select.append(new Option(`at most ${step}`, step));
      } else for (const key of keys) select.append(new Option(key, key));
    }
    filter(bar);
  }

  // The drawer: what is behind a number.
  const given = document.getElementById("sources");
  const sources = given ? JSON.parse(given.textContent) : null;
  const drawer = document.getElementById("drawer");
  const say = (value) => (typeof value === "string" ? value : JSON.stringify(value));
  const facts = (pairs) => make("dl", "", ...pairs.flatMap(([name, value]) => [make("dt", name), make("dd", say(value))]));
  const whole = (index) => {
    const cell = sources.cells[index];
    return Object.fromEntries(sources.parts.map((part) => [part, { ...sources.common[part], ...cell[part] }]));
  };
  const split = (cells, part) => {
    const names = [...new Set(cells.flatMap((cell) => Object.keys(cell[part])))].sort();
    const same = (name) => cells.every((cell) => say(cell[part][name]) === say(cells[0][part][name]));
    return [names.filter(same), names.filter((name) => !same(name))];
  };
  const pick = (cell, part, names) => names.filter((name) => cell[part][name] !== undefined).map((name) => [name, cell[part][name]]);
  const cellDetails = (cell, key, differing, open) => {
    const told = pick(cell, "settings", differing.settings).map(([name, value]) => `${name} ${say(value)}`).join(", ");
    const pairs = sources.parts.flatMap((part) => pick(cell, part, differing[part]));
    const box = make("details", "", make("summary", told || key.slice(0, 12)), facts([...pairs, ["key", key], ["file", `${sources.folder}/${key}.json`]]));
    box.open = open;
    return box;
  };
  const show = (name) => {
    const entry = sources.entries[name];
    const cells = entry.cells.map(whole);
    const keys = entry.cells.map((index) => sources.cells[index].key);
    const content = [facts(entry.facts)];
    if (cells.length) {
      const splits = Object.fromEntries(sources.parts.map((part) => [part, split(cells, part)]));
      const differing = Object.fromEntries(sources.parts.map((part) => [part, splits[part][1]]));
      const shared = cells.length === 1 ? "" : ", the same in all cells";
      for (const part of sources.parts) {
        const pairs = pick(cells[0], part, splits[part][0]);
        if (pairs.length) content.push(make("h3", part[0].toUpperCase() + part.slice(1) + shared), facts(pairs));
      }
      content.push(make("h3", cells.length === 1 ? "The cell behind it" : `The ${cells.length} cells behind it`));
      content.push(...cells.map((cell, i) => cellDetails(cell, keys[i], differing, cells.length === 1)));
    }
    content.push(make("h3", "Compute it again"), make("pre", entry.command));
    document.getElementById("drawer-title").textContent = entry.title;
    document.getElementById("drawer-body").replaceChildren(...content);
    drawer.showModal();
    drawer.scrollTop = 0;
  };

  // A table that goes on beyond its frame says so: many systems hide scroll bars.
  for (const box of document.querySelectorAll(".scroll")) {
    if (box.scrollWidth > box.clientWidth + 2) {
      const cue = make("p", "More columns to the right: scroll sideways \u2192");
      cue.className = "cue";
      box.before(cue);
    }
  }

  document.addEventListener("change", (event) => {
    const bar = event.target.closest(".filters");
    if (bar) filter(bar);
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button && button.classList.contains("sort")) sort(button.closest("th"));
    else if (button && button.dataset.source !== undefined && sources) show(button.dataset.source);
    else if (button && button.id === "drawer-close") drawer.close();
    else if (event.target === drawer && event.clientX < drawer.getBoundingClientRect().left) drawer.close();
  });
})();
