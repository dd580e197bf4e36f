// tus-js-client sends a file again and again, each time it is told to on a line of its argument:
// {file, endpoint, key, chunk}. Says how many seconds it took, and the URL.
const fs = require("fs");
const path = require("path");
const tus = require(path.join(process.env.NODE_PATH, "tus-js-client"));

const told = JSON.parse(process.argv[2]);
const began = process.hrtime.bigint();
const upload = new tus.Upload(fs.createReadStream(told.file), {
  endpoint: told.endpoint,
  chunkSize: told.chunk,
  retryDelays: [0, 500, 1000],
  headers: told.key ? { Authorization: `Bearer ${told.key}` } : {},
  onError: (error) => {
    process.stdout.write(JSON.stringify({ error: String(error).slice(0, 300) }) + "\n");
  },
  onSuccess: () => {
    const seconds = Number(process.hrtime.bigint() - began) / 1e9;
    process.stdout.write(JSON.stringify({ seconds, url: upload.url }) + "\n");
  },
});
upload.start();
