#!/usr/bin/env bash
# Install what is missing for `make demo` (bootstrap.sh run) or `make test` (bootstrap.sh test), and nothing else.
#
# Through apt, as root or with a sudo that asks nothing: what python-qpid-proton is compiled with, the Java that Spark runs on,
# iproute2 for the tests' networks, and the browser in which tests look at the dashboard. Into build/services, unpacked and not
# installed, so that no service is started on this machine: what tests start themselves (etcd, haproxy, corosync and Pacemaker)
# or only ask (promtool, crm_simulate). Into .venv through pip: the package with its dependencies (run), or tox (test), which keeps
# environments of its own. When all is there it looks at a few versions and returns; a stamp in .venv says for which pyproject.toml
# and interpreter it was filled. The full output of apt and pip goes to build/setup.log.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly PURPOSE=${1:-run}
readonly LOG=build/setup.log
readonly SERVICES=build/services
readonly JAVA_AT_LEAST=17
PYTHON=

say() { printf 'setup: %s\n' "$*"; }

die() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

# An interpreter that will do: CPython 3.11 or newer. `python3` may be a shim that stands for an older one, hence it is asked.
find_python() {
    local name
    for name in python3 python3.11 python3.12 python3.13 python3.14; do
        PYTHON=$("$name" -c 'import sys
if sys.version_info >= (3, 11) and sys.implementation.name == "cpython":
    print(sys.executable)' 2>/dev/null) && [[ -n $PYTHON ]] && return
    done
    die "no Python 3.11 or newer found on PATH; install one (Debian 12: apt install python3) and run this again"
}

ask_python() { "$PYTHON" -c "$1" 2>/dev/null; }

java_is_there() {
    local major
    major=$("${JAVA_HOME:+$JAVA_HOME/bin/}java" -version 2>&1 | sed -nE '1s/.* version "([0-9]+).*/\1/p') || return 1
    [[ -n $major ]] && ((major >= JAVA_AT_LEAST))
}

# The Debian packages that are missing. Headers must be those of the interpreter: one from elsewhere (pyenv, a container
# image) brings its own, and Debian's would not fit it.
missing_packages() {
    local version
    version=$(ask_python 'import sys; print("python%d.%d" % sys.version_info[:2])')
    ask_python 'import ensurepip, venv' || echo "$version-venv"
    ask_python 'import os, sysconfig; os.stat(os.path.join(sysconfig.get_path("include"), "Python.h"))' || echo "$version-dev"
    command -v gcc >/dev/null || echo gcc
    [[ -e /usr/include/stdio.h ]] || echo libc6-dev
    command -v pkg-config >/dev/null || echo pkg-config
    pkg-config --exists openssl 2>/dev/null || echo libssl-dev
    PATH=$PATH:/usr/sbin:/sbin command -v ip >/dev/null || echo iproute2
    java_is_there || echo openjdk-17-jre-headless
    [[ $PURPOSE != test ]] || browser_is_there || echo chromium chromium-sandbox
    [[ $PURPOSE != test ]] || ((EUID != 0)) || packages_for_faults
}

browser_is_there() {
    local name
    for name in chromium chromium-headless-shell chromium-browser google-chrome chrome; do
        command -v "$name" >/dev/null && return
    done
    return 1
}

# What tests of broken networks and disks take, which only root can make: everybody else is warned by those tests.
packages_for_faults() {
    local PATH=$PATH:/usr/sbin:/sbin
    command -v nft >/dev/null || echo nftables
    compgen -G '/usr/lib/*/faketime/libfaketime.so.1' >/dev/null || echo faketime
    command -v mkfs.ext4 >/dev/null || echo e2fsprogs
    command -v mount >/dev/null || echo mount
}

# Run a command into the log; when it fails, say `$1` and the log's last error in one line.
logged() {
    local complaint=$1
    shift
    "$@" >>"$LOG" 2>&1 || die "$complaint: $(grep -iE '^(E:|error)|error:' "$LOG" | tail -n 1 | cut -c 1-200 | grep . || tail -n 1 "$LOG") (all of it: $LOG)"
}

install_packages() {
    local -a packages root=()
    read -ra packages <<<"$(missing_packages | tr '\n' ' ')"
    ((${#packages[@]})) || return 0
    command -v apt-get >/dev/null ||
        die "these are missing, and there is no apt-get to install them with: ${packages[*]}; install them and run this again"
    if ((EUID != 0)); then
        sudo -n true 2>/dev/null || die "these need root to install; run: sudo apt-get install ${packages[*]}; then this again"
        root=(sudo -n)
    fi
    say "installing through apt: ${packages[*]}"
    root+=(env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=120)
    logged "apt could not read its lists (is there a network?)" "${root[@]}" update
    logged "apt could not install ${packages[*]}" "${root[@]}" install -y --no-install-recommends "${packages[@]}"
    read -ra packages <<<"$(missing_packages | tr '\n' ' ')"
    ((${#packages[@]} == 0)) || die "apt installed what was asked, yet these are missing for $PYTHON: ${packages[*]}; is it Debian's own Python?"
}

# The Debian packages whose programs tests need, and which would start a service if they were installed.
missing_services() {
    local PATH=$PWD/$SERVICES/usr/bin:$PWD/$SERVICES/usr/sbin:$PATH:/usr/sbin
    command -v etcd >/dev/null || echo etcd-server
    command -v promtool >/dev/null || echo prometheus
    command -v haproxy >/dev/null || echo haproxy liblua5.3-0 libopentracing1 libopentracing-c-wrapper0
    command -v crm_simulate >/dev/null || packages_for_scheduler
    ((EUID != 0)) || command -v pacemakerd >/dev/null || packages_for_cluster
}

# corosync and Pacemaker's daemons with their libraries, of which a test run by root makes a cluster in namespaces of its own.
packages_for_cluster() {
    local own='cfg|cmap|corosync|cpg|crmcluster|knet|nozzle|quorum|statgrab|votequorum'
    echo corosync pacemaker libnl-3-200 libnl-route-3-200
    apt-cache depends corosync pacemaker 2>/dev/null | sed -nE "s/^ +Depends: (lib($own).*)/\1/p" | sort -u
}

# Pacemaker's scheduler, which decides on a file, with its libraries and schemas: the daemons are no part of it.
packages_for_scheduler() {
    local own='cib|crm|lrmd|pacemaker|pe-|qb|stonithd'
    echo pacemaker-cli-utils pacemaker-common libdbus-1-3 libltdl7 libpils2 libxslt1.1
    apt-cache depends pacemaker-cli-utils 2>/dev/null | sed -nE "s/^ +Depends: (lib($own).*)/\1/p"
}

unpack_services() {
    local -a packages
    local file
    read -ra packages <<<"$(missing_services | tr '\n' ' ')"
    ((${#packages[@]})) || return 0
    command -v apt-get >/dev/null ||
        die "these are missing, and there is no apt-get to fetch them with: ${packages[*]}; install them and run this again"
    say "unpacking into $SERVICES: ${packages[*]}"
    mkdir -p "$SERVICES"
    if ! (cd "$SERVICES" && apt-get -q download "${packages[@]}") >>"$LOG" 2>&1; then
        local -a root=()
        ((EUID == 0)) || root=(sudo -n)
        logged "apt could not read its lists (is there a network?)" "${root[@]}" apt-get -q -o DPkg::Lock::Timeout=120 update
        read -ra packages <<<"$(missing_services | tr '\n' ' ')"
        (cd "$SERVICES" && apt-get -q download "${packages[@]}") >>"$LOG" 2>&1 || die "apt could not fetch ${packages[*]} (all of it: $LOG)"
    fi
    for file in "$SERVICES"/*.deb; do
        logged "could not unpack $file" dpkg-deb -x "$file" "$SERVICES"
        rm "$file"
    done
    read -ra packages <<<"$(missing_services | tr '\n' ' ')"
    ((${#packages[@]} == 0)) || die "these were unpacked into $SERVICES, and yet their programs are missing: ${packages[*]}"
}

make_venv() {
    .venv/bin/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && return
    say "making .venv with $PYTHON"
    logged "could not make .venv" "$PYTHON" -m venv --clear .venv
}

fill_venv() {
    local stamp=.venv/ready-$PURPOSE filled
    filled=$(cat pyproject.toml deploy/bootstrap.sh <(.venv/bin/python -VV) | sha256sum)
    if [[ -e $stamp && $(<"$stamp") == "$filled" ]] && works; then
        return
    fi
    rm -f "$stamp"
    if [[ $PURPOSE == run ]]; then
        say "installing the package and what it needs into .venv (python-qpid-proton is compiled: a minute or two)"
        logged "pip could not install the package (is there a network?)" .venv/bin/python -m pip install --editable '.[spark]'
    else
        say "installing tox into .venv"
        logged "pip could not install tox (is there a network?)" .venv/bin/python -m pip install 'tox>=4.24'
    fi
    works || die "the packages were installed into .venv and yet do not load; remove .venv and run this again ($LOG)"
    printf '%s\n' "$filled" >"$stamp"
    say "ready"
}

# Whether what .venv was filled with is still there, at the price of starting an interpreter once.
works() {
    case $PURPOSE in
        run) .venv/bin/python -c 'import importlib.util as i, cproton, click, google_crc32c, msgspec, twisted
assert all(map(i.find_spec, ["pandas", "pyarrow", "pyspark"]))' 2>/dev/null ;;
        test) .venv/bin/python -c 'import tox' 2>/dev/null ;;
    esac
}

[[ $PURPOSE == run || $PURPOSE == test ]] || die "say what for: bootstrap.sh run (make demo) or bootstrap.sh test (make test)"
mkdir -p build
: >"$LOG"
find_python
install_packages
[[ $PURPOSE != test ]] || unpack_services
make_venv
fill_venv
