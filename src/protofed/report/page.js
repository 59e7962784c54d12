"use strict";
// Sorting by a click on a head, reading curves with the pointer, and, if the page is watched,
// asking for its next version. Texts go in as textContent: names are never read as HTML.
(() => {
  const sorted = {};  // table id -> [column, direction], so that a renewed page stays sorted

  const value = (row, column) => {
    const cell = row.cells[column], text = cell.textContent.trim();
    const number = parseFloat(cell.dataset.key ?? text);
    return Number.isNaN(number) ? text : number;
  };

  const order = (one, other) => {
    const kinds = typeof one === typeof other;
    if (kinds && typeof one === "number") return one - other;
    return kinds ? one.localeCompare(other) : (typeof one === "number" ? -1 : 1);
  };

  const sort = (table, column, way) => {
    const body = table.tBodies[0];
    const rows = [...body.rows].sort((a, b) => way * order(value(a, column), value(b, column)));
    body.append(...rows);
    [...table.tHead.rows[0].cells].forEach((head, place) => {
      if (place === column) head.ariaSort = way > 0 ? "ascending" : "descending";
      else head.removeAttribute("aria-sort");
    });
    sorted[table.id] = [column, way];
  };

  const prepare = () => {
    for (const head of document.querySelectorAll("table.sortable thead th")) {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
    }
    for (const [id, [column, way]] of Object.entries(sorted)) {
      const table = document.getElementById(id);
      if (table) sort(table, column, way);
    }
  };

  document.addEventListener("click", (event) => {
    const head = event.target.closest("table.sortable thead th");
    if (!head) return;
    const numbers = head.closest("table").tBodies[0].rows[0].cells[head.cellIndex].dataset.key;
    const first = numbers === undefined ? 1 : -1;  // numbers: the highest on top
    const before = head.ariaSort && (head.ariaSort === "ascending" ? 1 : -1);
    sort(head.closest("table"), head.cellIndex, before ? -before : first);
  });

  const make = (kind, name, text) => {
    const made = document.createElement(kind);
    if (name) made.className = name;
    if (text) made.textContent = text;
    return made;
  };

  const clear = () => document.querySelectorAll(".tip, .cursor").forEach((made) => made.remove());

  const read = (chart, clientX) => {
    const [first, last, , , lines] = JSON.parse(chart.dataset.curves);
    const box = chart.querySelector(".plot").getBoundingClientRect();
    const at = first + (clientX - box.left) / box.width * (last - first);
    const rounds = lines.flatMap(([, , points]) => points.map(([round]) => round));
    if (!rounds.length) return;
    const near = rounds.reduce((a, b) => Math.abs(b - at) < Math.abs(a - at) ? b : a);
    const tip = make("div", "tip"), cursor = make("div", "cursor");
    tip.append(make("b", "", `round ${near}`));
    for (const [label, colour, points] of lines) {
      const found = points.find(([round]) => round === near);
      if (!found) continue;
      const line = make("div"), name = make("span", "", label);
      name.prepend(make("i", colour));
      line.append(name, make("span", "", found[1].toFixed(2)));
      tip.append(line);
    }
    const share = last > first ? (near - first) / (last - first) : 0.5;
    const x = box.left - chart.getBoundingClientRect().left + share * box.width;
    cursor.style.left = `${x}px`;
    tip.style[share < 0.5 ? "left" : "right"] =
      `${share < 0.5 ? x + 12 : chart.clientWidth - x + 12}px`;
    chart.append(cursor, tip);
  };

  document.addEventListener("pointermove", (event) => {
    clear();
    const chart = event.target instanceof Element && event.target.closest(".chart");
    if (chart) read(chart, event.clientX);
  });

  const renew = (text) => {
    const next = new DOMParser().parseFromString(text, "text/html");
    for (const old of document.querySelectorAll("details[id]")) {
      const same = next.getElementById(old.id);
      if (same) same.open = old.open;
    }
    document.title = next.title;
    document.querySelector("main").replaceWith(next.querySelector("main"));
    prepare();
  };

  let version = null;
  const ask = async () => {
    try {
      const reply = await fetch(location.pathname, { cache: "no-store" });
      const now = reply.headers.get("ETag");
      if (reply.ok && now !== version) renew(await reply.text());
      if (reply.ok) version = now;
    } catch {
      clearInterval(timer);  // the server has ended; what is shown stays
    }
  };
  const timer = "watched" in document.body.dataset ? setInterval(ask, 2000) : 0;

  document.documentElement.classList.add("js");
  prepare();
})();
