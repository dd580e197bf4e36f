#!/bin/sh
# bring_chromium.sh DIRECTORY: unpack Debian's Chromium, with the libraries that the machine lacks,
# into DIRECTORY. Nothing is installed on the machine, and nothing is left where it does not work.
set -eu
into=$1
command -v apt-get >/dev/null 2>&1 && command -v dpkg-deb >/dev/null 2>&1 || {
  echo "this is no Debian: the dashboard is not tried in a browser" >&2
  exit 1
}
case $into in /*) ;; *) into=$PWD/$into ;; esac

rm -rf "$into.new" && mkdir -p "$into.new/archives/partial" && cd "$into.new"
trap 'cd / && rm -rf "$into.new"' EXIT

bring() {
  apt-get install -qq -y --no-install-recommends --download-only -o Debug::NoLocking=1 \
    -o Dir::Cache::archives="$into.new/archives" chromium fonts-dejavu-core >/dev/null 2>&1
}
bring || { apt-get update -qq >/dev/null 2>&1 && bring; } || {
  echo "Chromium could not be brought: the dashboard is not tried in a browser" >&2
  exit 1
}
for package in archives/*.deb; do dpkg-deb -x "$package" tree; done
rm -rf archives
# A file of fonts of its own: what the machine has is not looked at.
cat > fonts.conf <<FONTS
<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><alias><family>system-ui</family><prefer><family>DejaVu Sans</family></prefer></alias>
<dir>$into/tree/usr/share/fonts</dir><dir>/usr/share/fonts</dir><cachedir>$into/fonts</cachedir></fontconfig>
FONTS
cat > chromium <<'RUN'
#!/bin/sh
here=$(dirname "$0")
libraries=$(find "$here/tree" -name '*.so*' -printf '%h\n' | sort -u | tr '\n' ':')
FONTCONFIG_FILE=$here/fonts.conf LD_LIBRARY_PATH=$libraries exec "$here/tree/usr/lib/chromium/chromium" "$@"
RUN
chmod +x chromium
./chromium --version >/dev/null
# What looks for faults that keep people from using a page: one file of the npm package.
if command -v npm >/dev/null; then
  (npm pack --silent --ignore-scripts axe-core@4.14.0 >archive && tar -xzmf "$(tail -n 1 archive)" package/axe.min.js &&
    mv package/axe.min.js axe.min.js && rm -rf package archive ./*.tgz) || echo 'npm could not bring axe-core' >&2
fi
cd / && rm -rf "$into" && mv "$into.new" "$into"
trap - EXIT
