"""Arrays that people give on the command line: .npy and .csv, and what is said of those that are none."""

import struct

import numpy as np
import pytest

from offsupport.cli.diagnose import read_array
from offsupport.core.errors import FileError


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a,b\n\xff\xfe,2\n", "not CSV in UTF-8"),
        (b"1,2\n" + b"9" * 200_000 + b",2\n", "not CSV in UTF-8 .*field larger"),
        (b"x\n" + b"a" * 101 + b"\n", "has a field of 101 characters"),
        (b"", "has no rows"),
        (b"1,2\n3\n", "rows of different lengths"),
    ],
)
def test_what_is_no_csv_is_said(tmp_path, data, message):
    (tmp_path / "x.csv").write_bytes(data)
    with pytest.raises(FileError, match=message) as error:
        read_array(tmp_path / "x.csv")
    assert error.value.remedy


def test_csv_is_read_with_and_without_a_header(tmp_path):
    (tmp_path / "x.csv").write_bytes(b"\xef\xbb\xbfa,b\n1,2\n3,4\n")
    assert read_array(tmp_path / "x.csv").tolist() == [[1, 2], [3, 4]]
    (tmp_path / "y.csv").write_text("yes\nno\n")
    assert read_array(tmp_path / "y.csv").tolist() == ["yes", "no"]


def test_an_array_that_claims_terabytes_is_said(tmp_path):
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (5000000000000,), }\n"
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(80))
    with pytest.raises(FileError, match="claims 40000000000000 bytes of data, and the file has 80"):
        read_array(tmp_path / "x.npy")


@pytest.mark.parametrize("array", [np.arange(6.0).reshape(2, 3), np.array(["a", "bc"]), np.zeros((0, 3))])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_come_back(tmp_path, array, order):
    np.save(tmp_path / "x.npy", np.asarray(array, order=order))
    found = read_array(tmp_path / "x.npy")
    assert found.dtype == array.dtype
    assert np.array_equal(found, array)


def test_a_single_value_is_no_table(tmp_path):
    np.save(tmp_path / "x.npy", np.array(5))
    with pytest.raises(FileError, match="holds a single value"):
        read_array(tmp_path / "x.npy")
