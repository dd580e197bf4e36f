#!/bin/sh
# bring_redis.sh DIRECTORY: unpack Debian's redis-server, which speaks TLS, into DIRECTORY.
# Nothing is installed on the machine, and nothing is left behind where it does not work.
set -eu
into=$1
packages="redis-tools liblzf1 libjemalloc2 libatomic1"
command -v apt-get >/dev/null 2>&1 && command -v dpkg-deb >/dev/null 2>&1 || exit 1

rm -rf "$into.new" && mkdir -p "$into.new" && cd "$into.new"
trap 'cd / && rm -rf "$into.new"' EXIT
case $into in /*) ;; *) into=$OLDPWD/$into ;; esac

apt-get download -qq $packages >/dev/null 2>&1 ||
  { apt-get update -qq >/dev/null 2>&1 && apt-get download -qq $packages >/dev/null 2>&1; } || exit 1
for package in ./*.deb; do dpkg-deb -x "$package" tree; done
mkdir lib && find tree -name '*.so*' -exec cp -P {} lib/ \;
# The program looks at the name it was started by; the package has it under another one.
mkdir bin && cp tree/usr/bin/redis-check-rdb bin/redis-server
cat > redis-server <<'RUN'
#!/bin/sh
here=$(dirname "$0")
LD_LIBRARY_PATH=$here/lib exec "$here/bin/redis-server" "$@"
RUN
chmod +x redis-server
./redis-server --version >/dev/null
rm -rf tree ./*.deb
cd / && rm -rf "$into" && mv "$into.new" "$into"
trap - EXIT
