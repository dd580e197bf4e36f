// Behaviour of pages: actions with a confirmation, "copy as curl", live updates, the theme.
// Data from the server is always set as text, never as markup.
"use strict";

const frame = document.body.dataset;
const dialog = document.getElementById("confirm");
const told = document.getElementById("told");

function tell(text, kind, state) {
  const note = document.createElement("div");
  note.className = `note ${kind || ""}`;
  note.setAttribute("role", kind === "bad" ? "alert" : "status");
  if (state) note.dataset.state = state;
  note.textContent = text;
  told.append(note);
  setTimeout(() => note.remove(), kind === "bad" ? 12000 : 5000);
}

// ── requests to the API, with the login session ────────────────────────────────────────

async function request(method, path, body) {
  const headers = { "X-Towpath-CSRF": frame.csrf };
  if (body) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, { method, headers, body: body || undefined });
  if (answer.ok) return answer.status === 204 ? null : answer.json().catch(() => null);
  if (answer.status === 401) {
    location.reload(); // shows the login form
    throw new Error("Your session has ended. Log in again.");
  }
  const problem = await answer.json().catch(() => ({}));
  const detail = problem.detail || `The server answered ${answer.status}`;
  throw new Error([detail.replace(/[.!?]?$/, "."), problem.remedy].filter(Boolean).join(" "));
}
window.towpath = { request, tell };

// ── actions ────────────────────────────────────────────────────────────────────────────

let pending = null;

// The body of a button's request, with the selected jobs or the typed value; undefined if no job is selected.
function bodyOf(data) {
  if (data.picked !== undefined) {
    const ids = [...document.querySelectorAll("input.pick:checked")].map((box) => box.value);
    return ids.length ? JSON.stringify({ ids }) : tell("Select some jobs first.", "warn");
  }
  return data.field ? JSON.stringify({ [data.field]: Number(dialog.querySelector(".field input").value) }) : data.body || "";
}

// The button's curl command, with *body* instead of the placeholder in the page.
function curlWith(button, body) {
  const { curl } = button.closest(".act").querySelector(".curl").dataset;
  return curl.replace(/-d '(?:\{"ids": \[\]\}|\{"delay": 0\})'/, () => `-d '${body.replaceAll("'", "'\\''")}'`);
}

// Changes many jobs: each request handles some, and its answer says where the next one continues.
async function eachStep(action, more) {
  let jobs = 0;
  let after = null;
  do {
    const body = { ...JSON.parse(action.body), ...more, ...(after ? { after } : {}) };
    const answer = await request(action.method, action.path, JSON.stringify(body));
    jobs += answer.jobs;
    after = answer.after;
  } while (after);
  return jobs;
}

async function countFirst(action, question) {
  const place = dialog.querySelector(".question");
  const yes = dialog.querySelector(".yes");
  yes.disabled = true;
  place.textContent = "Counting the jobs…";
  try {
    const jobs = await eachStep(action, { count_only: true });
    if (pending !== action) return;
    place.textContent = `${jobs} ${jobs === 1 ? "job" : "jobs"}. ${question}`;
    yes.disabled = false;
    yes.focus();
  } catch (error) {
    if (pending === action) place.textContent = error.message;
  }
}

function ask(button) {
  const data = button.dataset;
  const field = dialog.querySelector(".field");
  const input = field.querySelector("input");
  field.hidden = input.disabled = !data.field; // a disabled input may stay empty
  input.value = data.value || "";
  const body = bodyOf(data);
  if (body === undefined) return;
  pending = { button, method: data.method, path: data.path, body, then: data.then, done: data.done, leased: data.leased, many: data.many !== undefined, last: data.last };
  dialog.querySelector("h2").textContent = button.textContent.trim();
  dialog.querySelector(".question").textContent = data.confirm;
  dialog.querySelector("pre").textContent = curlWith(button, body);
  if (data.field) field.querySelector("span").textContent = data.label;
  const yes = dialog.querySelector(".yes");
  yes.textContent = button.textContent.trim();
  yes.className = `yes ${button.classList.contains("danger") ? "danger" : "main"}`;
  yes.disabled = false;
  dialog.showModal();
  (data.field ? input : yes).focus();
  if (pending.many) countFirst(pending, data.confirm);
}

async function confirmed(event) {
  event.preventDefault();
  const action = pending;
  if (!action) return;
  dialog.close();
  pending = null;
  try {
    if (action.many) return await changeMany(action);
    const answer = await request(action.method, action.path, action.body);
    if (answer && answer.secret) return showSecret(answer);
    let text = action.done || "Done.";
    if (answer && answer.retried !== undefined) text = `${answer.retried} retried, ${answer.left} dead jobs left.`;
    if (answer && answer.deleted !== undefined) text = `${answer.deleted} deleted, ${answer.left} dead jobs left.`;
    if (answer && answer.state === "leased" && action.leased) text = action.leased;
    tell(text, "", answer && answer.state);
    if (action.then) location.assign(action.then);
    else refresh();
  } catch (error) {
    tell(error.message, "bad");
  }
}

async function changeMany(action) {
  const jobs = await eachStep(action, {});
  if (action.last) await request("DELETE", action.last);
  tell(action.done || `Done: ${jobs} ${jobs === 1 ? "job" : "jobs"}.`);
  if (action.then) location.assign(action.then);
  else refresh();
}

function showSecret(answer) {
  const place = document.getElementById("secret");
  place.hidden = false;
  place.querySelector("pre").textContent = answer.secret;
  place.focus();
  refresh();
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    tell("Copied. It reads your key from the variable TOWPATH_API_KEY.");
  } catch {
    window.prompt("Copy this:", text);
  }
}

function copyCurl(button) {
  const action = button.closest(".act").querySelector("[data-method]");
  const body = action.dataset.picked === undefined ? "" : bodyOf(action.dataset);
  if (body !== undefined) copy(body ? curlWith(button, body) : button.dataset.curl);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.classList.contains("curl")) copyCurl(button);
  else if (button.dataset.method) ask(button);
  else if (button.dataset.close !== undefined) dialog.close();
  else if (button.id === "theme") switchTheme();
  else if (button.id === "pick-all") {
    const all = [...document.querySelectorAll("input.pick")];
    const every = all.every((box) => box.checked);
    all.forEach((box) => { box.checked = !every; });
  }
});
if (dialog) {
  dialog.querySelector("form").addEventListener("submit", confirmed);
  dialog.addEventListener("close", () => { pending = null; });
  dialog.addEventListener("input", () => {
    pending.body = bodyOf(pending.button.dataset);
    dialog.querySelector("pre").textContent = curlWith(pending.button, pending.body);
  });
}

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (form.id !== "new-key") return;
  event.preventDefault();
  const data = new FormData(form);
  const body = { name: data.get("name"), scopes: data.getAll("scopes"), queues: data.get("queues").split(/[\s,]+/).filter(Boolean) };
  if (data.get("owner")) body.owner = data.get("owner");
  if (!body.scopes.length) return tell("Select at least one scope.", "warn");
  try {
    showSecret(await request("POST", "/api/v1/keys", JSON.stringify(body)));
    form.reset();
  } catch (error) {
    tell(error.message, "bad");
  }
});

// ── the menu: scroll to the current page on small screens ──────────────────────────────

const shown = document.querySelector(".menu [aria-current]");
if (shown) shown.parentElement.scrollLeft = shown.offsetLeft - shown.parentElement.offsetLeft - 40;

// ── the theme ──────────────────────────────────────────────────────────────────────────

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function nameTheme() {
  const button = document.getElementById("theme");
  if (button) button.setAttribute("aria-label", isDark() ? "Switch to light colours" : "Switch to dark colours");
}

function switchTheme() {
  const next = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  try { localStorage.setItem("towpath-theme", next); } catch { /* without storage, only this page changes */ }
  nameTheme();
  document.dispatchEvent(new Event("towpath:theme"));
}
nameTheme();

// ── live ───────────────────────────────────────────────────────────────────────────────

if (window.Idiomorph) {
  // Keep opened details and inputs as they are when the page is updated.
  Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, node) =>
    !((name === "open" && node.tagName === "DETAILS") || node.tagName === "INPUT");
}

let behind = false;
function refresh() {
  if (!document.getElementById("live")) return;
  if (document.hidden || (dialog && dialog.open)) { behind = true; return; }
  behind = false;
  htmx.trigger(document.body, "towpath:changed");
}
document.addEventListener("visibilitychange", () => { if (!document.hidden && behind) refresh(); });
if (dialog) dialog.addEventListener("close", () => { if (behind) setTimeout(refresh, 50); });

function follow() {
  const sign = document.getElementById("sign");
  const show = (state, text) => { sign.dataset.state = state; sign.textContent = text; };
  let source;
  let open = false;
  const begin = () => {
    source = new EventSource(`/ui/live?queue=${frame.live === "*" ? "" : encodeURIComponent(frame.live)}&mark=${frame.mark}`);
    source.onopen = () => { if (open === false && source.again) refresh(); open = true; show("on", "live"); };
    source.addEventListener("changed", () => { show("on", "live"); refresh(); });
    source.addEventListener("away", () => show("off", "the store does not answer"));
    source.onerror = () => {
      open = false;
      show("off", "reconnecting");
      if (source.readyState === EventSource.CLOSED) setTimeout(() => { begin(); source.again = true; }, 3000);
      else source.again = true;
    };
  };
  begin();
  addEventListener("pagehide", () => source.close());
  addEventListener("pageshow", (event) => { if (event.persisted) begin(); });
}
if (frame.live) {
  follow();
  setInterval(refresh, 60000); // charts move on even if nothing changes
  const again = () => { if (document.querySelector("[data-soon]")) refresh(); };
  setInterval(again, 2000); // parts that the server is still reading, or that change without an event
}

// ── relative times ─────────────────────────────────────────────────────────────────────

// The same as `span` in web/pages.py.
const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
function span(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const at = UNITS.findIndex(([size]) => seconds >= size);
  const [size, unit] = UNITS[at];
  const next = UNITS[at + 1];
  const rest = next ? Math.floor((seconds % size) / next[0]) : 0;
  return `${Math.floor(seconds / size)} ${unit}${rest ? ` ${rest} ${next[1]}` : ""}`;
}

// Times are relative to the server's clock, because this machine's clock may be wrong.
let shownAt = "";
let ahead = 0;
function moveTimes() {
  const live = document.getElementById("live");
  if (!live || document.hidden) return;
  if (live.dataset.now !== shownAt) {
    shownAt = live.dataset.now;
    ahead = Date.parse(shownAt) - Date.now();
  }
  for (const shown of live.querySelectorAll("time[datetime]")) {
    const seconds = (Date.now() + ahead - Date.parse(shown.dateTime)) / 1000;
    shown.textContent = seconds >= 0 ? `${span(seconds)} ago` : `in ${span(-seconds)}`;
  }
}
moveTimes();
setInterval(moveTimes, 1000);

document.body.addEventListener("htmx:responseError", (event) => {
  const status = event.detail.xhr.status;
  if (status === 401) tell("Your session has ended. Reload the page to log in again.", "bad");
  else if (status === 404) tell("What this page shows no longer exists.", "warn");
});
document.body.addEventListener("htmx:sendError", () => tell("The server can't be reached.", "bad"));
