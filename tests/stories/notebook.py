"""A notebook that shows a cloud and its flow, run from start to end as on a colleague's machine."""

import nbclient
import nbformat

CELLS = (
    "import numpy as np, otflow as of",
    "mu = of.Particles(np.random.default_rng(0).normal(size=(20, 2))); mu",
    "field = of.SoftmaxAttention(np.eye(2), np.eye(2), -np.eye(2))",
    "of.flow(mu, field, of.RK4(), t1=1.0, dt=0.1, progress=True)",
)
book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
nbclient.NotebookClient(book, kernel_name="python3").execute()
cloud, run = (book.cells[k].outputs[-1].data["text/html"] for k in (1, 3))
assert "standard deviation" in cloud
assert "ok" in run
assert all("<table>" in html and "<img" in html for html in (cloud, run))
