// The page: tabs, fields, links and the theme. Answers come from the server, or from the page itself where it is stored.
"use strict";

(async () => {
  const embedded = document.getElementById("stored");
  const store = embedded ? await unpacked(embedded.textContent) : null; // with a server nothing waits: Shiny comes next
  const panels = new Map([...document.querySelectorAll("section.view")].map((panel) => [panel.dataset.view, panel]));
  const tabs = [...document.querySelectorAll('[role="tab"]')];
  let active = null;

  async function unpacked(text) {
    const bytes = Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
  }

  // ---- fields

  const boxes = (view) => [...panels.get(view).querySelectorAll("[data-control]")];
  const fieldOf = (box) => box.querySelector("input, select");
  const textOf = (field) => (field.type === "checkbox" ? String(field.checked) : field.value);

  function fill(field, text) {
    if (field.type === "checkbox") field.checked = text === "true";
    else {
      if (field.tagName === "SELECT" && ![...field.options].some((option) => option.value === text)) {
        field.append(new Option(text, text)); // the server will say that it is not in the list
      }
      field.value = text;
    }
    follow(field);
  }

  function follow(field) {
    const presets = field.closest("[data-control]").querySelector(".presets");
    if (presets && presets !== field) presets.value = field.value; // nothing is chosen where it is not among them
    const shown = field.type === "range" && document.querySelector(`output[for="${field.id}"]`);
    if (shown) shown.textContent = field.value;
  }

  function texts(view) {
    return Object.fromEntries(boxes(view).map((box) => [box.dataset.control, textOf(fieldOf(box))]));
  }

  function hideWhatIsNotNeeded(view) {
    const now = texts(view);
    for (const box of boxes(view)) {
      const needs = [...box.attributes].filter(({ name }) => name.startsWith("data-needs-"));
      box.hidden = needs.some(({ name, value }) => !value.split(" ").includes(now[name.slice("data-needs-".length)]));
    }
  }

  function showErrors(view, errors) {
    for (const box of boxes(view)) {
      const text = errors[box.dataset.control] || "";
      const field = fieldOf(box);
      box.querySelector(".error").textContent = text;
      if (text) field.setAttribute("aria-invalid", "true");
      else field.removeAttribute("aria-invalid");
      if (text && box.closest("details")) box.closest("details").open = true;
    }
  }

  // ---- answers

  function receive(message) {
    const panel = panels.get(message.view);
    if (!panel) return;
    showErrors(message.view, message.errors);
    const notice = panel.querySelector(".notice");
    notice.textContent = message.notice;
    notice.hidden = !message.notice;
    if (message.notice && !panel.dataset.drawn) panel.querySelector(".headline").textContent = "";
    if (message.answer) {
      drawing.show(panel, message.answer);
      panel.dataset.drawn = "true";
      if (message.view === active) remember(message.link);
    }
    panel.removeAttribute("aria-busy");
    panel.dataset.asked = JSON.stringify(message.texts);
    panel.dataset.answered = String(Number(panel.dataset.answered || 0) + 1);
  }

  function ask() {
    if (store) {
      const asked = texts(active);
      const key = JSON.stringify(Object.values(asked));
      receive({ view: active, texts: asked, errors: {}, notice: "", ...store[active][key] });
    } else if (window.Shiny && Shiny.setInputValue) Shiny.setInputValue("view", active);
  }

  // ---- links: settings are in the query, or behind the # of a stored page, whose query a browser may not change

  const asked = new URLSearchParams(store ? location.hash.slice(1) : location.search);

  function remember(link) {
    history.replaceState(null, "", (store ? "#" : "?") + link);
  }

  function restore(view) {
    for (const box of boxes(view)) {
      const text = asked.get(box.dataset.control);
      if (text === null) continue;
      fill(fieldOf(box), text);
      if (box.closest("details")) box.closest("details").open = true;
    }
  }

  // ---- tabs

  function open(view) {
    active = view;
    for (const tab of tabs) {
      const chosen = tab.dataset.holds.split(" ").includes(view);
      if (chosen) { // a tab of several views leads to the one that was seen last
        tab.dataset.view = view;
        tab.setAttribute("aria-controls", `view-${view}`);
      }
      tab.setAttribute("aria-selected", String(chosen));
      tab.tabIndex = chosen ? 0 : -1;
      // on a phone the tabs are wider than the screen; scrollIntoView would move the start of the Tab key's way too
      if (chosen) tab.parentElement.scrollLeft = tab.offsetLeft - (tab.parentElement.clientWidth - tab.offsetWidth) / 2;
    }
    for (const row of document.querySelectorAll(".tabs .below")) {
      row.hidden = !row.querySelector('[aria-selected="true"]');
    }
    for (const [name, panel] of panels) panel.hidden = name !== view;
    drawing.resize(panels.get(view));
    remember(new URLSearchParams({ view }).toString());
    ask();
  }

  function tabKey(event) {
    const steps = { ArrowRight: 1, ArrowLeft: -1 };
    const row = [...event.currentTarget.parentElement.children];
    const here = row.indexOf(event.currentTarget);
    let next = null;
    if (event.key in steps) next = (here + steps[event.key] + row.length) % row.length;
    if (event.key === "Home") next = 0;
    if (event.key === "End") next = row.length - 1;
    if (next === null) return;
    event.preventDefault();
    open(row[next].dataset.view);
    row[next].focus();
  }

  window.addEventListener("resize", () => drawing.resize(panels.get(active)));

  // ---- the theme

  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const themeButton = document.getElementById("theme");

  function setTheme(name) {
    document.documentElement.dataset.theme = name;
    themeButton.setAttribute("aria-pressed", String(name === "dark"));
    drawing.repaint();
  }

  function chosenTheme() {
    try { return localStorage.getItem("mcrepar-theme"); } catch { return null; }
  }

  themeButton.addEventListener("click", () => {
    const name = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("mcrepar-theme", name); } catch { /* a browser that keeps nothing */ }
    setTheme(name);
  });
  dark.addEventListener("change", () => { if (!chosenTheme()) setTheme(dark.matches ? "dark" : "light"); });
  setTheme(chosenTheme() || (dark.matches ? "dark" : "light"));

  // ---- start

  for (const [view, panel] of panels) {
    for (const box of boxes(view)) {
      const field = fieldOf(box);
      const notes = [...box.querySelectorAll(".hint, .error")].map((note) => note.id);
      field.setAttribute("aria-describedby", notes.join(" "));
      follow(field);
    }
    const changed = (event) => {
      follow(event.target);
      hideWhatIsNotNeeded(view);
      // a field that is back where it was sends nothing, and nothing comes back
      if (JSON.stringify(texts(view)) === panel.dataset.asked) panel.removeAttribute("aria-busy");
      else panel.setAttribute("aria-busy", "true");
      if (store) ask();
    };
    panel.querySelector(".controls").addEventListener(store ? "change" : "input", changed);
    for (const presets of panel.querySelectorAll(".presets")) {
      presets.addEventListener("change", () => {
        const field = fieldOf(presets.closest("[data-control]"));
        fill(field, presets.value);
        for (const kind of ["input", "change"]) field.dispatchEvent(new Event(kind, { bubbles: true }));
      });
    }
    panel.querySelector(".copy-link").addEventListener("click", (event) => drawing.copied(location.href, event.target));
  }
  for (const tab of tabs) {
    tab.addEventListener("click", () => open(tab.dataset.view));
    tab.addEventListener("keydown", tabKey);
  }

  const wanted = asked.get("view");
  const first = panels.has(wanted) ? wanted : tabs[0].dataset.view;
  restore(first);
  for (const view of panels.keys()) hideWhatIsNotNeeded(view);

  if (!store) {
    class Dragged extends Shiny.InputBinding {
      find(scope) { return $(scope).find("input.dragged"); }
      getValue(field) { return field.value; }
      setValue(field, value) { fill(field, value); }
      subscribe(field, callback) { $(field).on("input.dragged", () => callback(true)); }
      unsubscribe(field) { $(field).off(".dragged"); }
      getRatePolicy() { return { policy: "throttle", delay: 100 }; }
    }
    Shiny.inputBindings.register(new Dragged(), "mcrepar.dragged");
    Shiny.addCustomMessageHandler("answer", receive);
    $(document).on("shiny:connected", () => ask());
    $(document).on("shiny:disconnected", () => {
      const notice = panels.get(active).querySelector(".notice");
      notice.textContent = "The server has gone. Start mcrepar app again and reload this page.";
      notice.hidden = false;
    });
  }
  open(first);
})();
