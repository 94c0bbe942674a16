"""The private side: records go in, a :class:`~dpinfer.release.Release` comes out.

**Privacy.** The only package that reads records. No function of records leaves it without noise.
"""

import os

# GNU OpenMP lets idle threads spin for milliseconds.  A step takes a fraction of one, so on a machine with other work
# the spinning thread would keep its own step's other thread from running: spin for some microseconds, then sleep.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

from typing import TYPE_CHECKING

from dpinfer._lazy import lazy_names

if TYPE_CHECKING:
    from dpinfer.mechanism.bounded_sum import private_sum
    from dpinfer.mechanism.checkpoint import RunCheckpoint
    from dpinfer.mechanism.newton import NewtonPlan, plan_newton, run_newton
    from dpinfer.mechanism.noise_keys import OSRandomSource, RandomSource
    from dpinfer.mechanism.records import CodedRows, CudaRows
    from dpinfer.mechanism.silos.rows import Silos
    from dpinfer.mechanism.sites.dpsep import run_dp_sep
    from dpinfer.mechanism.sites.network_dpsep import NetworkSettings, network_plan_arguments, run_network_dp_sep
    from dpinfer.mechanism.sites.settings import SiteArguments
    from dpinfer.mechanism.sources.row_source import Records, RowSource, open_source
    from dpinfer.mechanism.sources.shards import ShardedRows, rows_of_dask
    from dpinfer.mechanism.sources.spark import rows_of_spark
    from dpinfer.mechanism.sources.streams import (
        rows_of_arrays,
        rows_of_arrow,
        rows_of_csv,
        rows_of_duckdb,
        rows_of_npy,
        rows_of_parquet,
    )
    from dpinfer.mechanism.statistic import default_clip, run_statistic
    from dpinfer.mechanism.trace.dpvi import run_dpvi
    from dpinfer.mechanism.units import Clusters, Units
    from dpinfer.mechanism.unknowns.releases import release_bounds, release_categories, release_count
    from dpinfer.recipes import FisherScaling, GradientArguments, largest_natural_rate, steady_rate

__all__ = [
    "Clusters",
    "CodedRows",
    "CudaRows",
    "FisherScaling",
    "GradientArguments",
    "NetworkSettings",
    "NewtonPlan",
    "OSRandomSource",
    "RandomSource",
    "Records",
    "RowSource",
    "RunCheckpoint",
    "ShardedRows",
    "Silos",
    "SiteArguments",
    "Units",
    "default_clip",
    "largest_natural_rate",
    "network_plan_arguments",
    "open_source",
    "plan_newton",
    "private_sum",
    "release_bounds",
    "release_categories",
    "release_count",
    "rows_of_arrays",
    "rows_of_arrow",
    "rows_of_csv",
    "rows_of_dask",
    "rows_of_duckdb",
    "rows_of_npy",
    "rows_of_parquet",
    "rows_of_spark",
    "run_dp_sep",
    "run_dpvi",
    "run_network_dp_sep",
    "run_newton",
    "run_statistic",
    "steady_rate",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".bounded_sum": "private_sum",
        ".checkpoint": "RunCheckpoint",
        ".newton": "NewtonPlan plan_newton run_newton",
        ".noise_keys": "OSRandomSource RandomSource",
        ".records": "CodedRows CudaRows",
        ".silos.rows": "Silos",
        ".sites.dpsep": "run_dp_sep",
        ".sites.network_dpsep": "NetworkSettings network_plan_arguments run_network_dp_sep",
        ".sites.settings": "SiteArguments",
        ".sources.row_source": "Records RowSource open_source",
        ".sources.shards": "ShardedRows rows_of_dask",
        ".sources.spark": "rows_of_spark",
        ".sources.streams": "rows_of_arrays rows_of_arrow rows_of_csv rows_of_duckdb rows_of_npy rows_of_parquet",
        ".statistic": "default_clip run_statistic",
        ".trace.dpvi": "run_dpvi",
        ".units": "Clusters Units",
        ".unknowns.releases": "release_bounds release_categories release_count",
        "dpinfer.recipes": "FisherScaling GradientArguments largest_natural_rate steady_rate",
    },
)
