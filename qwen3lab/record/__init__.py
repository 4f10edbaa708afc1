"""record: a measurement round is opened, filled, sealed, and verified before anything is drawn from it. No torch here.

Reading order: archive.py (Round: open → fill → seal) → schema.py (what record.json holds) → sealing.py (the last step)
→ verify.py (every byte accounted for) → sealed.py (what a report gets). Beside them, one small idea each: canonical.py,
files.py, sums.py, index.py, frames.py, notebook.py, provenance.py, raw.py, problems.py.

The life of a round, under a data folder `root`:

    root/rounds/v01/20250131T120000Z-1a2b3c4d.open/   measuring   opened.json, frames as they are added, raw/
                                                      measured    + record.json, written last: all samples are on disk
    root/rounds/v01/20250131T120000Z-1a2b3c4d/        sealed      + notebook.ipynb, SHA256SUMS; a line in index.jsonl
    root/archive/20250131T120000Z-1a2b3c4d.tar.zst    raw outputs and traces; ignored by git, member hashes in the round

Whatever fails or is interrupted stays in its `.open` folder and never enters the index.

Who seals. A notebook cannot hold the output of the cell that is still running, so a round that is sealed from inside
its own kernel has no executed notebook, and says why. A runner that wants it in sets two variables for the kernel:

    QWEN3LAB_ROUND_SEALED_BY=runner   `Round.seal()` stops at "measured"
    QWEN3LAB_ROUND_MARK=FILE          and appends the path of its open folder to FILE, as one line

and calls `complete(open_folder, notebook=source, executed=output)` once the kernel has finished. No line: no round.
"""

from qwen3lab.record.archive import Round
from qwen3lab.record.problems import Problem, UnverifiedRound
from qwen3lab.record.schema import SCHEMA_VERSION, Record, SchemaError
from qwen3lab.record.sealed import SealedRound, extract, latest, rounds
from qwen3lab.record.sealing import complete, repair
from qwen3lab.record.verify import Check, check, check_all, verify, verify_all

__all__ = [
    "SCHEMA_VERSION",
    "Check",
    "Problem",
    "Record",
    "Round",
    "SchemaError",
    "SealedRound",
    "UnverifiedRound",
    "check",
    "check_all",
    "complete",
    "extract",
    "latest",
    "repair",
    "rounds",
    "verify",
    "verify_all",
]
