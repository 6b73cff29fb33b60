"""A pool whose workers fill one shared array: only the numbers of the rows travel, the elements never do."""
import numpy

import shoal
import shoal.multiprocessing as mp

SIZE = 600


def mandelbrot_row(picture, row):
    """Counts the steps of each point of one row, in place."""
    point = numpy.linspace(-2, 0.6, SIZE) + 1j * (2.4 * row / SIZE - 1.2)
    z = numpy.zeros(SIZE, complex)
    for _ in range(50):
        inside = numpy.abs(z) < 2
        z[inside] = z[inside] ** 2 + point[inside]
        picture[row] += inside
    return row


def main():
    picture = shoal.zeros((SIZE, SIZE), "u1")  # a plain numpy array, in shared memory
    with mp.Pool(2) as pool:
        rows = pool.starmap(mandelbrot_row, [(picture, row) for row in range(SIZE)])
    assert rows == list(range(SIZE))
    print(f"{SIZE} rows, {numpy.mean(picture == 50):.1%} of the points are in the set")


if __name__ == "__main__":
    main()
