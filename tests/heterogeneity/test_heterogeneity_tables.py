"""Tables of counts: from federations and from files, with errors that say what is wrong with a file."""

import json
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from muster.core.errors import DataError
from muster.data.federated import Dataset, FederatedData, Index, Samples
from muster.heterogeneity.tables import ColumnNames, Counts, read_counts

LONG = "client,class,attribute,count\nA,cat,day,3\nA,dog,night,4\nB,cat,night,5\nA,cat,day,1\n"


def written(tmp_path, name, content):
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    return path


def test_long_csv(tmp_path):
    counts = read_counts(written(tmp_path, "a.csv", LONG))
    assert counts.table.tolist() == [[[4, 0], [0, 4]], [[0, 5], [0, 0]]]
    assert counts.table.dtype == np.int64
    assert (counts.clients, counts.classes, counts.attributes) == (("A", "B"), ("cat", "dog"), ("day", "night"))
    assert counts.has_attributes
    assert counts.sizes.tolist() == [8, 5]
    assert counts.histograms.tolist() == [[4, 4], [5, 0]]
    assert counts.group_name(1, 0) == "dog, day"


def test_long_csv_without_attributes(tmp_path):
    counts = read_counts(written(tmp_path, "a.csv", "count,class,client\n2,x,A\n\n3,y,B\n"))
    assert counts.table.tolist() == [[[2], [0]], [[0], [3]]]
    assert not counts.has_attributes
    assert counts.group_name(1, 0) == "y"


def test_wide_csv(tmp_path):
    counts = read_counts(written(tmp_path, "a.csv", "\ufeffhospital,healthy,ill\nNorth,10,2\nSouth,0,7\n"))
    assert counts.table[:, :, 0].tolist() == [[10, 2], [0, 7]]
    assert counts.clients == ("North", "South")
    assert counts.classes == ("healthy", "ill")


SAMPLES = "scan,client,label,age\n1.png,A,ill,30\n2.png,B,healthy,41\n3.png,A,ill,52\n4.png,A,healthy,63\n"


def test_a_row_for_each_sample(tmp_path):
    counts = read_counts(written(tmp_path, "a.csv", SAMPLES))
    assert counts.table[:, :, 0].tolist() == [[2, 1], [0, 1]]
    assert (counts.clients, counts.classes, counts.has_attributes) == (("A", "B"), ("ill", "healthy"), False)
    named = read_counts(written(tmp_path, "a.csv", SAMPLES), ColumnNames(label="client", client="label"))
    assert named.table[:, :, 0].tolist() == [[2, 0], [1, 1]]
    groups = read_counts(written(tmp_path, "a.csv", SAMPLES), ColumnNames(attribute="age"))
    assert groups.table.shape == (2, 2, 4)
    assert groups.attributes == ("30", "41", "52", "63")
    with pytest.raises(DataError, match="no column 'hospital'"):
        read_counts(written(tmp_path, "a.csv", SAMPLES), ColumnNames(client="hospital"))


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_other_separators(tmp_path, separator):
    counts = read_counts(written(tmp_path, "a.csv", LONG.replace(",", separator)))
    assert counts.table.tolist() == read_counts(written(tmp_path, "b.csv", LONG)).table.tolist()
    quoted = 'client;class;count\n"A; north";x, or y;3\n'
    assert read_counts(written(tmp_path, "c.csv", quoted)).clients == ("A; north",)
    assert read_counts(written(tmp_path, "c.csv", quoted)).classes == ("x, or y",)


@pytest.mark.parametrize(
    ("encoding", "remark"),
    [
        ("latin-1", "a.csv is not in UTF-8: it was read as Latin-1"),
        ("utf-8", ""),
        ("utf-8-sig", ""),
        ("utf-16", ""),
    ],
)
def test_other_encodings(tmp_path, encoding, remark):
    path = tmp_path / "a.csv"
    path.write_bytes("client;class;count\nKöln;größer;3\nNîmes;größer;4\n".encode(encoding))
    counts = read_counts(path)
    assert (counts.clients, counts.classes, counts.remark) == (("Köln", "Nîmes"), ("größer",), remark)


def test_parquet(tmp_path):
    pq.write_table(
        pa.table({"client": [1, 2, 1], "class": ["x", "y", "y"], "picture": [[1.0], [2.0], [3.0]]}),
        tmp_path / "a.parquet",
    )
    counts = read_counts(tmp_path / "a.parquet")
    assert counts.table[:, :, 0].tolist() == [[1, 1], [0, 1]]
    assert counts.clients == ("1", "2")
    pq.write_table(pa.table({"client": ["A", "B"], "x": [3, 4], "y": [0, 1]}), tmp_path / "wide.parquet")
    assert read_counts(tmp_path / "wide.parquet").table[:, :, 0].tolist() == [[3, 0], [4, 1]]
    pq.write_table(pa.table({"client": ["A", None], "class": [1, 2]}), tmp_path / "gap.parquet")
    with pytest.raises(DataError, match="row 3 has nothing in the column 'client'"):
        read_counts(tmp_path / "gap.parquet")
    with pytest.raises(DataError, match="does not hold a table"):
        read_counts(written(tmp_path, "b.parquet", "no table"))


def test_parquet_without_what_reads_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"(?s)pyarrow.*is not installed.*pip install pyarrow"):
        read_counts(written(tmp_path, "a.parquet", ""))


def test_names_are_for_tables(tmp_path):
    with pytest.raises(DataError, match="no columns"):
        read_counts(written(tmp_path, "a.json", "[[1, 2]]"), ColumnNames(client="x"))


def test_npy_and_json(tmp_path):
    table = np.arange(1, 13).reshape(2, 3, 2)
    np.save(tmp_path / "a.npy", table)
    assert np.array_equal(read_counts(tmp_path / "a.npy").table, table)
    plain = read_counts(written(tmp_path, "b.json", json.dumps(table[:, :, 0].tolist())))
    assert plain.table.shape == (2, 3, 1)
    assert plain.class_name(2) == "class 2"
    assert plain.client(1) == "1"
    named = {"counts": table.tolist(), "clients": ["A", "B"], "attributes": ["day", "night"]}
    counts = read_counts(written(tmp_path, "c.json", json.dumps(named)))
    assert counts.client(1) == "B"
    assert counts.group_name(0, 1) == "class 0, night"


def test_shares_stay_as_they_are(tmp_path):
    counts = read_counts(written(tmp_path, "a.json", "[[0.25, 0.75], [1, 0]]"))
    assert counts.table[:, :, 0].tolist() == [[0.25, 0.75], [1, 0]]


def test_federations():
    samples = Samples(np.zeros((4, 1)), np.array([0, 1, 1, 0]), attributes=np.array([0, 0, 1, 1]))
    index = Index.from_lists([[0, 1], [2, 3]])
    with_groups = Dataset("made", samples, samples, 2, attribute_values=2, attribute_names=("day", "night"))
    counts = Counts.of(FederatedData(with_groups, index))
    assert counts.table.tolist() == [[[1, 0], [1, 0]], [[0, 1], [0, 1]]]
    assert counts.group_name(0, 1) == "class 0, night"
    without = Counts.of(FederatedData(Dataset("made", samples, samples, 2), index))
    assert without.table.shape == (2, 2, 1)
    assert not without.has_attributes


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "1 2", "ends in .csv, .tsv, .parquet, .json, .npy"),
        ("a.csv", "", "it is empty"),
        ("a.csv", "client,class,count\n", "below the heading there are no rows"),
        ("a.csv", "client,a,b\n", "below the heading there are no rows"),
        ("a.csv", "client,a,a\nA,1,2\n", "'a' twice"),
        ("a.csv", "client;class;count\nA;x;1,5\n", "'1,5' is not a number"),
        ("a.csv", "client,class\nA,x\n,y\n", "row 3 has nothing in the column 'client'"),
        ("a.csv", "client,x\nA,many\n", "'many' is not a number.* --client and --label; .*: client, x"),
        ("a.csv", "Klinik;Diagnose\nA;krank\n", "--client and --label; .*: Klinik, Diagnose"),
        ("a.csv", "client,x,y\nA,1\n", "row 2 has 2 cells"),
        ("a.csv", "client,count\nA,1\n", "no column 'class'"),
        ("a.json", "{}", "no key 'counts'"),
        ("a.json", "[1, 2]", "shape"),
        ("a.json", "[[1, 2], [3]]", "table of counts"),
        ("a.json", '{"counts": [[1, 2]], "classes": ["x"]}', "names 1 classes, but its counts have 2"),
        ("a.json", "{", "table of counts"),
        ("a.npy", "no array", "table of counts"),
    ],
)
def test_bad_files(tmp_path, name, content, message):
    with pytest.raises(DataError, match=message):
        read_counts(written(tmp_path, name, content))


def test_missing_file(tmp_path):
    with pytest.raises(DataError, match="cannot read the counts"):
        read_counts(tmp_path / "nowhere.csv")


def test_the_index_of_pandas_comes_first(tmp_path):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"healthy": [10, 0], "ill": [2, 7]}, index=["North", "South"])
    for name in (None, "hospital"):
        table.rename_axis(name).to_parquet(tmp_path / "a.parquet")
        counts = read_counts(tmp_path / "a.parquet")
        assert (counts.clients, counts.classes) == (("North", "South"), ("healthy", "ill"))
        assert counts.table[:, :, 0].tolist() == [[10, 2], [0, 7]]
    # What is left of a numbering after rows were taken out names nobody, where a column has names.
    numbered = pandas.DataFrame({"hospital": ["East", "North", "South"], "healthy": [1, 10, 0], "ill": [1, 2, 7]})
    left = numbered[numbered.healthy != 1]
    as_numbers = left.assign(hospital=[8, 9]).rename(columns={"hospital": "client"})
    for rows, names in ((numbered, ("North", "South")), (left, ("North", "South")), (as_numbers, ("8", "9"))):
        rows.to_parquet(tmp_path / "a.parquet")
        counts = read_counts(tmp_path / "a.parquet")
        assert counts.clients[-2:] == names
        assert counts.classes == ("healthy", "ill")


def test_a_cell_that_is_too_long(tmp_path):
    with pytest.raises(DataError, match="cells cannot be told apart"):
        read_counts(written(tmp_path, "a.csv", f"client,x\n{'A' * 200_000},1\n"))


def test_tabs_may_be_said_by_the_suffix(tmp_path):
    counts = read_counts(written(tmp_path, "a.tsv", "clinic\till\twell\nA\t1\t2\nB\t3\t4\n"))
    assert counts.table[:, :, 0].tolist() == [[1, 2], [3, 4]]


def test_a_client_has_one_row_of_a_wide_table(tmp_path):
    with pytest.raises(DataError, match=r"'A' has 2 rows\. If it has one row per sample"):
        read_counts(written(tmp_path, "a.csv", "clinic,ill,well\nA,1,2\nB,3,4\nA,5,6\n"))


def test_a_column_that_is_not_there_is_told_with_the_option_that_names_it(tmp_path):
    path = written(tmp_path, "a.csv", "clinic,finding\nA,ill\n")
    with pytest.raises(DataError, match="no column 'class', which --label can name; one of clinic, finding"):
        read_counts(path, ColumnNames(client="clinic"))


@pytest.mark.parametrize(
    ("cell", "remark"), [("1.234", "a.csv has counts that are not whole numbers, such as 1.234"), ("0.5", "")]
)
def test_thousands_with_a_point_are_remarked_upon_and_shares_are_not(tmp_path, cell, remark):
    counts = read_counts(written(tmp_path, "a.csv", f"clinic,ill,well\nA,{cell},0.5\nB,1,0\n"))
    assert counts.remark.startswith(remark)
    assert bool(counts.remark) == bool(remark)
