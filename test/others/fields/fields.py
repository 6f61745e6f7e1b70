"""Compares the fields of the engines' request models with request_fields.json.

Nothing of an engine is imported: the classes are read out of a release's wheel
with ast, base classes included, so that no package of the engine is needed.
scripts/test-fields.sh runs it; docs/how-it-works/gateway.md says what is done with each field.
"""

import argparse
import ast
import json
import pathlib
import sys
import zipfile


class Sources:
    """The Python modules of a wheel."""

    def __init__(self, wheel):
        self.zip = zipfile.ZipFile(wheel)
        self.modules = {}

    def module(self, path):
        """The parsed module, or None if the wheel does not have it."""
        if path not in self.modules:
            try:
                self.modules[path] = ast.parse(self.zip.read(path))
            except KeyError:
                self.modules[path] = None
        return self.modules[path]

    def find(self, path, name):
        """The class and the path of its module; it may be imported from another one."""
        tree = self.module(path)
        if tree is None:
            return None
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name == name:
                return node, path
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or not node.module:
                continue
            for alias in node.names:
                if (alias.asname or alias.name) != name:
                    continue
                folder = path.split("/")[: -node.level] if node.level else []
                base = "/".join(folder + node.module.split("."))
                for file in (base + ".py", base + "/__init__.py"):
                    found = self.find(file, alias.name)
                    if found:
                        return found
        return None

    def fields(self, path, name):
        """The names that a body may have: a field's, or its alias if it has one."""
        found = self.find(path, name)
        if found is None:
            return None
        node, path = found
        names = set()
        for base in node.bases:
            while isinstance(base, ast.Subscript):  # Generic[T]
                base = base.value
            if isinstance(base, ast.Name):
                names |= self.fields(path, base.id) or set()
        for statement in node.body:
            if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
                continue
            field = statement.target.id
            if field.startswith("_") or field == "model_config" or "ClassVar" in ast.unparse(statement.annotation):
                continue
            names.add(alias(statement.value) or field)
        return names


def alias(value):
    """The alias of a pydantic Field, else None."""
    if isinstance(value, ast.Call):
        for keyword in value.keywords:
            if keyword.arg in ("alias", "validation_alias") and isinstance(keyword.value, ast.Constant):
                return keyword.value.value
    return None


def compare(expected, sources):
    """The differences of a release from what is listed, a line each."""
    for model, groups in expected.items():
        path, name = model.split(":")
        listed = [field for fields in groups.values() for field in fields]
        for field in sorted({field for field in listed if listed.count(field) > 1}):
            yield f"{model}: {field} is listed twice"
        found = sources.fields(path, name)
        if found is None:
            yield f"{model}: gone"
            continue
        for field in sorted(found - set(listed)):
            yield f"{model}: new: {field}"
        for field in sorted(set(listed) - found):
            yield f"{model}: gone: {field}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", type=pathlib.Path, default=pathlib.Path(__file__).with_name("request_fields.json"))
    parser.add_argument("--print", action="store_true", help="print the fields of each model as they are")
    parser.add_argument("wheels", nargs="+", type=pathlib.Path)
    options = parser.parse_args()
    engines = json.loads(options.list.read_text())
    failed = False
    for wheel in options.wheels:
        engine, release = wheel.name.split("-")[:2]
        sources = Sources(wheel)
        if options.print:
            for model in engines[engine]:
                print(model, *sorted(sources.fields(*model.split(":")) or ["gone"]))
            continue
        differences = list(compare(engines[engine], sources))
        print(f"{engine} {release}: {len(engines[engine])} request models,", "as listed" if not differences else "not as listed:")
        for line in differences:
            print("  " + line)
        failed = failed or bool(differences)
    if failed:
        print("test-fields: say in test/others/fields/request_fields.json and docs/how-it-works/gateway.md what is done with the fields above", file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.exit(main())
