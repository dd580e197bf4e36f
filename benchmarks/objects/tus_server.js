// @tus/server with its S3 store: {endpoint, access_key, secret_key, bucket}. Says its port.
const path = require("path");
const told = JSON.parse(process.argv[2]);

(async () => {
  const modules = process.env.NODE_PATH;
  const { Server } = await import(path.join(modules, "@tus/server/dist/index.js"));
  const { S3Store } = await import(path.join(modules, "@tus/s3-store/dist/index.js"));
  const server = new Server({
    path: "/files",
    datastore: new S3Store({
      partSize: 8 * 1024 * 1024,
      s3ClientConfig: {
        bucket: told.bucket,
        endpoint: told.endpoint,
        region: "us-east-1",
        forcePathStyle: true,
        credentials: { accessKeyId: told.access_key, secretAccessKey: told.secret_key },
      },
    }),
  });
  const listening = server.listen({ host: "127.0.0.1", port: 0 }, () => {
    process.stdout.write(JSON.stringify({ port: listening.address().port }) + "\n");
  });
})();
