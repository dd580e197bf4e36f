#!/bin/sh
# bring_shells.sh DIRECTORY: unpack Debian's zsh and fish, with the libraries that the machine lacks,
# into DIRECTORY. Nothing is installed on the machine, and nothing is left where it does not work.
set -eu
into=$1
if command -v zsh >/dev/null 2>&1 && command -v fish >/dev/null 2>&1; then
  mkdir -p "$into"
  exit 0
fi
command -v apt-get >/dev/null 2>&1 && command -v dpkg-deb >/dev/null 2>&1 || {
  echo "this is no Debian: completion is tried in those shells that are here" >&2
  exit 1
}
case $into in /*) ;; *) into=$PWD/$into ;; esac

rm -rf "$into.new" && mkdir -p "$into.new/archives/partial" && cd "$into.new"
trap 'cd / && rm -rf "$into.new"' EXIT

bring() {
  apt-get install -qq -y --no-install-recommends --download-only -o Debug::NoLocking=1 \
    -o Dir::Cache::archives="$into.new/archives" zsh fish >/dev/null 2>&1
}
bring || { apt-get update -qq >/dev/null 2>&1 && bring; } || {
  echo "zsh and fish could not be brought: completion is tried in those shells that are here" >&2
  exit 1
}
for package in archives/*.deb; do dpkg-deb -x "$package" tree; done
rm -rf archives tree/usr/share/doc tree/usr/share/man
# fish finds its functions beside itself, if its configuration is there, too.
ln -s ../etc tree/usr/etc
for shell in zsh fish; do
  cat > "$shell" <<RUN
#!/bin/sh
here=\$(cd "\$(dirname "\$0")" && pwd)
libraries=\$(find "\$here/tree" -name '*.so.*' -printf '%h\n' | sort -u | tr '\n' ':')
LD_LIBRARY_PATH=\$libraries exec "\$(find "\$here/tree" -path "*bin/$shell" | head -n 1)" "\$@"
RUN
  chmod +x "$shell"
done
# zsh takes these two from its first file alone, and not from the environment.
cat > zshenv <<ZSHENV
module_path=($(find "$into.new/tree/usr/lib" -path '*/zsh/zle.so' -printf '%h' | sed "s|/zsh$||; s|$into.new|$into|"))
fpath=($(find "$into.new/tree/usr/share/zsh/functions" -type d | sed "s|$into.new|$into|"))
ZSHENV
./zsh -fc true && ./fish --no-config -c true
cd / && rm -rf "$into" && mv "$into.new" "$into"
trap - EXIT
