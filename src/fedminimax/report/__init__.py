"""Reports: one page, figures and tables from the folders that runs leave, or from results; and a page that watches a run.

- :func:`report` writes the page; ``fedminimax report`` and ``fedminimax compare`` do so from the command line.
- :func:`summary` and :func:`rich_table` give the table: who is best, and whether the lead is more than noise.
- :mod:`~fedminimax.report.watch` shows an experiment while it runs.
"""

from fedminimax.report.evidence import Evidence, summary
from fedminimax.report.material import Material, gather
from fedminimax.report.tables import rich_table
from fedminimax.report.write import report

__all__ = ["Evidence", "Material", "gather", "report", "rich_table", "summary"]
