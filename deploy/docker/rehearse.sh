#!/usr/bin/env bash
# The image without an engine, for Linux and root:
#
#   deploy/docker/rehearse.sh DIRECTORY build          the stage `build` of the Dockerfile, with /opt in DIRECTORY
#   deploy/docker/rehearse.sh DIRECTORY run ARGUMENT…  `ackstream ARGUMENT…` as in a pod: the user 10001 with no home and no
#                                                      capabilities, all read-only but /tmp, /mnt/lake, /var/lib/ackstream
#
# Both have a mount namespace of their own. PYTHON names an interpreter that all users can read.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
if [[ ${REHEARSAL:-} != inside ]]; then
    mkdir -p "$1"/{opt,src,data,lake,tmp}
    exec env REHEARSAL=inside unshare --mount --propagation private "${BASH_SOURCE[0]}" "$(cd "$1" && pwd)" "${@:2}"
fi
directory=$1 step=$2
shift 2
python=$(command -v "${PYTHON:-python3}")

# variables and commands of the Dockerfile: one a line, NAME=VALUE or a command
instructions() {
    "$python" - "$1" "$root/deploy/docker/Dockerfile" <<'PYTHON'
import re, sys
kind, path = sys.argv[1:]
lines = re.sub(r"(?m)^#.*\n", "", open(path).read()).replace("\\\n", " ").splitlines()
stages = re.split(r"(?m)^(?=FROM )", "\n".join(lines))
stage = next(one for one in stages if (" AS build" in one.partition("\n")[0]) == (kind == "RUN") and kind in one)
for text in re.findall(rf"(?m)^{kind} (.+)", stages[-1] if kind == "ENV" else stage):
    print("\n".join(text.split()) if kind == "ENV" else " ".join(text.split()))
PYTHON
}

if [[ $step == build ]]; then
    mount --bind "$directory/opt" /opt
    # the context is what Dockerfile.dockerignore lets in
    rm -rf "$directory/src"
    while read -r name; do
        mkdir -p "$directory/src/$(dirname "$name")"
        cp -r "$root/$name" "$directory/src/$name"
    done < <(sed -n 's/^!//p' "$root/deploy/docker/Dockerfile.dockerignore")
    cd "$directory/src"
    export XDG_CACHE_HOME=/opt/ackstream/cache
    while read -r command; do
        echo "RUN $command"
        # the image has its own python
        bash -euc "${command/#python /$python }" < /dev/null
    done < <(instructions RUN)
    exit
fi

chown -R 10001:10001 "$directory"/{data,lake,tmp}
{ cat /etc/passwd; echo "ackstream:x:10001:10001::/nonexistent:/usr/sbin/nologin"; } > "$directory/passwd"
mapfile -t variables < <(instructions ENV | sed 's|\$PATH|/usr/local/bin:/usr/bin:/bin|')
mount --bind "$directory/passwd" /etc/passwd
mount --bind "$directory/opt" /opt
mount --bind -o ro "$directory/opt" /opt && mount -o remount,bind,ro /opt
# places for mounts that the machine lacks
mount -t tmpfs tmpfs /mnt && mkdir /mnt/{lake,data,tmp}
mount --bind "$directory/lake" /mnt/lake
mount --bind "$directory/data" /mnt/data
mount --bind "$directory/tmp" /mnt/tmp
mount -t tmpfs tmpfs /var/lib && mkdir /var/lib/ackstream
mount --move /mnt/data /var/lib/ackstream
mount -o remount,ro /var/lib
mount --move /mnt/tmp /tmp
mount -o remount,ro /mnt
mount -o remount,bind,ro /
cd /var/lib/ackstream
exec setpriv --reuid 10001 --regid 10001 --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all \
    env --ignore-environment "${variables[@]}" HOME=/nonexistent LANG=C.UTF-8 ${POD:-} ackstream "$@"
