// Uploads a file with tus-js-client, told by JSON in its argument; says in JSON how it ended.
// url: the upload to go on with; parallel: pieces at once. When its input ends it is interrupted.
const fs = require("fs");
const tus = require("tus-js-client");

const told = JSON.parse(process.argv[2]);
const say = (what) => process.stdout.write(JSON.stringify(what) + "\n");
const upload = new tus.Upload(fs.createReadStream(told.file), {
  endpoint: told.endpoint,
  uploadUrl: told.url,
  chunkSize: told.chunk || Infinity,
  parallelUploads: told.parallel || 1,
  retryDelays: [0, 200, 500, 1000],
  headers: { Authorization: `Bearer ${told.key}` },
  metadata: { filename: "from-js.bin", filetype: "application/x-test" },
  onError: (error) => {
    const answer = error.originalResponse;
    say({ refused: answer ? answer.getStatus() : 0, error: String(error).slice(0, 300) });
    process.stdin.destroy();
  },
  onSuccess: () => {
    say({ url: upload.url });
    process.stdin.destroy();
  },
});
process.stdin.resume().once("end", () => upload.abort().then(() => say({ url: upload.url })));
upload.start();
