"""The house rules of CONTRIBUTING.md that a machine can check, over the whole repository."""

import ast
import functools
import importlib
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from monograph.config.configurable import BaseConfig, check_config_class, find_owner
from monograph.config.docs import find_field_docs
from monograph.config.references import load_reference
from monograph.recipes.catalog import find_recipes

ROOT = Path(__file__).parent.parent
FILES = sorted(
    path
    for folder in ("monograph", "tests", "docs", "benchmarks", "examples")
    for path in (ROOT / folder).rglob("*.py")
    if "__pycache__" not in path.parts
)
PACKAGE = [path for path in FILES if path.is_relative_to(ROOT / "monograph")]
TESTS = [path for path in FILES if path.name.startswith("test_")]

SOFT_LINES, HARD_LINES, FUNCTION_LINES = 300, 400, 60
LEFT_TO_RIGHT = """
    at_start renamed elsewhere errors labels plurals system strict_json whole_file line_file log crash locks
    permissions private_temporary manifest axes machine compat annotate config kernels models parts parallel graph
    capture passes execute report train watch run generate bench verify bisect plan launch recipes api checks commands
    cli __main__
""".split()  # noqa: SIM905 - the order reads best as one sentence
OPTIONAL_PACKAGES = {
    *("datasets", "huggingface_hub", "lm_eval", "pyarrow", "tensorboard", "torchft", "transformers", "wandb")
}
OPTIONAL_MODULES = {"torch.utils.tensorboard"}
DOCUMENTED_TORCH = {"torch._check"}
"""Private by its name only: how torch's own guides bound data-dependent sizes."""
IMPORTS_BY_NAME = "monograph/config/references.py"
"""The one file that imports a module by its name, for users' references and for the tables below."""
TABLES_OF_NAMES = {"monograph/commands/table.py", "monograph/passes/order.py"}
"""What is named here needs torch, and the names are read without it."""
IMPORT_ON_CALL = "import_on_call"
"""Takes a name, too, of what is imported late; the same file imports it for type checkers."""
OUR_MODULE = re.compile(r"monograph(\.\w+)+:\w+$")
PROPER_NAMES = {"deepseek_v3"}
BANNED_NAMES = re.compile(r"^(utils?|common|helpers?|misc|stuff)$|_(utils?|helpers?|v\d+)$")
TEST_WORDS = 3


@functools.cache
def parse(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def name(path):
    return str(path.relative_to(ROOT))


def find_module(path):
    """The dotted name of a file of the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def find_imports(tree):
    """(module, imported name or None, line) of every import statement; relative ones as they stand."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from ((module, alias.name, node.lineno) for alias in node.names)


def find_functions(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def report(complaints):
    complaints = list(complaints)
    assert not complaints, "\n" + "\n".join(complaints)


def test_files_stay_below_the_hard_limit_of_lines():
    sizes = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    for path, size in sizes.items():
        if SOFT_LINES < size <= HARD_LINES:
            warnings.warn(f"{name(path)} has {size} lines; consider splitting it at {SOFT_LINES}", stacklevel=1)
    report(f"{name(path)} has {size} lines" for path, size in sizes.items() if size > HARD_LINES)


def test_functions_fit_on_a_screen():
    report(
        f"{name(path)}:{node.lineno} {node.name} has {size} lines"
        for path in FILES
        for node in find_functions(parse(path))
        if (size := node.end_lineno - node.lineno + 1) > FUNCTION_LINES
    )


def test_a_file_imports_only_from_its_left():
    complaints = []
    for path in PACKAGE:
        own = find_module(path).split(".")[1:2]
        if not own:
            continue
        if own[0] not in LEFT_TO_RIGHT:
            complaints.append(f"{name(path)}: {own[0]} has no place in LEFT_TO_RIGHT")
            continue
        for module, what, line in find_imports(parse(path)):
            parts = module.split(".") if what is None else [*module.split("."), what]
            if parts[0] != "monograph" or len(parts) < 2 or parts[1] == "__version__":
                continue
            if parts[1] not in LEFT_TO_RIGHT or LEFT_TO_RIGHT.index(parts[1]) > LEFT_TO_RIGHT.index(own[0]):
                complaints.append(f"{name(path)}:{line} imports monograph.{parts[1]}, which is to its right")
    report(complaints)


def test_the_package_imports_neither_tests_nor_itself_relatively():
    report(
        f"{name(path)}:{line} imports {module}"
        for path in PACKAGE
        for module, _, line in find_imports(parse(path))
        if module.startswith(".") or module.split(".")[0] == "tests"
    )


def test_models_know_nothing_of_distributed_training():
    report(
        f"{name(path)}:{line} imports {module}"
        for path in PACKAGE
        if path.is_relative_to(ROOT / "monograph" / "models")
        for module, what, line in find_imports(parse(path))
        if f"{module}.{what}".startswith("torch.distributed")
    )


def test_imports_stand_at_the_top_unless_the_package_is_optional():
    complaints = []
    for path in PACKAGE:
        for function in find_functions(parse(path)):
            for module, what, line in find_imports(function):
                is_optional = module.split(".")[0] in OPTIONAL_PACKAGES
                if not is_optional and not {module, f"{module}.{what}"} & OPTIONAL_MODULES:
                    complaints.append(f"{name(path)}:{line} imports {module} inside {function.name}")
    report(complaints)


def find_owner_names(tree):
    """The constants that say which class a Config builds: `owner: ClassVar[str] = "module:Class"`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and find_chain(node.target) == ["owner"] and node.value is not None:
            yield node.value


def find_names_on_call(tree):
    """The names in `if TYPE_CHECKING: from module import Name; else: Name = import_on_call("module:Name")`."""
    for branch in ast.walk(tree):
        if isinstance(branch, ast.If) and ast.unparse(branch.test) == "TYPE_CHECKING":
            checked = {f"{module}:{what}": what for module, what, _ in find_imports(ast.Module(branch.body, []))}
            for line in branch.orelse:
                call = getattr(line, "value", None)
                if isinstance(call, ast.Call) and find_chain(call.func) == [IMPORT_ON_CALL]:
                    target = getattr(line, "targets", [None])[0]
                    if checked.get(call.args[0].value) == ast.unparse(target):
                        yield call.args[0]


def test_modules_are_imported_by_name_only_where_references_are_read():
    """So that go-to-definition works; `compat` names private modules of torch, which may not exist."""
    report(
        f"{name(path)}:{node.lineno} uses {node.attr if isinstance(node, ast.Attribute) else node.id}"
        for path in PACKAGE
        if path.parent.name != "compat" and name(path) != IMPORTS_BY_NAME
        for node in ast.walk(parse(path))
        if (isinstance(node, ast.Attribute) and node.attr == "import_module")
        or (isinstance(node, ast.Name) and node.id in ("import_module", "__import__"))
    )


def test_names_of_our_modules_stand_only_in_the_tables_and_each_exists():
    complaints = []
    for path in PACKAGE:
        owners = [*find_owner_names(parse(path)), *find_names_on_call(parse(path))]
        for node in ast.walk(parse(path)):
            if not (isinstance(node, ast.Constant) and isinstance(node.value, str) and OUR_MODULE.match(node.value)):
                continue
            if node not in owners and name(path) not in TABLES_OF_NAMES:
                complaints.append(f"{name(path)}:{node.lineno} names {node.value}; import it")
            elif not callable(load_reference(node.value)):
                complaints.append(f"{name(path)}:{node.lineno} names {node.value}, which cannot be called")
    report(complaints)


def test_no_file_imports_a_private_name_of_another():
    report(
        f"{name(path)}:{line} imports {what} from {module}"
        for path in FILES
        for module, what, line in find_imports(parse(path))
        if what and what.startswith("_") and not what.endswith("__") and module.split(".")[0] in ("monograph", "tests")
    )


def find_chain(node):
    """`a.b.c` as ["a", "b", "c"]; empty for anything else."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id, *reversed(parts)] if isinstance(node, ast.Name) else []


def is_private(parts):
    if ".".join(parts) in DOCUMENTED_TORCH:
        return False
    return parts[:1] == ["torch"] and any(part.startswith("_") and not part.endswith("__") for part in parts)


def test_private_torch_names_appear_only_in_compat():
    complaints = set()
    for path in PACKAGE:
        if path.parent.name == "compat":
            continue
        for module, what, line in find_imports(parse(path)):
            if is_private([*module.split("."), what or ""]):
                complaints.add(f"{name(path)}:{line} imports {module}.{what or ''}")
        for node in ast.walk(parse(path)):
            if is_private(find_chain(node)):
                complaints.add(f"{name(path)}:{node.lineno} uses {'.'.join(find_chain(node))}")
    report(sorted(complaints))


OF_A_DEVICE = (
    *("Stream", "current_stream", "default_stream", "synchronize", "mem_get_info", "memory_allocated"),
    *("max_memory_allocated", "memory_reserved", "memory_stats", "reset_peak_memory_stats", "get_rng_state"),
    *("get_device_properties", "get_device_capability", "get_device_name"),
)


def test_whatever_torch_cuda_is_asked_names_its_device():
    """Without one it is the thread's current device: another GPU than the rank's, on a thread that is not bound."""
    asked = {f"torch.cuda.{each}" for each in OF_A_DEVICE}
    calls = [(path, node) for path in PACKAGE for node in ast.walk(parse(path)) if isinstance(node, ast.Call)]
    found = [
        f"{name(path)}:{node.lineno} {ast.unparse(node)}"
        for path, node in calls
        if not node.args and not node.keywords and ast.unparse(node.func) in asked
    ]
    assert found == []


def test_files_and_folders_are_named_after_what_they_hold():
    report(
        f"{name(path)} is called '{part}'"
        for path in FILES
        for part in path.relative_to(ROOT).with_suffix("").parts
        if BANNED_NAMES.search(part) and part not in PROPER_NAMES
    )


def test_package_markers_are_empty_and_every_other_file_says_what_it_is_for():
    markers = [path for path in FILES if path.name == "__init__.py" and path != ROOT / "monograph" / "__init__.py"]
    report(f"{name(path)} is not empty" for path in markers if path.read_text(encoding="utf-8").strip())
    report(
        f"{name(path)} has no docstring"
        for path in PACKAGE
        if path.name != "__init__.py" and not ast.get_docstring(parse(path))
    )


def test_nothing_is_left_as_a_note_to_do_later():
    note = re.compile(r"#.*\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
    report(
        f"{name(path)}:{number} {line.strip()}"
        for path in FILES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if note.search(line)
    )


def test_tests_are_sentences_that_state_a_promise():
    report(
        f"{name(path)}:{node.lineno} {node.name} is not a sentence"
        for path in TESTS
        for node in find_functions(parse(path))
        if node.name.startswith("test_") and len(node.name.removeprefix("test_").split("_")) < TEST_WORDS
    )


def test_no_two_tests_in_a_file_share_a_name():
    for path in TESTS:
        names = [node.name for node in parse(path).body if isinstance(node, ast.FunctionDef)]
        report(f"{name(path)} defines {each} twice" for each in {n for n in names if names.count(n) > 1})


def find_config_modules():
    """The modules that must load without torch: configuration, sizes, recipes and the command line."""
    chosen = [
        find_module(path)
        for path in PACKAGE
        if path.name in ("config.py", "sizes.py", "cli.py", "arguments.py")
        or path.is_relative_to(ROOT / "monograph" / "config")
        or path.is_relative_to(ROOT / "monograph" / "recipes")
    ]
    assert len(chosen) > 15
    return chosen


def test_configs_recipes_and_the_command_line_load_without_torch():
    code = "import sys, importlib\nfor name in sys.argv[1:]:\n importlib.import_module(name)\n"
    code += " if 'torch' in sys.modules: sys.exit(name)\n"
    done = subprocess.run([sys.executable, "-c", code, *find_config_modules()], capture_output=True, text=True)
    assert done.returncode == 0, f"importing this loads torch: {done.stderr}"


def find_config_classes():
    for module in find_config_modules():
        importlib.import_module(module)
    found, waiting = [], [BaseConfig]
    while waiting:
        for each in waiting.pop().__subclasses__():
            waiting.append(each)
            if each.__module__.startswith("monograph.") and each not in found:
                found.append(each)
    return [each for each in found if each is getattr(sys.modules[each.__module__], each.__name__, None)]


def test_every_config_is_keyword_only_slotted_and_describes_each_field():
    classes = find_config_classes()
    assert len(classes) > 20
    for config in classes:
        check_config_class(config)
    report(
        f"{config.__module__}:{config.__qualname__}.{field} has no description"
        for config in classes
        for field, doc in find_field_docs(config).items()
        if not doc.endswith(".")
    )


@pytest.mark.parametrize("config", find_config_classes(), ids=lambda config: config.__qualname__)
def test_every_config_and_its_owner_know_each_other(config):
    if config.owner is None:
        return
    owner = find_owner(config)
    assert owner.Config is config or issubclass(config, owner.Config)


def test_every_recipe_has_a_golden_and_every_golden_a_recipe():
    goldens = {path.stem for path in (ROOT / "tests" / "goldens" / "recipes").glob("*.txt")}
    assert goldens == set(find_recipes())
