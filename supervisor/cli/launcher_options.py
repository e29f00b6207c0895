"""The options that programs take before the program that they start, as far as they are known. Pure.

An option that is not known ends the reading: nobody can say whether the word after it is its value, which may be a
secret.
"""

from collections.abc import Mapping, Sequence

from attrs import field, frozen


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


@frozen
class LauncherOptions:
    """What one launcher takes."""

    alone: frozenset[str] = field(converter=words)
    """Options without a value."""
    valued: frozenset[str] = field(converter=words)
    """Those whose value follows, or is joined to them."""
    last: frozenset[str] = field(converter=words)
    """Those that say themselves what is started: after their value its arguments begin."""

    def read(self, arguments: Sequence[str]) -> tuple[Mapping[str, str], Sequence[str]] | None:
        """The options that have a value, and what follows all options; None if there is one that is not known."""
        given: dict[str, str] = {}
        rest = list(arguments)
        while rest and rest[0].startswith("-") and rest[0] != "-":
            word = rest.pop(0)
            if word == "--":
                break
            option, value = self._option(word)
            if option is None:
                return None
            if option in self.alone:
                continue
            if value is None:
                if not rest:
                    return None
                value = rest.pop(0)
            given[option] = value
            if option in self.last:
                break
        return given, rest

    def _option(self, word: str) -> tuple[str | None, str | None]:
        """The option in a word, or the last of several letters, with the value that is joined to it."""
        option, equals, value = word.partition("=")
        takes = self.valued | self.last
        if option in takes:
            return option, value if equals else None
        if word in self.alone:
            return word, None
        if word.startswith("--"):
            return (option if equals else None), value
        for at, letter in enumerate(word[1:], 2):
            option = f"-{letter}"
            if option in takes:
                return option, word[at:] or None
            if option not in self.alone:
                return None, None
        return option, None


NPX = LauncherOptions(
    alone="""-y --yes -n --no --no-install -q --quiet -s --silent -d --verbose --ignore-existing --prefer-online
    --prefer-offline --offline --no-audit --no-fund --ignore-scripts -g --global --workspaces --bun
    --no-update-notifier""",
    valued="-p --package --prefix --registry --cache -w --workspace --userconfig --loglevel --node-options -C --dir",
    last="-c --call",
)
UV = LauncherOptions(
    alone="""-q --quiet -v --verbose -n --no-cache --offline --no-progress --no-config --native-tls --system-certs
    --managed-python --no-managed-python --no-python-downloads --isolated --active --no-project --frozen --locked
    --no-sync --exact --all-extras --no-dev --dev --only-dev --all-groups --no-default-groups --all-packages
    --no-editable --no-env-file --reinstall --refresh -U --upgrade --no-index --no-build --no-binary --no-sources
    --no-build-isolation --compile-bytecode -s --script --gui-script""",
    valued="""--from --with -w --with-editable --with-requirements --directory --project --package --extra --no-extra
    --group --no-group --only-group -p --python --index --default-index -i --index-url --extra-index-url -f
    --find-links --env-file --config-file --cache-dir --color --resolution --prerelease --index-strategy
    --keyring-provider --link-mode -C --config-setting --python-preference --python-platform --exclude-newer
    --allow-insecure-host -c --constraints --overrides --refresh-package --reinstall-package -P --upgrade-package""",
    last="-m --module",
)
PIPX = LauncherOptions(
    alone="-q --quiet -v --verbose --no-cache --path --pypackages",
    valued="--spec --python --pip-args -i --index-url",
    last="",
)
PYTHON = LauncherOptions(
    alone="-b -B -d -E -i -I -O -P -q -R -s -S -u -v -x", valued="-W -X --check-hash-based-pycs", last="-m -c"
)
NODE = LauncherOptions(
    alone="""--no-warnings --no-deprecation --inspect --inspect-brk --watch --enable-source-maps --trace-warnings
    --trace-uncaught --experimental-strip-types --experimental-transform-types --experimental-vm-modules --expose-gc
    --preserve-symlinks --no-addons --use-system-ca --no-cache""",
    valued="""-r --require --import --loader --experimental-loader -C --conditions --env-file --env-file-if-exists
    --title --tsconfig""",
    last="-e --eval -p --print",
)
BUN = LauncherOptions(
    alone="-b --bun --silent --verbose --watch --hot --smol --no-install -i --prefer-offline -y --yes",
    valued="--cwd -r --preload --require --import --env-file -c --config --tsconfig-override -p --package -d --define",
    last="-e --eval --print",
)
DENO = LauncherOptions(
    alone="""-A --allow-all -R --allow-read -W --allow-write -N --allow-net -E --allow-env -S --allow-sys --allow-run
    --allow-ffi -I --allow-import --no-prompt --no-remote --no-npm --check --no-check --no-lock --frozen -q --quiet
    --unstable --cached-only -r --reload --node-modules-dir --watch --no-config -y --yes""",
    valued="-c --config --import-map --lock --cert --location --seed -L --log-level --ext --env-file",
    last="",
)
DOCKER = LauncherOptions(
    alone="-D --debug --tls --tlsverify",
    valued="-c --context -H --host --config -l --log-level --tlscacert --tlscert --tlskey",
    last="",
)
DOCKER_RUN = LauncherOptions(
    alone="""-i --interactive -t --tty --rm -d --detach --init --privileged --read-only -P --publish-all -q --quiet
    --no-healthcheck --oom-kill-disable --sig-proxy --disable-content-trust --replace""",
    valued="""-e --env --env-file -v --volume --volumes-from --mount --tmpfs --name -p --publish --network --net
    --network-alias --link --entrypoint -w --workdir -u --user --platform --pull -l --label --label-file --add-host
    --cap-add --cap-drop --cpus -c --cpu-shares --cpuset-cpus -m --memory --memory-swap --shm-size --gpus --device
    --dns --expose -h --hostname --ip --ipc --pid --pids-limit --userns --uts --restart --security-opt --stop-signal
    --stop-timeout --sysctl --ulimit --log-driver --log-opt --group-add --runtime --cidfile --health-cmd -a --attach
    --cgroup-parent --cgroupns --isolation --annotation --mac-address --secret""",
    last="",
)
ENV = LauncherOptions(
    alone="-i --ignore-environment -0 --null -v --debug", valued="-u --unset -C --chdir", last="-S --split-string"
)
SHELL = LauncherOptions(alone="-e -u -x -l -i", valued="-o", last="-c")
JAVA = LauncherOptions(
    alone="-server --enable-preview", valued="-cp -classpath --class-path --add-opens --add-modules -D -X", last="-jar"
)
SDK = LauncherOptions(alone="--no-banner --reload", valued="-t --transport --with -f --with-editable", last="")
"""Of `mcp run` and `fastmcp run`."""
