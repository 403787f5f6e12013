"""Whether Triton's interpreter works here."""

from importlib.metadata import version


def interpreter_problem() -> str | None:
    """Why it does not: before 3.7 it converts arrays of one number, which NumPy 2.4 refuses."""
    triton, numpy = (
        tuple(int(part) for part in version(package).split(".")[:2])
        for package in ("triton", "numpy")
    )
    if triton < (3, 7) and numpy >= (2, 4):
        return "Triton's interpreter before 3.7 needs NumPy before 2.4"
    return None
