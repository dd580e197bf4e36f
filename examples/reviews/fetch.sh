#!/bin/sh
# Brings the clones below a directory up to date, pull and merge requests included. Run it often:
#   * * * * *  examples/reviews/fetch.sh /srv/clones
cd "${1:-clones}" || exit
find . -type d \( -name .git -o -name '*.git' \) -prune | while IFS= read -r clone; do
  git --git-dir="$clone" fetch --quiet --no-tags --prune origin \
    '+refs/heads/*:refs/remotes/origin/*' \
    '+refs/pull/*/head:refs/remotes/pull/*' \
    '+refs/merge-requests/*/head:refs/remotes/merge-requests/*' </dev/null
done
