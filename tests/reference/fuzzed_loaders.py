"""Every loader of dpinfer as a fuzzing target: bytes from elsewhere go in, a value or a documented error comes out."""

import gzip
import hashlib
import io
import json
import zipfile
from pathlib import Path

import numpy as np

import dpinfer as dpi
from dpinfer.accounting import GaussianEvent, PrivacyPlan, charge_run, event_from_dict, run_event
from dpinfer.accounting import _ledger_file as ledger_file
from dpinfer.accounting.ledger_state import read_state
from dpinfer.errors import CheckpointError, LedgerError, RecordError, ReleaseFormatError, SchemaError, StudyFormatError
from dpinfer.fitting.result import load_plan, write_plan
from dpinfer.lab.studies import CoverageResult
from dpinfer.lab.studies.checkpoint import Checkpoint
from dpinfer.lab.studies.run_statistics import RunStatistics
from dpinfer.mechanism import RunCheckpoint
from dpinfer.mechanism import checkpoint as run_checkpoint
from dpinfer.models import model_from_dict
from dpinfer.release import GradientTrace, Part
from dpinfer.release.guarantee import part_from_dict
from dpinfer.tabular import Schema, read_table
from dpinfer.testing import InsecureRNG
from tests.reference.fuzzing import Target, json_text, mutated_bytes, mutated_document
from tests.reference.site_runs import run_sites

SCHEMA = """\
[table]
missing = "drop"
[columns.age]
kind = "continuous"
bounds = [0, 100]
scaling = "unit"
[columns.job]
kind = "categorical"
categories = ["clerk", "cook"]
other = "else"
[columns.old]
kind = "binary"
positive = "y"
negative = "n"
[columns.id]
kind = "ignore"
[columns.rich]
kind = "target"
positive = "yes"
negative = "no"
"""
TABLE = "age,job,old,id,rich\n" + "".join(
    f"{17 + i}.5,{'clerk' if i % 3 else 'cook'},{'yn'[i % 2]},{i},{'yes' if i % 5 else 'no'}\n" for i in range(20)
)


def a_release() -> GradientTrace:
    trace = np.arange(12.0).reshape(6, 2)
    return dpi.release_from_arrays(
        trace, trace + 1.0, noise_stddev=[1.0, 2.0], sample_rate=0.5, event=GaussianEvent(2.0), delta=1e-5
    )


SHARES = Part("category shares", GaussianEvent(20.0), "add_remove")


class _FileTarget(Target):
    """A loader that takes a path."""

    name = "input"

    def __init__(self, folder: Path) -> None:
        self.path = folder / self.name
        self.seeds = self.make(folder)

    def make(self, folder: Path) -> list[bytes]:
        raise ValueError("a target must make its seeds")

    def content(self, rng) -> bytes:
        return mutated_bytes(rng, rng.choice(self.seeds), self.seeds)

    def feed(self, rng) -> None:
        self.path.write_bytes(self.content(rng))
        self.load()

    def load(self) -> None:
        raise ValueError("a target must load its file")


class _ZipTarget(_FileTarget):
    """Half of the inputs are broken zips, the other half are whole zips of broken members."""

    document = "document.json"

    def content(self, rng) -> bytes:
        if rng.random() < 0.4:
            return super().content(rng)
        with zipfile.ZipFile(io.BytesIO(rng.choice(self.seeds))) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        for _ in range(rng.choice((1, 1, 2))):
            name = rng.choice(list(members))
            kind = rng.randrange(8)
            if kind == 0:
                members[rng.choice(("x.npy", "", "../x.npy", "params.npy", "runs.npy", "document.json"))] = members.pop(
                    name
                )
                break
            if kind == 1 and name.endswith(".npy"):
                members[name] = _odd_array(rng)
            elif name == self.document:
                members[name] = json_text(mutated_document(rng, json.loads(members[name])))
            else:
                members[name] = mutated_bytes(rng, members[name], list(members.values()))
        buffer = io.BytesIO()
        compression = rng.choice((zipfile.ZIP_STORED,) * 6 + (zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA))
        with zipfile.ZipFile(buffer, "w", compression) as archive:
            for name, value in members.items():
                archive.writestr(zipfile.ZipInfo(name or "empty"), value, compress_type=compression)
        return buffer.getvalue()


def _odd_array(rng) -> bytes:
    shape = tuple(rng.choice((0, 1, 2, 3, 6, 12)) for _ in range(rng.choice((0, 1, 1, 2, 2, 3))))
    kind = rng.choice(("<f8", "<f8", ">f8", "<f4", "<i8", "<c16", "|b1", "<U3", "|S4", "<M8[s]", "|O", "<f8"))
    if kind == "|O":
        value = np.full(shape, None)
    else:
        value = np.full(shape, rng.choice((0, 1)), dtype="<f8").astype(kind)
        if kind == "<f8" and value.size:
            value.flat[0] = rng.choice((0.0, -1.0, np.nan, np.inf, 1e308, 5e-324))
    content = io.BytesIO()
    np.save(content, value, allow_pickle=True)
    return content.getvalue()


class ReleaseFile(_ZipTarget):
    documented = (ReleaseFormatError,)
    document = "release.json"

    def make(self, folder):
        release = a_release()
        full = release.replace(
            grad_scale=np.ones((6, 2)), learning_rate=np.full(2, 0.1),
            n_records=50, max_grad_norm=1.0, noise_multiplier=2.0, event=run_event(2.0, 0.5, 6),
            other_parts=(SHARES,), leaks=("bounds were read",),
            model_spec=dpi.models.LogisticRegression(1).to_dict(), positions=release.params + 1.0,
        )  # fmt: skip
        rng = np.random.default_rng(1)
        X, y = rng.normal(size=(20, 2)), np.arange(20.0) % 2.0
        plan = dpi.plan_privacy(target_epsilon=2.0, target_delta=1e-5, sample_rate=0.5, n_steps=3)
        sites, network = (
            run_sites(model, X, y, plan=plan, n_records=20, random_source=InsecureRNG(1))
            for model in (dpi.models.ProbitRegression(2), dpi.models.BayesianNeuralNetwork(2, 2))
        )
        seeds = []
        for item in (release, full, sites, network):
            item.save(self.path)
            seeds.append(self.path.read_bytes())
        return seeds

    def load(self):
        release = dpi.load_release(self.path)
        repr(release)


class StudyFile(_ZipTarget):
    documented = (StudyFormatError,)

    def make(self, folder):
        result = dpi.coverage_study("beta-bernoulli", n_runs=6, n_draws=20, n_repeats=1, seed=1, n_threads=1)
        result.save(self.path)
        return [self.path.read_bytes()]

    def load(self):
        CoverageResult.load(self.path)


class StudyRuns(_ZipTarget):
    """A file in a study's checkpoint folder: damaged ones are computed again."""

    documented = (ValueError,)
    name = "runs-000000000-000000006.npz"

    def make(self, folder):
        self.path = folder / "store" / self.name
        self.store = Checkpoint(self.path.parent, {"study": "x"})
        runs = dpi.coverage_study("beta-bernoulli", n_runs=6, n_draws=20, n_repeats=1, seed=1, n_threads=1).runs
        self.store.write(0, runs)
        return [self.path.read_bytes()]

    def load(self):
        runs = self.store.read(0, 6)
        if runs is not None and (not isinstance(runs, RunStatistics) or runs.n_runs != 6):
            raise AssertionError("the runs of another file")


class StudyManifest(_FileTarget):
    documented = (ValueError,)
    name = "study.json"

    def make(self, folder):
        self.path = folder / "manifest" / self.name
        Checkpoint(self.path.parent, {"study": "x", "n": [1, 2.5, None]})
        return [self.path.read_bytes()]

    def content(self, rng):
        if rng.random() < 0.5:
            return super().content(rng)
        return json_text(mutated_document(rng, json.loads(rng.choice(self.seeds))))

    def load(self):
        Checkpoint(self.path.parent, {"study": "x", "n": [1, 2.5, None]})


class SchemaFile(_FileTarget):
    documented = (SchemaError,)

    def make(self, folder):
        return [SCHEMA.encode(), Schema.from_toml(SCHEMA).to_toml().encode()]

    def load(self):
        schema = Schema.load(self.path)
        Schema.from_toml(schema.to_toml())


class SchemaDocument(Target):
    documented = (SchemaError,)

    def __init__(self, folder):
        self.document = json.loads(json.dumps(Schema.from_toml(SCHEMA).to_dict()))

    def feed(self, rng):
        Schema.from_dict(mutated_document(rng, self.document))


class TableFile(_FileTarget):
    """The records themselves: a bad file is refused without an undocumented error."""

    documented = (RecordError, SchemaError)
    name = "people.csv"

    def make(self, folder):
        self.schema = Schema.from_toml(SCHEMA)
        return [TABLE.encode(), ("\ufeff" + TABLE.replace("\n", "\r\n")).encode()]

    def load(self):
        table = read_table(self.path, self.schema)
        if not np.isfinite(table.X).all():
            raise AssertionError("a table that is not finite")


class GzipTableFile(TableFile):
    name = "people.csv.gz"

    def make(self, folder):
        return [gzip.compress(seed, mtime=0) for seed in super().make(folder)]

    def content(self, rng):
        if rng.random() < 0.5:
            return super().content(rng)
        plain = gzip.decompress(rng.choice(self.seeds))
        return gzip.compress(mutated_bytes(rng, plain, [plain]), 1, mtime=0)


class TableLines(TableFile):
    """One line among others: whatever is in it, the others are read as without it, or the file is refused."""

    def make(self, folder):
        self.path.write_text(TABLE)
        self.schema = Schema.from_toml(SCHEMA)
        self.right = read_table(self.path, self.schema)
        self.header, *self.lines = TABLE.encode().splitlines(keepends=True)
        return []

    def feed(self, rng):
        line = mutated_bytes(rng, rng.choice(self.lines).rstrip(), self.lines) + rng.choice((b"\n", b"\r\n", b"\n\n"))
        before = rng.randrange(len(self.lines) + 1)
        self.path.write_bytes(b"".join((self.header, *self.lines[:before], line, *self.lines[before:])))
        found = read_table(self.path, self.schema)
        extra = len(found.X) - len(self.lines)
        if not 0 <= extra <= line.count(b"\n"):
            raise AssertionError("a line is read as more than its lines, or took others away")
        for ours, right in ((found.X, self.right.X), (found.y, self.right.y)):
            others = np.concatenate((ours[:before], ours[before + extra :]))
            if not np.array_equal(others, right):
                raise AssertionError("a line changed how others are read")


class LedgerFile(_FileTarget):
    documented = (LedgerError,)

    def make(self, folder):
        self.good = folder / "good.ledger"
        seeds = []
        ledger = dpi.PrivacyLedger.create(self.good)
        account = ledger.add_dataset("a", budget=(5.0, 1e-5))
        ledger.add_dataset("b", adjacency="zero_out")
        ledger.add_dataset("c", budget=(1.0, 1e-5), composition="filter")
        for count in (2, 30):
            for _ in range(count):
                with charge_run(
                    account, GaussianEvent(50.0), adjacency="add_remove", mechanism="m", secure=True, delta=1e-5
                ) as charge:
                    charge.begin()
            seeds.append(self.good.read_bytes())
        return seeds

    def load(self):
        for name in dpi.PrivacyLedger(self.path).datasets:
            dpi.accounting.LedgerAccount(self.path, name).runs()


class LedgerRows(LedgerFile):
    """Rows exchanged by SQL, the triggers put back and the chain made anew: only the meaning is wrong."""

    def make(self, folder):
        seeds = super().make(folder)
        self.path.write_bytes(seeds[0])
        self.entries = [
            (entry.kind, json.loads(json.dumps(entry.content))) for entry in dpi.PrivacyLedger(self.path).entries()
        ]
        return seeds

    def feed(self, rng):
        entries = [list(entry) for entry in self.entries]
        for _ in range(rng.choice((1, 1, 2))):
            at = rng.randrange(len(entries))
            kind = rng.randrange(6)
            if kind == 0:
                del entries[at]
            elif kind == 1:
                entries.insert(rng.randrange(len(entries) + 1), list(rng.choice(self.entries)))
            elif kind == 2:
                entries[at][0] = rng.choice(("ledger", "dataset", "charge", "cancel", "finish", "", "x"))
            else:
                entries[at][1] = mutated_document(rng, entries[at][1])
            if not entries:
                entries = [list(self.entries[0])]
        rows = []
        for number, (kind, content) in enumerate(entries):
            text = json.dumps(content)
            digest = ledger_file._digest(rows[-1].digest if rows else "", number, kind, text)
            rows.append(ledger_file.LedgerEntry(number, kind, content if isinstance(content, dict) else {}, digest))
        read_state(rows)


class RunCheckpointFile(_FileTarget):
    documented = (CheckpointError,)

    def make(self, folder):
        seeds = []
        place = RunCheckpoint(folder / "seed")
        arrays = {"next": np.arange(4.0), "params": np.arange(12.0).reshape(3, 4), "empty": np.empty((0, 4))}
        new = run_checkpoint.RunRecord(
            description={"a": [1, 2.5]}, key=bytes(32), tag_key=bytes(32), token=bytes(32), run="0" * 64
        )
        for record in (new, run_checkpoint.replace(new, token=None, tag=bytes(32), step=3, arrays=arrays)):
            place.save(record)
            seeds.append(place.path.read_bytes())
        self.place = RunCheckpoint(self.path)
        return seeds

    def content(self, rng):
        if rng.random() < 0.3:
            return super().content(rng)
        magic = run_checkpoint._MAGIC
        body = rng.choice(self.seeds)[len(magic) + 32 :]
        if rng.random() < 0.5:
            length = int.from_bytes(body[:8], "little")
            text = json_text(mutated_document(rng, json.loads(body[8 : 8 + length])))
            body = len(text).to_bytes(8, "little") + text + body[8 + length :]
        else:
            body = mutated_bytes(rng, body, self.seeds)
        return magic + hashlib.sha256(body).digest() + body

    def load(self):
        self.place.load()


class PlainDocuments(Target):
    """Events, plans and models from plain data."""

    documented = (ValueError,)

    def __init__(self, folder):
        plan = PrivacyPlan.from_noise_multiplier(2.0, 0.5, 3, 1e-5)
        self.events = [plan.event.to_dict(), dpi.accounting.Composed([plan.event, GaussianEvent(1.0)]).to_dict()]
        self.plan = plan.to_dict()
        self.models = [
            dpi.models.LogisticRegression(2, feature_names=("a", "b")).to_dict(),
            dpi.models.LinearRegression(2).to_dict(),
            dpi.models.DirichletCategorical((1.0, 2.0)).to_dict(),
        ]
        self.part = SHARES.to_dict()

    def feed(self, rng):
        kind = rng.randrange(4)
        if kind == 0:
            event_from_dict(mutated_document(rng, rng.choice(self.events)))
        elif kind == 3:
            # It documents TypeError too, which the others must not raise.
            try:
                part_from_dict(mutated_document(rng, self.part))
            except TypeError as error:
                raise ValueError("no part") from error
        elif kind == 1:
            PrivacyPlan.from_dict(mutated_document(rng, self.plan))
        else:
            model_from_dict(mutated_document(rng, rng.choice(self.models)))


class FitPlanFile(_FileTarget):
    documented = (ReleaseFormatError,)
    name = "plan.json"

    def make(self, folder):
        models = (
            dpi.models.LogisticRegression(2, feature_names=("a", "b")),
            dpi.models.PoissonRegression(2),
            dpi.models.BetaBernoulli(),
        )
        seeds = []
        for model in models:
            write_plan(dpi.plan_fit(model, epsilon=1.0, delta=1e-5, n_records=500), folder)
            seeds.append(self.path.read_bytes())
        return seeds

    def content(self, rng):
        if rng.random() < 0.3:
            return super().content(rng)
        return json_text(mutated_document(rng, json.loads(rng.choice(self.seeds))))

    def load(self):
        plan, _ = load_plan(self.path.parent, None)
        str(plan)
        plan.to_dict()


LOADERS = (
    FitPlanFile,
    ReleaseFile,
    StudyFile,
    StudyRuns,
    StudyManifest,
    SchemaFile,
    SchemaDocument,
    TableFile,
    GzipTableFile,
    TableLines,
    LedgerFile,
    LedgerRows,
    RunCheckpointFile,
    PlainDocuments,
)
