#!/bin/sh
# bring_chromium.sh DIRECTORY: unpack Debian's Chromium into DIRECTORY.
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
keep
