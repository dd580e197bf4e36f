// An application that gets a call when a timer is due, in JavaScript, using only HTTP. Run it with:
// PORT=8000 SERVER=http://127.0.0.1:8080 TOWPATH_API_KEY=tp_… node shop.mjs
import { createHmac, timingSafeEqual } from "node:crypto";
import { createServer } from "node:http";

const port = Number(process.env.PORT ?? 8000);
const server = process.env.SERVER ?? "http://127.0.0.1:8080";
const handlers = {
  "order.timeout": async (order) => console.log(`cancelled ${order.order}`), // do your work here
};
const tokens = new Map(); // by type and id: the token of the newest attempt seen here
let instance = null; // the server's answer: instance_id, secret, heartbeat_s

// ── answer calls ────────────────────────────────────────────────────────────────────────

function isSigned(headers, body) {
  const id = headers["webhook-id"] ?? "", time = headers["webhook-timestamp"] ?? "";
  if (!instance || Math.abs(Date.now() / 1000 - Number(time)) > 300) return false;
  const key = Buffer.from(instance.secret.replace(/^whsec_/, ""), "base64");
  const expected = createHmac("sha256", key).update(`${id}.${time}.`).update(body).digest();
  return (headers["webhook-signature"] ?? "").split(" ").some((word) => {
    const [version, signature] = word.split(",");
    const given = Buffer.from(signature ?? "", "base64");
    return version === "v1" && given.length === expected.length && timingSafeEqual(given, expected);
  });
}

async function answer(headers, body) {
  if (!isSigned(headers, body)) return 401;
  const call = JSON.parse(body), timer = JSON.stringify([call.app, call.task_type, call.task_id]);
  if (!handlers[call.task_type]) return 404; // the server calls another instance
  if (call.token <= (tokens.get(timer) ?? 0)) return 409; // a replay, or a newer attempt has begun
  tokens.delete(timer);
  tokens.set(timer, call.token);
  if (tokens.size > 10_000) tokens.delete(tokens.keys().next().value);
  return handlers[call.task_type](call.params).then(() => 204, (error) => {
    console.error(error);
    return 500; // the server tries again later; 422 would end the timer
  });
}

const calls = createServer(async (request, response) => {
  const parts = [];
  for await (const part of request) parts.push(part);
  response.writeHead(await answer(request.headers, Buffer.concat(parts))).end();
});

// ── register ────────────────────────────────────────────────────────────────────────────

function ask(method, path, body) {
  return fetch(`${server}/api/v1/apps/shop/instances${path}`, {
    method,
    headers: { Authorization: `Bearer ${process.env.TOWPATH_API_KEY}`, "Content-Type": "application/json" },
    body: body && JSON.stringify(body),
  }).catch(() => null); // the server restarts: the next heartbeat tries again
}

async function beat() {
  const alive = instance && (await ask("POST", `/${instance.instance_id}/heartbeat`));
  if (!alive || alive.status === 404) {
    const answer = await ask("POST", "", {
      address: `http://127.0.0.1:${port}/timers`,
      task_types: Object.keys(handlers),
    });
    if (answer?.ok) instance = await answer.json();
    else if (answer) console.error(await answer.text());
  }
  beating = setTimeout(beat, (instance?.heartbeat_s ?? 1) * 1000);
}

let beating = null;
calls.listen(port, "127.0.0.1", beat);
process.on("SIGTERM", async () => {
  clearTimeout(beating);
  if (instance) await ask("DELETE", `/${instance.instance_id}`);
  calls.close();
  calls.closeAllConnections();
});
