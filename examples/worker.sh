#!/bin/sh
# A worker in shell that uses only curl and python3. Run it with: examples/worker.sh mails
# Set TOWPATH_API_KEY, and ADDRESS if the server is not at http://127.0.0.1:8080.
# `handle` gets the payload as JSON on standard input and prints the result.
api=${ADDRESS:-http://127.0.0.1:8080}/api/v1/queues/${1:-mails}

post() { # path body
  curl -sS --fail-with-body --max-time 40 "$api/$1" -H "Authorization: Bearer $TOWPATH_API_KEY" \
    -H 'Content-Type: application/json' -d "$2"
}
field() { # one field of the job, as JSON; the id percent-encoded
  python3 -c 'import json, sys, urllib.parse as url
value = json.load(sys.stdin)["jobs"][0][sys.argv[1]]
print(url.quote(value, safe="") if sys.argv[1] == "id" else json.dumps(value))' "$1"
}

handle() { wc -c; } # do your work here

trap 'stop=1' TERM INT # takes effect between two jobs
while [ -z "$stop" ]; do
  claimed=$(post claim "{\"worker\": \"sh-$$\", \"wait\": 5, \"lease\": 60}") || { sleep 1; continue; }
  [ -n "$claimed" ] || continue # 204: no job
  id=$(echo "$claimed" | field id)
  token=$(echo "$claimed" | field token)
  if result=$(echo "$claimed" | field payload | handle); then
    post "jobs/$id/complete" "{\"token\": $token, \"result\": $result}"
  else
    post "jobs/$id/fail" "{\"token\": $token, \"reason\": \"handle failed\"}"
  fi
  echo
done
