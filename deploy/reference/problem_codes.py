"""Every `code` of a problem document that the API can answer, read from the source.

A code enters a problem in three ways: by a class of `core/errors.py`, by `problem` or `problem_document` of
`api/errors.py`, or by an exception of the REST framework. A function that passes one of its parameters on as a code
counts like these, so its callers are read too. A code that cannot be followed to a string is an error.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from importlib.util import find_spec
from pathlib import Path

from athanor.core import errors

PLATFORM = Path(errors.__file__).resolve().parents[1]
HANDLER = PLATFORM / "api" / "errors.py"
# The command line raises none of these; configuration and migrations run before there is an API.
LEFT_OUT = {"cli", "config", "migrations"}
# Where the error of somebody else is answered: its code was found where it was raised.
PASSED_ON = {("api/errors.py", "_from_athanor"), ("api/errors.py", "_from_framework"),
             ("api/gateway/application.py", "_refusal")}  # fmt: skip
# Exceptions of the framework that no request causes: the base class, and what `CallerThrottle` replaces by its own.
NEVER_RAISED = {"APIException", "Throttled"}
VALIDATION_STATUS = HTTPStatus.UNPROCESSABLE_ENTITY  # of the framework's `invalid`, as `_from_framework` answers it


@dataclass
class Problem:
    """A code with its statuses, and the messages and remedies that can be read; `…` stands for a value."""

    code: str
    statuses: set[int] = field(default_factory=set)
    messages: list[str] = field(default_factory=list)
    remedies: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Maker:
    """What makes a problem of its arguments: names of parameters, in order; `status` if it is fixed.

    `module` is the last part of the name of the module that defines it. `fixes_code`: a class that takes no code.
    The last two are texts that a function gives itself.
    """

    code: str | None
    parameters: tuple[str, ...]
    message: str | None = None
    remedy: str | None = "remedy"
    status_parameter: str | None = None
    status: int | None = None
    fixes_code: bool = False
    module: str = ""
    own_message: str = ""
    own_remedy: str = ""


@dataclass(frozen=True)
class Call:
    """A call of a maker in `function` (None: outside of one) of the file `path`, relative to the platform."""

    path: str
    module: ast.Module
    function: ast.FunctionDef | None
    node: ast.Call
    maker: Maker

    def argument(self, name: str | None) -> ast.expr | None:
        """Return an argument of the call by the name of its parameter."""
        if name is None:
            return None
        for keyword in self.node.keywords:
            if keyword.arg == name:
                return keyword.value
        position = self.maker.parameters.index(name) if name in self.maker.parameters else len(self.node.args)
        return self.node.args[position] if position < len(self.node.args) else None


def problems() -> list[Problem]:
    """Return all problems by code. Raises ValueError for a code that cannot be read from the source."""
    found: dict[str, Problem] = {}
    for code, status, message, remedy in (*_raised(), *_of_the_framework()):
        problem = found.setdefault(code, Problem(code))
        problem.statuses.add(status)
        for texts, text in ((problem.messages, message), (problem.remedies, remedy)):
            if text.strip("… ") and text not in texts:
                texts.append(text)
    return sorted(found.values(), key=lambda each: each.code)


def _raised() -> Iterator[tuple[str, int, str, str]]:
    trees = {
        str(path.relative_to(PLATFORM)): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(PLATFORM.rglob("*.py"))
        if not LEFT_OUT & set(path.relative_to(PLATFORM).parts)
    }
    makers = {"": _first_makers(trees)}
    while True:
        calls = [call for path, tree in trees.items() for call in _calls(path, tree, makers)]
        more = [(call, maker) for call in calls if (maker := _passes_on(call)) is not None]
        fresh = [(call, maker) for call, maker in more if maker not in _known(call, makers)]
        if not fresh:
            break
        for call, maker in fresh:
            assert call.function is not None
            name = call.function.name
            makers.setdefault(call.path if name.startswith("_") else "", {}).setdefault(name, []).append(maker)
    for call in calls:
        if (call.path, call.function.name if call.function else "") in PASSED_ON or _passes_on(call) is not None:
            continue
        codes = _strings(call.argument(call.maker.code), call)
        status = call.maker.status or _integer(call.argument(call.maker.status_parameter))
        if not codes or status is None:
            raise ValueError(f"{call.path}:{call.node.lineno}: the code of this problem cannot be read; write it out")
        for code in codes:
            yield code, status, _message(call), _remedy(call)


def _first_makers(trees: dict[str, ast.Module]) -> dict[str, list[Maker]]:
    """Return the classes of errors that take a code, and the two functions that make documents."""
    shape = ("status", "title", "code", "detail")
    document = Maker("code", shape, "detail", status_parameter="status", module="errors")
    return {"problem": [document], "problem_document": [document], **_classes(trees)}


def _classes(trees: dict[str, ast.Module]) -> dict[str, list[Maker]]:
    """By name. A subclass with an `__init__` that takes no code names its own: see `_calls`."""
    found = {"AthanorError": [Maker("code", ("code", "message"), "message", status=errors.AthanorError.status)]}
    nodes = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    before = 0
    while len(found) > before:
        before = len(found)
        for node in nodes:
            parents = [found[name] for each in node.bases if (name := ast.unparse(each)) in found]
            if parents and node.name not in found:
                found[node.name] = [replace(parents[0][0], status=_own_status(node) or parents[0][0].status,
                                            fixes_code=_fixes_code(node, parents[0][0]))]  # fmt: skip
    return found


def _own_status(node: ast.ClassDef) -> int | None:
    values = [
        each.value for each in node.body if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "status"
    ]
    return _integer(values[0]) if values else None


def _fixes_code(node: ast.ClassDef, parent: Maker) -> bool:
    makers = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
    return "code" not in [each.arg for each in makers[0].args.args] if makers else parent.fixes_code


def _calls(path: str, tree: ast.Module, makers: dict[str, dict[str, list[Maker]]]) -> Iterator[Call]:
    """Yield calls of makers, and of a parent's `__init__` by a class that names its code there."""

    def visit(node: ast.AST, owner: ast.ClassDef | None, function: ast.FunctionDef | None) -> Iterator[Call]:
        if isinstance(node, ast.ClassDef):
            owner = node
        if isinstance(node, ast.FunctionDef):
            function = node
        if isinstance(node, ast.Call):
            called = [*_named(node.func, makers.get(path, {}), "self"), *_named(node.func, makers[""])]
            if owner is not None and ast.unparse(node.func) == "super().__init__":
                mine = makers[""].get(owner.name, ())
                called = [replace(each, fixes_code=False) for each in mine if each.fixes_code]
            yield from (Call(path, tree, function, node, maker) for maker in called if not maker.fixes_code)
        for inner in ast.iter_child_nodes(node):
            yield from visit(inner, owner, function)

    yield from visit(tree, None, None)


def _named(function: ast.expr, makers: dict[str, list[Maker]], owner: str = "") -> Iterator[Maker]:
    """Yield the makers that a called name means: alone, or as an attribute of its module (or of `owner`)."""
    if isinstance(function, ast.Name):
        yield from makers.get(function.id, ())
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        for maker in makers.get(function.attr, ()):
            if function.value.id in (owner, maker.module):
                yield maker


def _known(call: Call, makers: dict[str, dict[str, list[Maker]]]) -> list[Maker]:
    name = call.function.name if call.function else ""
    return [*makers.get(call.path, {}).get(name, ()), *makers[""].get(name, ())]


def _passes_on(call: Call) -> Maker | None:
    """Return the enclosing function as a maker, if the code is one of its parameters."""
    code = call.argument(call.maker.code)
    if call.function is None or not isinstance(code, ast.Name):
        return None
    arguments = call.function.args
    positional = tuple(each.arg for each in (*arguments.posonlyargs, *arguments.args) if each.arg != "self")
    names = {*positional, *(each.arg for each in arguments.kwonlyargs)}
    if code.id not in names or (call.path, call.function.name) in PASSED_ON:
        return None

    def passed(name: str | None) -> str | None:
        value = call.argument(name)
        return value.id if isinstance(value, ast.Name) and value.id in names else None

    status = call.maker.status or _integer(call.argument(call.maker.status_parameter))
    message, remedy = passed(call.maker.message), passed(call.maker.remedy)
    return Maker(
        code.id,
        positional,
        message,
        remedy,
        passed(call.maker.status_parameter),
        status,
        module=Path(call.path).stem,
        own_message="" if message else _message(call),
        own_remedy="" if remedy else _remedy(call),
    )


def _strings(node: ast.expr | None, call: Call) -> list[str]:
    """Return the strings that an expression can be; a variable is looked up among its function's assignments."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.IfExp):
        return [*_strings(node.body, call), *_strings(node.orelse, call)]
    if isinstance(node, ast.Name):
        return [text for value in _assigned(node.id, call) for text in _strings(value, call)]
    return []


def _assigned(name: str, call: Call) -> Iterator[ast.expr]:
    for node in ast.walk(call.function) if call.function else ():
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
            if isinstance(target, ast.Name) and target.id == name:
                yield value
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs = zip(target.elts, value.elts, strict=True)
                yield from (each for of, each in pairs if isinstance(of, ast.Name) and of.id == name)


def _constant(name: str, module: ast.Module) -> ast.expr | None:
    """Return the value of a module's constant; None if it has none of this name."""
    assigned = (each for each in module.body if isinstance(each, ast.Assign))
    return next((each.value for each in assigned if ast.unparse(each.targets[0]) == name), None)


def _integer(node: ast.expr | None) -> int | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, int) else None


def _message(call: Call) -> str:
    return _text(call, call.maker.message) or call.maker.own_message


def _remedy(call: Call) -> str:
    return _text(call, call.maker.remedy) or call.maker.own_remedy


def _text(call: Call, parameter: str | None) -> str:
    value = call.argument(parameter)
    if isinstance(value, ast.Name):
        before = [each for each in _assigned(value.id, call) if each.lineno < call.node.lineno]
        value = max(before, key=lambda each: each.lineno, default=_constant(value.id, call.module))
    return _rendered(value)


def _rendered(node: ast.expr | None) -> str:
    """Return a literal text with `…` for values; empty where it is none."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(each.value) if isinstance(each, ast.Constant) else "…" for each in node.values)
    return ""


def _of_the_framework() -> Iterator[tuple[str, int, str, str]]:
    """Yield the exceptions of Django REST framework, read from its source: to import it would load Django."""
    place = find_spec("rest_framework")
    assert place is not None and place.origin is not None
    tree = ast.parse(Path(place.origin).with_name("exceptions.py").read_text(encoding="utf-8"))
    remedies = _framework_remedies()
    for kind in tree.body:
        if not isinstance(kind, ast.ClassDef) or kind.name in NEVER_RAISED:
            continue
        facts = {ast.unparse(each.targets[0]): each.value for each in kind.body if isinstance(each, ast.Assign)}
        if "default_code" not in facts:
            continue
        code = ast.literal_eval(facts["default_code"])
        status = int(ast.unparse(facts["status_code"]).split("_")[1])
        detail = next((each.value for each in ast.walk(facts["default_detail"]) if isinstance(each, ast.Constant)), "")
        if code == "invalid":
            status, detail = VALIDATION_STATUS, "the request cannot be used"
        yield code, int(status), str(detail), remedies.get(code, "")


def _framework_remedies() -> dict[str, str]:
    tree = ast.parse(HANDLER.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FRAMEWORK_REMEDIES":
            found: dict[str, str] = ast.literal_eval(node.value)
            return found
    raise ValueError("api/errors.py: there is no FRAMEWORK_REMEDIES")
