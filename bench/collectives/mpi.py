"""Collectives of an MPI library between the processes that mpirun started: prints one line of JSON, milliseconds of each round.

    mpirun -n 2 python mpi.py [--bytes N]
"""
import argparse
import json
import time

import numpy
from mpi4py import MPI

WARMUP, ROUNDS = 3, 10


def timed(comm, run):
    times = []
    for i in range(WARMUP + ROUNDS):
        comm.Barrier()
        begin = time.perf_counter()
        run()
        if i >= WARMUP:
            times.append(round(1e3 * (time.perf_counter() - begin), 3))
    return times


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, default=64 << 20)
    size, comm = parser.parse_args().bytes, MPI.COMM_WORLD
    whole = numpy.ones(size // 4, numpy.float32)
    part = numpy.ones(size // 4 // comm.size, numpy.float32)
    rows = {
        "all_reduce": timed(comm, lambda: comm.Allreduce(MPI.IN_PLACE, whole)),
        "reduce_scatter": timed(comm, lambda: comm.Reduce_scatter_block(whole, part)),
        "all_gather": timed(comm, lambda: comm.Allgather(part, whole)),
    }
    if comm.rank == 0:
        print(json.dumps(rows), flush=True)


main()
