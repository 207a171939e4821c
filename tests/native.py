"""Sessions on the native interpreter, for tests: code is made once per program, quickly and without optimisation."""

from __future__ import annotations

from sscc.runtime.backends.cpu.codegen.features import Features
from sscc.runtime.backends.cpu.interpreter import NativeInterpreter
from sscc.runtime.backends.cpu.plan.library import NativeCode, make_code
from sscc.runtime.session.artifact import Artifact
from sscc.runtime.session.session import Session
from tests.torch_session import TorchSession

_MADE: dict[tuple[str, Features, int], NativeCode] = {}


def native_code(artifact: Artifact, features: Features | None = None, optimise: int = 0) -> NativeCode:
    """The code of an artifact's program."""
    chosen = Features.of_host() if features is None else features
    key = (artifact.program.to_json(), chosen, optimise)
    if key not in _MADE:
        _MADE[key] = make_code(artifact.program, chosen, optimise)
    return _MADE[key]


def native_interpreter(
    artifact: Artifact, *, features: Features | None = None, threads: int = 2, optimise: int = 0
) -> NativeInterpreter:
    """The native interpreter of an artifact's program, without a session."""
    code = native_code(artifact, features, optimise)
    return NativeInterpreter(artifact.program, artifact.weights(), code=code, threads=threads)


def native_session(
    artifact: Artifact, *, features: Features | None = None, threads: int = 2, optimise: int = 0
) -> TorchSession:
    """A session whose interpreter is the native one."""
    interpreter = native_interpreter(artifact, features=features, threads=threads, optimise=optimise)
    return TorchSession(Session(artifact.signature, interpreter))
