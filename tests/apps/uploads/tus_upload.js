// Uploads a file with tus-js-client, told by JSON in its argument; says in JSON how it ended.
// stop: bytes after which it is interrupted; url: the upload to go on with; parallel: pieces at once.
const fs = require("fs");
const tus = require("tus-js-client");

const told = JSON.parse(process.argv[2]);
const say = (what) => process.stdout.write(JSON.stringify(what) + "\n");
let stopped = false; // progress is told a few times more while it is being interrupted
const upload = new tus.Upload(fs.createReadStream(told.file), {
  endpoint: told.endpoint,
  uploadUrl: told.url,
  chunkSize: told.chunk || Infinity,
  parallelUploads: told.parallel || 1,
  retryDelays: [0, 200, 500, 1000],
  headers: { Authorization: `Bearer ${told.key}` },
  metadata: { filename: "from-js.bin", filetype: "application/x-test" },
  onProgress: (sent) => {
    if (told.stop && sent >= told.stop && !stopped) {
      stopped = true;
      upload.abort().then(() => say({ interrupted: sent, url: upload.url }));
    }
  },
  onError: (error) => {
    const answer = error.originalResponse;
    say({ refused: answer ? answer.getStatus() : 0, error: String(error).slice(0, 300) });
  },
  onSuccess: () => say({ url: upload.url }),
});
upload.start();
