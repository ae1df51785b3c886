"""Names of programs: what stays in every language, and what only looks like it."""

from __future__ import annotations

import pytest

from nmt.formats.terms import COPIED


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Use --verbose, --output=FILE or -v (-q).", ["--verbose", "--output", "-v", "-q"]),
        ("See foo.conf, /etc/foo/bar.conf and *.tar.gz.", ["foo.conf", "/etc/foo/bar.conf", "*.tar.gz"]),
        (r"Open C:\Users\Tom\a.txt, in D:\.", [r"C:\Users\Tom\a.txt", "D:\\"]),
        (r"From \\srv\a to \\srv\b", [r"\\srv\a", r"\\srv\b"]),
        (r"C:\Program Files (x86)\Our App\x to E:\\data", [r"C:\Program Files (x86)\Our App\x", r"E:\\data"]),
        (r"%APPDATA%\x and HKEY_CURRENT_USER\Software", [r"%APPDATA%\x", r"HKEY_CURRENT_USER\Software"]),
        (r"C: is full; either\or, \ and A:, i:\n, %s:\text", [r"\n", "%s"]),
        ("In ~/.config/x or .bashrc, in /usr/bin/", ["~/.config/x", ".bashrc", "/usr/bin/"]),
        ("Set GTK_PATH, $HOME and max_size", ["GTK_PATH", "$HOME", "max_size"]),
        ("call main(), a_b() or os.path.join() now", ["main()", "a_b()", "os.path.join()"]),
        ("By :user in “!link” (:url).", [":user", ":url"]),
        ("Note: this; a:b, 10:30, Hi!you", []),
        ("Usage: %prog [options] FILE", ["%prog"]),
        ("Press Ctrl+Q, Alt-F4, F10 or Ctrl+Shift+S.", ["Ctrl+Q", "Alt-F4", "F10", "Ctrl+Shift+S"]),
        ("编辑config.ini文件、/etc/passwd。", ["config.ini", "/etc/passwd"]),
        ("使用--all选项或-v。调用main()函数，MAX_SIZE太大", ["--all", "-v", "main()", "MAX_SIZE"]),
        (
            "Ctrl+Q를 누르세요. F1키, $HOME의 .bashrc를, :user님, %prog은",
            ["Ctrl+Q", "F1", "$HOME", ".bashrc", ":user", "%prog"],
        ),
        ("config.ini's", ["config.ini"]),
        ("Ctrl-Alt-Del, Alt-Tab, Shift+Foo, Ctrl-PgUp", ["Ctrl-Alt-Del", "Alt-Tab", "Shift+Foo", "Ctrl-PgUp"]),
        ("libm.so is, fcgi.so (a_b.so here)", ["libm.so", "fcgi.so", "a_b.so"]),
        ("!name and !link", ["!name", "!link"]),
        ("Fine :-) or ;) not :( but <3 :D, XD.", [":-)", ";)", ":(", "<3", ":D", "XD"]),
        ("a:b) 3:(2) x <30 (see: )", []),
        ("In 1912 or 155, 10 of $250, 300, 5,000, 10:30, 12-16, 12 000, 1990s", ["1912", "155", "250"]),
        ("135万人, 135 lakh, 150 million, 150 Milliarden, 150 miles, 150円", ["150", "150"]),
        ("The dog.[1] A cat [12] (5) dogs [a][2] [3](x) (30).", ["[1]", "[12]", "(30)"]),
        ("[1]", ["[1]"]),
        ("ولد عام ١٩١٢، １９１２年", []),
        ("In C++, C# and F#: C+, VC++, A#, C", ["C++", "C#", "F#"]),
        ("and/or, e.g. this, i.e. a well-known -- dash - x, TCP/IP, 24/7, cat.The, 3.5", []),
        ("-I am here.", []),
        ("“Well?” -A dog. -Y yo. -I'm fine", []),
        ("--Yes, he said. Lehrer/-in, Freund/-e, amigo(-a), 50%-a, K.-o.-Tropfen, ARM(F)-S, A.-M. Guerry", []),
        ("Super-Soaker, Win-Win-Lösung, Control-Center, Meta-Data, Alt-Berlin", []),
        ("Ton problème...c'est, un problème.c'est, I am tired.so I sleep", []),
        ("Lehrer_in und Schüler_innen", []),
        ("!hola amigo! !qué!", []),
        ("Morgen, d.h. heute, v.d.h. Dr. h.c. Maus, 100 a.c. en", []),
        ("foo.c. In a.h, x", ["foo.c", "a.h"]),
        ("Super-, Mega- und Alt-/Neubauten", []),
        ("Alt+, or Ctrl-, here", ["Alt+,", "Ctrl-,"]),
        ("He --as well-dressed men do-- left --slowly--.", []),
        ("Use --as or --fit-in and i--j", ["--as", "--fit-in"]),
        (
            "See `a b`, ``x``, :ref:`the page <p>`, `A link`_ and `b <http://x.y>`__",
            ["`a b`", "``x``", ":ref:`the page <p>`", "`A link`_", "`b <http://x.y>`__"],
        ),
        ("`old' ``style'', don`t and can`t", []),
        ("In [1]_, [#a]_, [CIT20]_ and |version|, but |dog|cat|, | a |", ["[1]_", "[#a]_", "[CIT20]_", "|version|"]),
        (
            r"Open C:\Program Files\foo\bar.exe, D:\ or \\srv\a B\c now (C:\\x).",
            [r"C:\Program Files\foo\bar.exe", "D:\\", r"\\srv\a B\c", r"C:\\x"],
        ),
        (r"One.\nTwo\tThree, 5 \ 3, \rho", [r"\n", r"\t"]),
        ("Sure? [y/N] (y/n/q), but (s/he) [file]", ["[y/N]", "(y/n/q)"]),
        ("Text (*.txt *.md);;All (*)", ["(*.txt *.md)", "(*)"]),
    ],
)
def test_names_of_programs_are_kept_and_words_are_not(text: str, names: list[str]) -> None:
    assert [text[slice(*span)] for span in COPIED.spans(text, linked=False)] == names


@pytest.mark.parametrize(
    "part", ["a_", "/a", "a.", "a-", "Ctrl+", "_", "a", "x::", "*.", "~/", "Super-", " --a", r"C:\A A", "C:\\a ", "\\"]
)
def test_a_long_run_of_what_may_be_a_name_is_read_once(part: str) -> None:
    text = part * 20_000 + " --all"
    assert text[slice(*COPIED.spans(text)[-1])] == "--all"
