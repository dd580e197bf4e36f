#!/bin/sh
# bring_chromium.sh DIRECTORY: unpack Debian's Chromium into DIRECTORY, with axe-core beside it.
set -eu
. "$(dirname "$0")/debian.sh"
unpack "$1" 'the dashboard is not tried in a browser' chromium fonts-dejavu-core
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
keep
