// A worker in JavaScript that uses only HTTP. Run it with: node examples/worker.mjs mails
// Set TOWPATH_API_KEY, and ADDRESS if the server is not at http://127.0.0.1:8080.
const address = process.env.ADDRESS ?? "http://127.0.0.1:8080";
const queue = process.argv[2] ?? "mails";
let running = true;
process.on("SIGTERM", () => (running = false));

async function post(path, body) {
  const answer = await fetch(`${address}/api/v1/queues/${queue}/${path}`, {
    method: "POST",
    headers: { Authorization: `Bearer ${process.env.TOWPATH_API_KEY}`, "Content-Type": "application/json" },
    body: JSON.stringify(body),
  }).catch(() => null);
  if (!answer || answer.status === 503) // the server restarts, or its store is unreachable: try again
    return new Promise((after) => setTimeout(after, 1000)).then(() => (running ? post(path, body) : null));
  if (answer.status === 204) return null;
  if (!answer.ok) throw new Error(`${path}: ${(await answer.json()).detail}`);
  return answer.json();
}

const handle = async (payload) => `hello ${payload.to}`; // do your work here

while (running) {
  const claimed = await post("claim", { worker: `node-${process.pid}`, wait: 5, lease: 30 });
  for (const job of claimed?.jobs ?? []) {
    const about = `jobs/${encodeURIComponent(job.id)}`;
    const beat = setInterval(() => post(`${about}/renew`, { token: job.token, lease: 30 }).catch(() => {}), 10_000);
    const outcome = await handle(job.payload).then(
      (result) => post(`${about}/complete`, { token: job.token, result }),
      (error) => post(`${about}/fail`, { token: job.token, reason: String(error) }),
    ).catch((error) => console.error(String(error))); // a stale token: another worker has the job
    clearInterval(beat);
    console.log(job.id, outcome?.state ?? "refused");
  }
}
