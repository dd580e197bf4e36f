// Sends files in chunks, with the session. The same file chosen again, after a reload too, goes on
// where it was: its name, size and date name the upload, and the server knows which chunks it has.
"use strict";

(() => {
  const API = "/api/v1/uploads";
  const AT_ONCE = 3;
  const KEPT = "towpath-uploads";
  const csrf = document.body.dataset.csrf;
  const input = document.getElementById("files");
  const drop = document.getElementById("drop");
  const list = document.getElementById("sending");
  if (!input) return;

  const nameOf = (file) => `${file.size}.${file.lastModified}.${encodeURIComponent(file.name)}`.slice(0, 250);
  const pause = (ms) => new Promise((done) => setTimeout(done, ms));

  function unfinished() {
    try { return JSON.parse(localStorage.getItem(KEPT)) || {}; } catch { return {}; }
  }
  function keep(name, text) {
    const all = unfinished();
    if (text) all[name] = text; else delete all[name];
    try { localStorage.setItem(KEPT, JSON.stringify(all)); } catch { /* not kept */ }
    showUnfinished();
  }
  function showUnfinished() {
    const names = Object.values(unfinished());
    document.getElementById("unfinished").textContent = names.length
      ? `Not finished: ${names.join(", ")}. Choose the file again to continue.` : "";
  }

  // A refusal that says "later" is obeyed; a connection that breaks is tried again.
  async function ask(path, options) {
    for (let attempt = 0; ; attempt += 1) {
      let answer;
      try {
        answer = await fetch(path, { ...options, headers: { "X-Towpath-CSRF": csrf, ...(options.headers || {}) } });
      } catch (error) {
        if (attempt >= 20) throw error;
        await pause(Math.min(500 * 2 ** attempt, 10000));
        continue;
      }
      if (answer.ok) return answer.json();
      const problem = await answer.json().catch(() => ({}));
      const later = answer.status === 503 || answer.status === 429 || answer.status === 408;
      if (!later || attempt >= 20) throw new Error(problem.detail || `The server answered ${answer.status}.`);
      await pause(1000 * Number(answer.headers.get("Retry-After") || 1));
    }
  }

  function row(file) {
    const box = document.createElement("div");
    const label = document.createElement("p");
    const bar = document.createElement("progress");
    const text = document.createElement("bdi");
    const state = document.createElement("span");
    state.className = "soft";
    text.textContent = file.name;
    label.append(text, " ", state);
    bar.max = Math.max(file.size, 1);
    bar.value = 0;
    bar.setAttribute("aria-label", `Progress of ${file.name}`);
    box.append(label, bar);
    list.prepend(box);
    return { bar, say: (words) => { state.textContent = words; } };
  }

  async function missingOf(upload) {
    const { missing } = await ask(`${API}/${upload.upload_id}/missing`, {});
    return missing.flatMap(([first, last]) => Array.from({ length: last - first + 1 }, (_, at) => first + at));
  }

  async function sendChunks(file, upload, shown) {
    const todo = await missingOf(upload);
    const size = upload.chunk_size;
    const lengthOf = (number) => Math.min(size, file.size - number * size);
    shown.bar.value = file.size - todo.reduce((sum, number) => sum + lengthOf(number), 0);
    if (todo.length * size < file.size) shown.say("continuing");
    const worker = async () => {
      while (todo.length) {
        const number = todo.shift();
        const body = file.slice(number * size, number * size + lengthOf(number));
        await ask(`${API}/${upload.upload_id}/chunks/${number}`, {
          method: "PUT", body, headers: { "Content-Type": "application/octet-stream" },
        });
        shown.bar.value += lengthOf(number);
        shown.say(`${Math.floor((100 * shown.bar.value) / shown.bar.max)} %`);
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, worker));
  }

  function ended(upload, shown) {
    return new Promise((done) => {
      const source = new EventSource(`${API}/${upload.upload_id}/events`);
      for (const name of ["completed", "failed", "aborted", "expired"]) {
        source.addEventListener(name, () => { source.close(); shown.say(name); done(name); });
      }
    });
  }

  async function send(file) {
    const shown = row(file);
    const name = nameOf(file);
    try {
      const body = JSON.stringify({ name: file.name, size: file.size, mime_type: file.type || "application/octet-stream" });
      const upload = await ask(API, {
        method: "POST", body, headers: { "Content-Type": "application/json", "Idempotency-Key": name },
      });
      keep(name, file.name);
      if (upload.status === "FAILED") await ask(`${API}/${upload.upload_id}/resume`, { method: "POST" });
      if (["PENDING", "UPLOADING", "FAILED"].includes(upload.status)) await sendChunks(file, upload, shown);
      shown.bar.value = shown.bar.max;
      shown.say("all sent, being stored");
      await ended(upload, shown);
      keep(name, "");
    } catch (error) {
      shown.say(error.message);
    }
    htmx.trigger(document.body, "towpath:changed");
  }

  input.addEventListener("change", () => { [...input.files].forEach(send); input.value = ""; });
  for (const name of ["dragover", "dragenter"]) {
    drop.addEventListener(name, (event) => { event.preventDefault(); drop.classList.add("over"); });
  }
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    [...event.dataTransfer.files].forEach(send);
  });
  showUnfinished();
})();
