# Read by the bring_*.sh scripts: takes programs out of Debian's packages. Nothing is installed on
# the machine, and nothing is left where they do not work.

# unpack DIRECTORY WITHOUT PACKAGE…: unpack the packages, with the libraries that the machine lacks,
# into the folder `tree` of DIRECTORY.new, and go there. WITHOUT says what is not tried where this
# can't be done.
unpack() {
  into=$1 without=$2
  shift 2
  case $into in /*) ;; *) into=$PWD/$into ;; esac
  command -v apt-get >/dev/null 2>&1 && command -v dpkg-deb >/dev/null 2>&1 || {
    echo "this is no Debian: $without" >&2
    exit 1
  }
  rm -rf "$into.new" && mkdir -p "$into.new/archives/partial" && cd "$into.new"
  trap 'cd / && rm -rf "$into.new"' EXIT
  _download "$@" || { apt-get update -qq >/dev/null 2>&1 && _download "$@"; } || {
    echo "$1 could not be brought: $without" >&2
    exit 1
  }
  for package in archives/*.deb; do dpkg-deb -x "$package" tree; done
  rm -rf archives
}

_download() {
  apt-get install -qq -y --no-install-recommends --download-only -o Debug::NoLocking=1 \
    -o Dir::Cache::archives="$into.new/archives" "$@" >/dev/null 2>&1
}

# They work: from now on they are in DIRECTORY.
keep() {
  cd / && rm -rf "$into" && mv "$into.new" "$into"
  trap - EXIT
}
