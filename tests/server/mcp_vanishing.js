// Calls a tool with the official TypeScript client and may cancel the call; told by JSON in its
// argument, as mcp_vanishing.py. A line on its input cancels the call; it ends with its input.
const { Client, StreamableHTTPClientTransport } = require("@modelcontextprotocol/client");

const told = JSON.parse(process.argv[2]);
const say = (what) => process.stdout.write(JSON.stringify(what) + "\n");

async function main() {
  const client = new Client(
    { name: "test", version: "1" },
    { versionNegotiation: { mode: told.mode } },
  );
  const headers = { Authorization: `Bearer ${told.key}` };
  await client.connect(
    new StreamableHTTPClientTransport(new URL(`${told.address}/mcp`), { requestInit: { headers } }),
  );
  const cancelled = new AbortController();
  process.stdin.on("data", () => cancelled.abort());
  process.stdin.on("end", () => process.exit(0));
  try {
    const options = { signal: cancelled.signal };
    if (told.timeout) options.timeout = told.timeout * 1000;
    const answer = await client.callTool({ name: told.tool, arguments: told.arguments }, options);
    say({ answer: answer.structuredContent ?? null });
  } catch (error) {
    say({ ended: error.code ?? String(error) });
  }
  await client.listTools();
  say({ over: true });
}

main().catch((error) => {
  say({ failed: String(error.stack ?? error) });
  process.exit(1);
});
