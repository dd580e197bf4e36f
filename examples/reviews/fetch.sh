#!/bin/sh
# Updates all clones below a directory, including pull and merge requests. Run it often, for example by cron:
#   * * * * *  examples/reviews/fetch.sh /srv/clones
cd "${1:-clones}" || exit
find . -type d \( -name .git -o -name '*.git' \) -prune | while IFS= read -r clone; do
  git --git-dir="$clone" fetch --quiet --no-tags --prune origin \
    '+refs/heads/*:refs/remotes/origin/*' \
    '+refs/pull/*/head:refs/remotes/pull/*' \
    '+refs/merge-requests/*/head:refs/remotes/merge-requests/*' </dev/null
done
