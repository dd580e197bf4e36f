#!/bin/sh
# bring_shells.sh DIRECTORY: unpack Debian's zsh and fish into DIRECTORY, unless the machine has them.
set -eu
if command -v zsh >/dev/null 2>&1 && command -v fish >/dev/null 2>&1; then
  mkdir -p "$1"
  exit 0
fi
. "$(dirname "$0")/debian.sh"
unpack "$1" 'completion is tried in those shells that are here' zsh fish
rm -rf tree/usr/share/doc tree/usr/share/man
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
keep
