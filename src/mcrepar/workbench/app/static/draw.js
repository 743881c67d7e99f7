// Draws an answer into its panel: figures that keep their zoom, tables, images, code. No words of a page are ever HTML.
"use strict";

const drawing = (() => {
  const zooms = new Map(); // of a plot: the ranges that the user has chosen, by axis
  const drawn = new Map(); // of a plot: its figure, to be drawn again when the theme changes
  const shownTables = new WeakMap(); // of an element: its table

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  function button(text, title, act) {
    const made = element("button", { type: "button", class: "button", "aria-label": title, title }, text);
    made.addEventListener("click", act);
    return made;
  }

  const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);

  // ---- figures

  function themed(value) {
    if (typeof value === "string") {
      if (!value.startsWith("@")) return value;
      return getComputedStyle(document.documentElement).getPropertyValue("--" + value.slice(1)).trim();
    }
    if (Array.isArray(value)) return value.map(themed);
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, themed(item)]));
    }
    return value;
  }

  // Labels at whole powers of ten; at 2 and 5 too where few powers are in sight, and all where hardly one is.
  function decades(own, chosen, values) {
    if (own.type !== "log") return {};
    const inside = values.flat().filter((value) => typeof value === "number" && value > 0).map(Math.log10);
    const [low, high] = chosen || [Math.min(...inside), Math.max(...inside)];
    return high - low >= 2 ? { dtick: Math.ceil((high - low) / 7) } : high - low > 0.7 ? { dtick: "D2" } : {};
  }

  function axis(own, chosen, values) {
    const kept = chosen && chosen.type === own.type ? chosen.range : null;
    const base = {
      gridcolor: "@line", linecolor: "@line", zerolinecolor: "@line", automargin: true, exponentformat: "power",
      tickfont: { size: 12 }, ...decades(own, kept, values), ...own,
      title: { ...own.title, standoff: 8, font: { size: 13 } },
    };
    return kept ? { ...base, range: kept, autorange: false } : base;
  }

  function layoutOf(figure, zoom) {
    const height = figure.layout.height || 350;
    return themed({
      height, margin: { l: 56, r: 14, t: 10, b: 44 }, paper_bgcolor: "@card", plot_bgcolor: "@card",
      font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: "@text" },
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 12 } },
      hoverlabel: { font: { size: 12 } }, dragmode: "zoom", ...figure.layout,
      xaxis: axis(figure.layout.xaxis, zoom.xaxis, figure.data.map((trace) => trace.x)),
      yaxis: axis(figure.layout.yaxis, zoom.yaxis, figure.data.map((trace) => trace.y)),
    });
  }

  function paint(plot) {
    const figure = drawn.get(plot);
    const options = { displayModeBar: false, displaylogo: false, responsive: true, doubleClick: false };
    return Plotly.react(plot, themed(figure.data), layoutOf(figure, zooms.get(plot)), options);
  }

  function remember(plot, changes) {
    let zoomed = false;
    for (const name of ["xaxis", "yaxis"]) {
      if (name + ".range[0]" in changes || name + ".range" in changes) {
        const { range, type } = plot.layout[name];
        zooms.get(plot)[name] = { range: [...range], type };
        zoomed = true;
      }
    }
    if (zoomed) paint(plot); // with the labels that fit what is in sight
  }

  function reset(plot) {
    zooms.set(plot, {});
    const back = {};
    for (const name of ["xaxis", "yaxis"]) {
      const range = drawn.get(plot).layout[name].range;
      if (range) back[name + ".range"] = [...range];
      else back[name + ".autorange"] = true;
    }
    return Plotly.relayout(plot, back).then(() => {
      zooms.set(plot, {}); // the way back was a change of range too
      return paint(plot);
    });
  }

  function zoomBy(plot, factor) {
    const closer = {};
    for (const name of ["xaxis", "yaxis"]) {
      const { range, type } = plot._fullLayout[name]; // a category axis counts its categories
      if (type === "category") continue;
      const [middle, half] = [(range[0] + range[1]) / 2, ((range[1] - range[0]) / 2) * factor];
      closer[name + ".range"] = [middle - half, middle + half];
    }
    return Plotly.relayout(plot, closer);
  }

  function fileName(panel, name, suffix) {
    return `mcrepar-${panel.dataset.view}-${name}${suffix}`;
  }

  function newFigure(panel, name) {
    const plot = element("div", { class: "plot" });
    const caption = element("figcaption");
    const words = element("p", { class: "unseen" });
    const save = (format) => () =>
      Plotly.downloadImage(plot, { format, filename: fileName(panel, name, ""), width: 900, height: 560, scale: 2 });
    const tools = element("div", { class: "tools" },
      button("+", "Zoom in", () => zoomBy(plot, 0.6)), button("−", "Zoom out", () => zoomBy(plot, 1 / 0.6)),
      button("Reset", "Reset the zoom", () => reset(plot)), button("PNG", "Download the figure as PNG", save("png")),
      button("SVG", "Download the figure as SVG", save("svg")));
    const figure = element("figure", { "data-figure": name }, caption, words, plot, tools);
    zooms.set(plot, {});
    return figure;
  }

  function showFigures(panel, figures) {
    const place = panel.querySelector(".figures");
    const present = new Map([...place.children].map((child) => [child.dataset.figure, child]));
    for (const [name, child] of present) {
      if (figures.some((figure) => figure.name === name)) continue;
      const plot = child.querySelector(".plot");
      Plotly.purge(plot);
      zooms.delete(plot);
      drawn.delete(plot);
      child.remove();
    }
    const holders = figures.map((figure, index) => {
      const holder = present.get(figure.name) || newFigure(panel, figure.name);
      if (place.children[index] !== holder) place.insertBefore(holder, place.children[index] || null);
      return holder;
    });
    figures.forEach((figure, index) => {
      const holder = holders[index]; // all are in their places now, so that each knows its width
      holder.querySelector("figcaption").textContent = figure.title;
      holder.querySelector(".unseen").textContent = figure.alt;
      const plot = holder.querySelector(".plot");
      if (same(drawn.get(plot), figure)) return;
      drawn.set(plot, figure);
      paint(plot);
      if (!present.has(figure.name)) {
        plot.on("plotly_relayout", (changes) => remember(plot, changes));
        plot.on("plotly_doubleclick", () => reset(plot));
      }
    });
  }

  // ---- tables

  function spelled(cell) {
    if (cell === null || cell === undefined) return "–";
    if (typeof cell !== "number") return String(cell);
    if (Number.isInteger(cell) && Math.abs(cell) < 1e15) return cell.toLocaleString("en-US");
    const size = Math.abs(cell);
    if (size >= 1e4 && size < 1e15) return Math.round(cell).toLocaleString("en-US");
    return size >= 1e15 || size < 1e-4 ? cell.toExponential(3) : String(Number(cell.toPrecision(5)));
  }

  function csv(table) {
    const quoted = (cell) => {
      const text = cell === null || cell === undefined ? "" : String(cell);
      return /[",\n]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
    };
    return [table.header, ...table.rows].map((row) => row.map(quoted).join(",")).join("\r\n") + "\r\n";
  }

  function download(text, type, name) {
    const link = element("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  function tableOf(panel, table) {
    const numeric = table.header.map((_, column) => table.rows.some((cells) => typeof cells[column] === "number"));
    const wordy = table.header.map((_, column) => table.rows.some((cells) => String(cells[column]).length > 28));
    const row = (cells, tag) =>
      element("tr", {}, ...cells.map((cell, column) => {
        const head = tag === "th" || column === 0;
        const made = element(head ? "th" : "td", head ? { scope: tag === "th" ? "col" : "row" } : {}, spelled(cell));
        if (numeric[column]) made.classList.add("number");
        if (wordy[column]) made.classList.add("wordy");
        return made;
      }));
    const made = element("table", {},
      element("caption", { class: "unseen" }, table.caption),
      element("thead", {}, row(table.header, "th")),
      element("tbody", {}, ...table.rows.map((cells) => row(cells, "td"))));
    const save = button("CSV", `Download as CSV: ${table.caption}`,
      () => download(csv(table), "text/csv;charset=utf-8", fileName(panel, table.name, ".csv")));
    return element("div", { class: "numbers", "data-table": table.name },
      element("div", { class: "title" }, element("h3", {}, table.caption), save),
      element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": table.caption }, made));
  }

  function showTables(panel, tables) {
    const place = panel.querySelector(".tables");
    const present = [...place.children]; // what has not changed is kept, with the place to which it was scrolled
    place.replaceChildren(...tables.map((table) => {
      const made = present.find((child) => same(shownTables.get(child), table)) || tableOf(panel, table);
      shownTables.set(made, table);
      return made;
    }));
    spread(panel);
  }

  // Two to a row where both fit without being clipped; another, and one that is left over, has a row of its own.
  function spread(panel) {
    const tables = [...panel.querySelectorAll(".numbers")];
    const clipped = (table) => {
      const { scrollWidth, clientWidth } = table.querySelector(".scroll");
      return scrollWidth > clientWidth;
    };
    for (const table of tables) table.classList.remove("wide");
    for (let place = 0; place < tables.length; ) {
      const two = tables.slice(place, place + 2);
      const pair = two.length === 2 && !two.some(clipped);
      if (!pair) two[0].classList.add("wide");
      place += pair ? 2 : 1;
    }
  }

  // ---- the rest

  function galleryOf(gallery) {
    const pictures = gallery.pictures.map(({ source, caption, alt }) =>
      element("li", {}, element("img", { src: source, alt }), element("span", {}, caption)));
    return element("div", { class: "gallery" }, element("h3", {}, gallery.title), element("ul", {}, ...pictures));
  }

  function copied(text, act) {
    const done = () => {
      act.textContent = "Copied";
      setTimeout(() => { act.textContent = act.dataset.text; }, 1500);
    };
    act.dataset.text = act.dataset.text || act.textContent;
    if (navigator.clipboard) navigator.clipboard.writeText(text).then(done, () => window.prompt("Copy this:", text));
    else window.prompt("Copy this:", text);
  }

  function showCode(place, code) {
    place.hidden = !code;
    const act = button("Copy", "Copy the code", () => copied(code, act));
    place.replaceChildren(element("div", { class: "title" }, element("h3", {}, "In code"), act),
      element("pre", { tabindex: "0" }, element("code", {}, code)));
  }

  function show(panel, answer) {
    const banner = panel.querySelector(".banner");
    banner.textContent = answer.banner;
    banner.hidden = !answer.banner;
    panel.querySelector(".headline").textContent = answer.headline;
    panel.querySelector(".notes").replaceChildren(...answer.notes.map((note) => element("p", {}, note)));
    panel.querySelector(".galleries").replaceChildren(...answer.galleries.map(galleryOf));
    showTables(panel, answer.tables);
    showCode(panel.querySelector(".code"), answer.code);
    showFigures(panel, answer.figures);
  }

  function repaint() {
    for (const plot of drawn.keys()) paint(plot);
  }

  function resize(panel) {
    spread(panel);
    for (const plot of panel.querySelectorAll(".plot")) Plotly.Plots.resize(plot);
  }

  return { show, repaint, resize, copied };
})();
