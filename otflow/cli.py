"""The program `otflow`: reproduce the statements of the literature from the command line.

Nothing heavy is imported until an experiment runs, so `otflow --help` answers at once.

Exit codes: 0 every claim holds (or is an erratum, shown with its correction), 1 a claim fails or an
experiment crashed, 2 the command line asks for something impossible, 130 interrupted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from otflow import __version__
from otflow.papers import REGISTRY

if TYPE_CHECKING:
    from otflow.reproduce.claim import Claim, Result
    from otflow.reproduce.frame import Progress
    from otflow.reproduce.report import Section

COLOURS = {"holds": "green", "fails": "red", "erratum found": "yellow"}

app = typer.Typer(
    add_completion=False, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program, under the same name however it was started."""
    app(args=None if arguments is None else list(arguments), prog_name="otflow")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"otflow {__version__}")
        raise typer.Exit


@app.callback()
def otflow(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Wasserstein gradient flows and the mean-field theory of Transformers."""


@app.command()
def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", show_default=False, help="Experiments to run, or 'all'."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller problems, looser tolerances.")] = False,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for all results.")] = Path("out"),
) -> None:
    """Run experiments: what papers predict against what is measured.

    Without a NAME, list the experiments. Otherwise write figures, data and claims into DIR/NAME/ and
    one page that shows everything, DIR/index.html.
    """
    if not names:
        _list_experiments()
        return
    chosen = _resolve(names)
    _make_usable(out)
    sections = _run_all(chosen, out, quick=quick)
    pending = chosen[len(sections) :]
    _finish(sections, pending, out, quick=quick)
    if pending:
        raise typer.Exit(130)
    if not all(section.succeeded for section in sections):
        raise typer.Exit(1)


def _list_experiments() -> None:
    for name in REGISTRY:
        entry = REGISTRY[name]
        typer.echo(f"{typer.style(name, bold=True)}\n    {entry.title}\n    {entry.source}")
    typer.echo("\nRun one with 'otflow reproduce NAME', every one of ours with 'otflow reproduce all'.")


def _resolve(names: Sequence[str]) -> list[str]:
    """The experiments meant by `names`, each once; all wrong names are reported together."""
    wrong = [REGISTRY.unknown(name) for name in names if name != "all" and name not in REGISTRY]
    if wrong:
        raise typer.BadParameter("\n".join(wrong), param_hint="NAME")
    chosen = [one for name in names for one in (REGISTRY.names() if name == "all" else (name,))]
    return list(dict.fromkeys(chosen))


def _make_usable(out: Path) -> None:
    """Find out before hours of computing whether the results can be written."""
    import tempfile

    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise typer.BadParameter(
            f"cannot write into {str(out)!r} ({error.strerror}): name another folder",
            param_hint="--out",
        ) from error


def _run_all(chosen: Sequence[str], out: Path, *, quick: bool) -> list[Section]:
    """Run one experiment after the other; after Ctrl-C, return those that were finished."""
    sections: list[Section] = []
    try:
        for name in chosen:
            sections.append(_run_one(name, out / name, quick=quick))
            _announce(sections[-1])
    except KeyboardInterrupt:
        typer.echo("\nInterrupted.", err=True)
    return sections


def _run_one(name: str, folder: Path, *, quick: bool) -> Section:
    """Run and write one experiment; a crash becomes part of the section and what exists is kept."""
    from otflow.reproduce import report
    from otflow.reproduce.frame import Frame

    _, title, source = REGISTRY[name]
    result: Result | None = None
    pictures: dict[str, Path] = {}
    prose = error = ""
    started = time.perf_counter()
    try:
        _forget(folder)
        experiment = REGISTRY.load(name)
        prose = (experiment.__doc__ or "").partition("\n")[2]
        with _progress_bar(name) as progress:
            result = experiment.run(Frame(quick, progress))
        pictures = report.write_result(folder, result, quick=quick)
    except (Exception, SystemExit) as exception:  # a foreign module may call exit
        error = _describe(exception, folder)
    return report.Section(
        name=name,
        title=title,
        source=source,
        prose=prose,
        claims=result.claims if result else (),
        pictures=pictures,
        error=error,
        seconds=time.perf_counter() - started,
    )


def _forget(folder: Path) -> None:
    """Remove the verdicts of an earlier run, which must not pass for those of this one."""
    for stale in ("claims.json", "traceback.txt"):
        (folder / stale).unlink(missing_ok=True)


def _describe(exception: BaseException, folder: Path) -> str:
    """Keep the traceback in a file, if files can be written at all; return its last line."""
    import traceback

    from otflow.reproduce import report

    with suppress(OSError):
        report.write_text(folder / "traceback.txt", "".join(traceback.format_exception(exception)))
    return traceback.format_exception_only(exception)[-1].strip()


@contextmanager
def _progress_bar(name: str) -> Iterator[Progress]:
    """A bar on a terminal, nothing elsewhere."""
    from tqdm.auto import tqdm

    layout = "{desc} {percentage:3.0f}%|{bar}| {elapsed}"
    with tqdm(total=1.0, desc=name, bar_format=layout, leave=False, disable=None, miniters=0) as bar:

        def progress(fraction: float, message: str) -> None:
            bar.set_description_str(f"{name}: {message}", refresh=False)
            bar.update(min(max(fraction, 0.0), 1.0) - bar.n)

        yield progress


def _announce(section: Section) -> None:
    """Say that an experiment is over, and how it ended."""
    verdict = "done" if section.succeeded else "crashed" if section.error else "a claim fails"
    typer.echo(f"{section.name}: {verdict} in {section.seconds:.1f} s")


def _finish(sections: Sequence[Section], pending: Sequence[str], out: Path, *, quick: bool) -> None:
    """Write the page and print the summary."""
    from otflow.reproduce import report

    note = f"Interrupted before these experiments were finished: {', '.join(pending)}." if pending else ""
    page = report.write_page(out, sections, quick=quick, note=note)
    for section in sections:
        _print_section(section)
    typer.echo(f"\n{report.summary(sections)}\nThe page: {page}")


def _print_section(section: Section) -> None:
    """The table 'predicted against measured' of one experiment."""
    typer.secho(f"\n{section.title}", bold=True)
    if section.claims:
        _print_claims(section.claims)
    if section.error:
        typer.secho(f"  crashed: {section.error}", fg="red", err=True)


def _print_claims(claims: Sequence[Claim]) -> None:
    """Columns as wide as their entries; the statement comes last and is wrapped."""
    from otflow.reproduce.claim import show

    rows = [("verdict", "predicted", "measured", "tolerance")]
    rows += [(one.verdict, show(one.predicted), show(one.measured), one.tolerance) for one in claims]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    statements = ["statement", *(claim.statement for claim in claims)]
    for row, statement in zip(rows, statements, strict=True):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        _print_row(cells, statement)


def _print_row(cells: Sequence[str], statement: str) -> None:
    from shutil import get_terminal_size
    from textwrap import wrap

    indent = 2 + sum(len(cell) + 2 for cell in cells)
    first, *rest = wrap(statement, max(30, get_terminal_size().columns - indent))
    verdict = typer.style(cells[0], fg=COLOURS.get(cells[0].strip()))
    typer.echo("  " + "  ".join([verdict, *cells[1:], first]))
    for line in rest:
        typer.echo(" " * indent + line)
