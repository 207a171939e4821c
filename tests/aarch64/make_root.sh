#!/bin/bash
# Makes what runs an artifact on 64-bit Arm, under qemu-user: Debian's Python for arm64 with its headers, the packages
# that `sscc run` needs, and sscc with its native module built by a cross compiler.
#
#     tests/aarch64/make_root.sh FOLDER
#
# FOLDER is made, or completed. Needs Debian with apt, cmake, qemu-user and g++-aarch64-linux-gnu, and the clone's .venv.
set -euo pipefail

suite=trixie python=3.13
repo=$(cd "$(dirname "$0")/../.." && pwd)
venv=$repo/.venv/bin/python
for program in apt-get dpkg-deb cmake qemu-aarch64 aarch64-linux-gnu-g++; do
  command -v "$program" >/dev/null || { echo "$0: there is no $program" >&2; exit 1; }
done
mkdir -p "${1:?usage: $0 FOLDER}"
cd "$1"
folder=$PWD root=$PWD/root site=$PWD/site

if [ ! -e "$root/usr/bin/python$python" ]; then
  # A package list of its own: nothing of this machine's is read or changed.
  mkdir -p apt/lists/partial apt/archives/partial apt/etc/preferences.d apt/etc/apt.conf.d
  touch apt/status
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $suite main" \
    >apt/etc/sources.list
  cat >apt/apt.conf <<END
Dir::State "$folder/apt"; Dir::State::status "$folder/apt/status"; Dir::Cache "$folder/apt"; Dir::Etc "$folder/apt/etc";
APT::Architecture "arm64"; APT::Architectures {"arm64";}; APT::Sandbox::User ""; Acquire::Languages "none";
APT::Install-Recommends "false";
END
  export APT_CONFIG=$folder/apt/apt.conf
  apt-get -qq update
  apt-get -qq install -y --download-only "python$python" "libpython$python-dev" libstdc++6
  # Debian's bin, lib and sbin are links, which packages take for granted.
  mkdir -p root/usr/bin root/usr/lib root/usr/sbin
  for name in bin lib sbin; do ln -sfn "usr/$name" "root/$name"; done
  for package in apt/archives/*.deb; do dpkg-deb --fsys-tarfile "$package" | tar -x -C root; done
fi

cat >arm-python <<END
#!/bin/sh
exec qemu-aarch64 -cpu "\${QEMU_MODEL:-max}" -L "$root" "$root/usr/bin/python$python" "\$@"
END
chmod +x arm-python

# The versions that the clone's environment has.
versions=$("$venv" - <<END
from importlib.metadata import version
print(*(f"{n}=={version(n)}" for n in ("torch-mlir", "numpy", "ml_dtypes", "safetensors", "tokenizers", "jinja2")))
END
)
if [ "$(cat site/versions 2>/dev/null)" != "$versions" ]; then
  rm -rf site wheels
  platforms=()
  for glibc in 17 24 27 28 34 35; do platforms+=(--platform "manylinux_2_${glibc}_aarch64"); done
  # shellcheck disable=SC2086
  "$venv" -m pip download -q --disable-pip-version-check --only-binary=:all: --no-deps --dest wheels \
    --python-version "$python" --implementation cp --abi "cp${python/./}" --abi abi3 --abi none \
    --platform manylinux2014_aarch64 "${platforms[@]}" $versions markupsafe pytest pluggy iniconfig packaging pygments
  for wheel in wheels/*.whl; do "$venv" -m zipfile -e "$wheel" site; done
  echo "$versions" >site/versions
fi

# The package as an installation lays it out, of the clone's own files as they are now.
rm -rf site/sscc
mkdir -p site/sscc
for part in compiler ir passes; do ln -sfn "$repo/$part" "site/sscc/$part"; done
for file in __init__.py py.typed; do ln -sfn "$repo/compiler/package/$file" "site/sscc/$file"; done
mkdir -p site/sscc/runtime
for path in "$repo"/runtime/*; do
  case $path in *_native*.so) ;; *) ln -sfn "$path" "site/sscc/runtime/${path##*/}" ;; esac
done

cmake -S "$repo" -B build -DCMAKE_BUILD_TYPE=Release -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
  -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DPython_EXECUTABLE="$folder/arm-python" \
  -DPython_INCLUDE_DIR="$root/usr/include/python$python" \
  -DCMAKE_CXX_FLAGS="-idirafter $root/usr/include" \
  -Dnanobind_DIR="$("$venv" -m nanobind --cmake_dir)" --log-level=WARNING
cmake --build build -j2 >build/log 2>&1 || { cat build/log >&2; exit 1; }
cp build/_native*.so site/sscc/runtime/
