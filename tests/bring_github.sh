#!/bin/sh
# Brings GitHub's description of its API into the file $1: what the GitHub double holds requests to.
# It is one file of the npm package @octokit/openapi; nothing of the package is run.
set -eu

file=$1
package=@octokit/openapi@23.0.2

say() {
  echo "$1: requests to GitHub are not compared with its description" >&2
}

command -v npm >/dev/null || {
  say 'npm is not installed (Debian: apt-get install npm)'
  exit 1
}

unpacked=$(mktemp -d)
trap 'rm -rf "$unpacked"' EXIT
(cd "$unpacked" && npm pack --silent --ignore-scripts "$package" >archive) || {
  say "npm could not bring $package"
  exit 1
}
tar -xzmf "$unpacked/$(tail -n 1 "$unpacked/archive")" -C "$unpacked" \
  package/generated/api.github.com.json
mv "$unpacked/package/generated/api.github.com.json" "$file"
