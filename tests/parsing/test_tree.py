"""Trees are read however they stand on lines, written so that they read back, and prepared as parsers need them."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from strategies import TREES

from nmt.parsing.tree import MalformedTree, Tree, parse_tree, prepare_tree, read_tree_lines, read_trees, tree_files
from nmt.system.errors import UserError
from nmt.text.lines import read_lines

DEEP = 30_000
DEEP_TEXT = "(A " * DEEP + "(B b)" + ")" * DEEP
SLEEPS = "(S (NP (DT The) (NN cat)) (VP (VBZ sleeps)) (. .))"


def write(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trees")


# --- the tree itself ---------------------------------------------------------------------------------------------


def test_a_tree_knows_its_words_and_tags() -> None:
    tree = parse_tree(SLEEPS)
    assert tree.leaves() == ["The", "cat", "sleeps", "."]
    assert tree.pos() == [("The", "DT"), ("cat", "NN"), ("sleeps", "VBZ"), (".", ".")]
    assert not tree.is_preterminal
    assert [child.is_preterminal for child in tree.children if isinstance(child, Tree)] == [False, False, True]
    assert str(tree) == SLEEPS
    assert repr(tree) == f"parse_tree({SLEEPS!r})"


@given(tree=TREES)
def test_every_tree_survives_the_round_trip(tree: Tree) -> None:
    assert parse_tree(str(tree)) == tree
    assert eval(repr(tree), {"parse_tree": parse_tree}) == tree
    assert "\n" not in str(tree)
    assert hash(parse_tree(str(tree))) == hash(tree)


def test_no_depth_is_too_deep() -> None:
    tree, other = parse_tree(DEEP_TEXT), Tree("A", parse_tree(DEEP_TEXT).children)
    assert tree == other
    assert hash(tree) == hash(other)
    assert repr(tree) == f"parse_tree({DEEP_TEXT!r})"
    assert (tree.leaves(), tree.pos()) == (["b"], [("b", "B")])
    assert str(prepare_tree(tree)) == f"(TOP {DEEP_TEXT})"
    assert str(prepare_tree(parse_tree(DEEP_TEXT.replace("A", "")))) == "(TOP (B b))"
    with pytest.raises(ValueError, match="column 1: this bracket is never closed"):
        parse_tree("(" * DEEP)
    with pytest.raises(ValueError, match="column 1: there is no bracket to close"):
        parse_tree(")" * DEEP)


def test_the_drawing_has_a_line_for_each_constituent() -> None:
    text = """
        (TOP (S (NP (NP (DT The) (NN cat)) (PP (IN on) (NP (DT the) (NN mat))))
          (VP (MD will) (RB not) (VP (VB move) (, ,) (VP (VB sleep)))) (. .)))"""
    assert parse_tree(text).pretty().split("\n") == [
        "TOP",
        "└─ S",
        "   ├─ NP",
        "   │  ├─ NP  The cat",
        "   │  └─ PP",
        "   │     ├─ on",
        "   │     └─ NP  the mat",
        "   ├─ VP",
        "   │  ├─ will not",
        "   │  └─ VP",
        "   │     ├─ move ,",
        "   │     └─ VP  sleep",
        "   └─ .",
    ]
    assert parse_tree("(NP (DT the) (NN dog))").pretty() == "NP  the dog"
    assert parse_tree("(NN dog)").pretty() == "NN  dog"


# --- reading -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "trees"),
    [
        ("", []),
        (SLEEPS, [SLEEPS]),
        (f"\n\n{SLEEPS}\n\n\n{SLEEPS}\n\n", [SLEEPS, SLEEPS]),
        (f"{SLEEPS}{SLEEPS} {SLEEPS}", [SLEEPS] * 3),
        (SLEEPS.replace(" ", "\r\n   "), [SLEEPS]),
        (SLEEPS.replace("(", " ( ").replace(")", " ) "), [SLEEPS]),
        (SLEEPS.replace(" (", "("), [SLEEPS]),
        (f"\ufeff{SLEEPS}", [SLEEPS]),
        ("( (S (NP (NNP Mary))\n     (VP (VBZ sings)) ))\n", ["( (S (NP (NNP Mary)) (VP (VBZ sings))))"]),
        ("((S (NN a)))", ["( (S (NN a)))"]),
        ("( (S (NN a)) (NP (NN b)))", ["( (S (NN a)) (NP (NN b)))"]),
        ("(S (NN\na\n))\n(S\n(NN a))(S (NN a)\n)", ["(S (NN a))"] * 3),
        ("(NP(DT the)(NN cat))", ["(NP (DT the) (NN cat))"]),
        ("% one\n# (two\n (NN a)\n\n; three )\n*x*x* four\n(NN b)\n# five", ["(NN a)", "(NN b)"]),
        ("(S (# #)\n(% %)\n(; ;))", ["(S (# #) (% %) (; ;))"]),
        ("(S (NN a\u00a0b\u2028c\x85d))", ["(S (NN a\u00a0b\u2028c\x85d))"]),
    ],
)
@pytest.mark.parametrize("name", ["x.mrg", "x.trees.gz"])
def test_trees_are_read_however_they_stand_on_lines(tmp_path: Path, name: str, text: str, trees: list[str]) -> None:
    assert list(map(str, read_trees(write(tmp_path / name, text)))) == trees


HOSTILE = st.lists(st.sampled_from(["(", ")", "(", ")", " ", "\n", "a", "b", "(a b)"]), max_size=14).map("".join)


def is_tree(text: str) -> bool:
    """Whether a text of the letters a and b is a tree: the grammar applied by replacing, with T for a tree."""
    text = re.sub(r"\(\s*[ab]+\s+[ab]+\s*\)", "T", text)
    while text != (text := re.sub(r"\(\s*(?:[ab]+(?=[\sT]))?\s*T[\sT]*\)", "T", text)):
        pass
    return re.fullmatch(r"\s*T\s*", text) is not None


@settings(max_examples=300)
@given(text=HOSTILE)
@example(text="((a b)(a b))")
@example(text="(a (a b) b)")
@example(text="(a\nb)")
@example(text="(aT")
def test_what_is_no_tree_is_an_error_and_nothing_else_is(text: str) -> None:
    if is_tree(text):
        tokens = re.compile(r"[()]|\w+")
        assert tokens.findall(str(parse_tree(text))) == tokens.findall(text)
        return
    with pytest.raises(MalformedTree) as error:
        parse_tree(text)
    lines = text.split("\n")
    assert 1 <= error.value.line <= len(lines)
    assert 1 <= error.value.column <= max(1, len(lines[error.value.line - 1]))


MALFORMED = [
    ("(S (NP (NN a))", 1, 1, "this bracket is never closed"),
    ("(NN a)\n\n  (S (NP (NN a))\n(NN b)\n", 3, 3, "this bracket is never closed"),
    ("(NN a)\n )", 2, 2, "there is no bracket to close"),
    ("()", 1, 2, "nothing stands in ()"),
    ("(S\n  (NN\n ))", 3, 2, "nothing stands in (NN)"),
    ("(S ((NN a) ()))", 1, 13, "nothing stands in ()"),
    ("(S (NN a) b)", 1, 11, "a word must stand alone with its tag: (TAG b)"),
    ("(S a (NN b))", 1, 6, "a word must stand alone with its tag: (TAG a)"),
    ("(S\n# (NN a)\n)", 2, 3, "a word must stand alone with its tag: (TAG #)"),  # no comment within a tree
    ("words (NN a)", 1, 1, "'words' stands outside of brackets"),
    ("(NN a) words", 1, 8, "'words' stands outside of brackets"),
]


@pytest.mark.parametrize(("text", "line", "column", "reason"), MALFORMED)
def test_errors_name_file_line_and_column(tmp_path: Path, text: str, line: int, column: int, reason: str) -> None:
    path = write(tmp_path / "x.mrg", text)
    with pytest.raises(UserError) as error:
        list(read_trees(path))
    assert error.value.message == f"{path}:{line}:{column}: {reason}"
    with pytest.raises(ValueError, match=re.escape(f"line {line}, column {column}: {reason}")):
        parse_tree(text)


def test_a_folder_is_its_mrg_files_in_order(tmp_path: Path) -> None:
    for name in ("02/wsj_0202.mrg", "02/wsj_0201.mrg", "01/wsj_0101.mrg", "z.mrg"):
        write(tmp_path / name, f"(NN {name})")
    write(tmp_path / "02" / "readme.txt", "no tree")
    (tmp_path / "empty.mrg").mkdir()
    names = ["01/wsj_0101.mrg", "02/wsj_0201.mrg", "02/wsj_0202.mrg", "z.mrg"]
    assert tree_files(tmp_path) == [tmp_path / name for name in names]
    assert [tree.children[0] for tree in read_trees(tmp_path)] == names
    assert tree_files(tmp_path / "z.mrg") == [tmp_path / "z.mrg"]
    with pytest.raises(UserError, match=r"empty\.mrg: no file in this folder or below ends in \.mrg"):
        list(read_trees(tmp_path / "empty.mrg"))
    with pytest.raises(UserError, match="missing: cannot be read"):
        list(read_trees(tmp_path / "missing"))


def test_links_to_folders_are_followed_but_in_no_circle(tmp_path: Path) -> None:
    one, other = (write(tmp_path / "corpus" / name, f"(NN {name[0]})") for name in ("a/a.mrg", "b/b.mrg"))
    treebank = tmp_path / "treebank"
    treebank.mkdir()
    for name in ("a", "b"):
        (treebank / name).symlink_to(tmp_path / "corpus" / name)
        (tmp_path / "corpus" / name / "up").symlink_to(tmp_path / "corpus")
    assert [str(tree) for tree in read_trees(treebank)] == ["(NN a)", "(NN b)"]
    assert tree_files(tmp_path / "corpus") == [one, other]


def test_a_tree_that_never_ends_is_reported_where_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.parsing.tree.LONGEST", 1000)
    path = write(tmp_path / "x.mrg", f"{SLEEPS}\n" * 99 + " (S (NP (NN a))\n" + f"{SLEEPS}\n" * 99)
    with pytest.raises(UserError, match=r"x\.mrg:100:2: a tree has at most 1,000 characters"):
        list(read_trees(path))


@pytest.mark.parametrize("text", ["(S (VB 0=is) (NP (NN 2=it) (. 1=?)))", "(TOP (NN 0=Rain))"])
def test_discontinuous_brackets_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match=r"x\.mrg:2: is in discontinuous brackets, with a number before each"):
        list(read_trees(write(tmp_path / "x.mrg", f"(S (NN 0=a) (NN b))\n{text}")))
    assert [str(tree) for tree in read_tree_lines([text])] == [text]  # a parser's words are those of its input


def test_comments_are_no_trees(tmp_path: Path) -> None:
    text = f"#1 {SLEEPS}\n% checked (by Ann) twice (a (b\n# (two\n; ( (S (NN a)) )\n{SLEEPS}\n*x* (x)"
    assert len(list(read_trees(write(tmp_path / "x.mrg", text)))) == 1
    with pytest.raises(UserError, match=r"y\.mrg:1:1: all trees are in comments, which begin with"):
        list(read_trees(write(tmp_path / "y.mrg", f"#1 {SLEEPS}\n#2 {SLEEPS}")))


LINES = [SLEEPS, "", "(NN a)", " \t\r", "()", "(())", " ( ( ) ) ", "(ROOT)", "(TOP )", "(NN b)"]
LINE_TREES = [SLEEPS, None, "(NN a)", *[None] * 6, "(NN b)"]


def test_hypotheses_stand_one_on_a_line_and_an_empty_one_is_none(tmp_path: Path) -> None:
    path = write(tmp_path / "hyp.gz", "\ufeff" + "\n".join(LINES))
    for trees in (read_tree_lines(read_lines(path)), read_tree_lines(iter(LINES))):
        assert [tree and str(tree) for tree in trees] == LINE_TREES


@pytest.mark.parametrize(
    ("line", "column", "reason"),
    [
        ("(NN a) (NN b)", 1, "2 trees stand where one must"),
        ("# comment", 1, "0 trees stand where one must"),
        ("((()))", 4, "nothing stands in ()"),
    ],
)
def test_a_hypothesis_that_is_no_tree_is_an_error(tmp_path: Path, line: str, column: int, reason: str) -> None:
    trees = read_tree_lines(["(NN a)", line], "hyp")
    assert str(next(trees)) == "(NN a)"
    with pytest.raises(UserError) as error:
        next(trees)
    assert error.value.message == f"hyp:2:{column}: {reason}"
    path = write(tmp_path / "hyp", f"(NN a)\n{line}")
    with pytest.raises(UserError, match=re.escape(f"{path}:2:{column}: ")):
        list(read_tree_lines(read_lines(path), str(path)))


# --- preparation -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "prepared"),
    [
        (SLEEPS, f"(TOP {SLEEPS})"),
        (f"( {SLEEPS})", f"(TOP {SLEEPS})"),
        (f"(ROOT {SLEEPS})", f"(TOP {SLEEPS})"),
        (f"(S1 {SLEEPS})", f"(TOP {SLEEPS})"),
        (f"(TOP {SLEEPS})", f"(TOP {SLEEPS})"),
        (f"(TOP (ROOT ( (S1 {SLEEPS}))))", f"(TOP {SLEEPS})"),
        ("( (S (NN a)) (NP (NN b)))", "(TOP (S (NN a)) (NP (NN b)))"),
        ("( (TOP (S (NN a))) (TOP (NN b)) (. .))", "(TOP (S (NN a)) (NN b) (. .))"),
        ("(S (TOP (NN a)))", "(TOP (S (TOP (NN a))))"),  # no root, and so it stays
        ("(S ( (NN a) ( (NP (NN b)))))", "(TOP (S (NN a) (NP (NN b))))"),
        ("(NN a)", "(TOP (NN a))"),
        ("(ROOT a)", "(TOP (ROOT a))"),
        ("(NP-SBJ-1 (NN a))", "(TOP (NP (NN a)))"),
        ("(NP=2 (NN a))", "(TOP (NP (NN a)))"),
        ("(S-TPC=1-2 (NN-X a))", "(TOP (S (NN a)))"),
        ("(TOP (PRN (-LRB- -LRB-) (NP (NN a-b=c)) (-RRB- -RRB-)))",) * 2,
        ("(TOP (S (- -) (= =) (-X- x) (=Y y)))",) * 2,
        ("(S (NP-SBJ (-NONE- *T*-1)) (VP (VB go)))", "(TOP (S (VP (VB go))))"),
        ("(S (NP (NP (-NONE- *)) (SBAR (-NONE- 0) (S (-NONE- *T*)))) (VP (VB go)))", "(TOP (S (VP (VB go))))"),
        ("(TOP (S (-NONE- (NN a))))",) * 2,  # a constituent of that name is no trace
        ("( (S (NP (-NONE- *))))", None),
        ("(-NONE- *)", None),
    ],
)
def test_preparation(text: str, prepared: str | None) -> None:
    tree = prepare_tree(parse_tree(text))
    assert (tree and str(tree)) == prepared


def test_what_preparation_strips_can_be_kept() -> None:
    tree = parse_tree("(ROOT (S-ADV (NP-SBJ=1 (-NONE- *-1)) (VP (VB go))))")
    assert str(prepare_tree(tree, functions=True)) == "(TOP (S-ADV (VP (VB go))))"
    assert str(prepare_tree(tree, traces=True)) == "(TOP (S (NP (-NONE- *-1)) (VP (VB go))))"
    assert str(prepare_tree(tree, functions=True, traces=True)) == str(tree).replace("ROOT", "TOP")


def naively(tree: Tree, at_top: bool = True) -> list[Tree]:
    """What a tree leaves under TOP."""
    if tree.is_preterminal:
        return [] if tree.label == "-NONE-" else [Tree(naive_label(tree.label), tree.children)]
    label = naive_label(tree.label)
    spliced = label == "" or (at_top and label in ("TOP", "ROOT", "S1"))
    children = [t for child in tree.children if isinstance(child, Tree) for t in naively(child, at_top and spliced)]
    if spliced or not children:
        return children
    return [Tree(label, tuple(children))]


def naive_label(label: str) -> str:
    return label if label[:1] in ("-", "=") else re.split("[-=]", label)[0]


@given(tree=TREES)
def test_preparation_is_that_of_the_plain_recursion(tree: Tree) -> None:
    children = naively(tree)
    prepared = prepare_tree(tree)
    assert prepared == (Tree("TOP", tuple(children)) if children else None)
    if prepared is not None:
        assert prepare_tree(prepared) == prepared
        assert parse_tree(str(prepared)) == prepared
