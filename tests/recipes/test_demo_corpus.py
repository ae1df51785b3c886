"""The demonstration corpus: hand-checked translations, and properties of every sentence drawn."""

import re
from collections import Counter

import pytest
from demo_scripts import load_script, run_script

LABELS = {"TOP", "S", "SQ", "NP", "VP", "PP", "SBAR", "ADJP", "ADVP", "PRT", "WHNP", "WHPP"}

demo = load_script("demo_corpus")
np, pronoun = demo.noun_phrase, demo.PRONOUNS


def clause(subject, verb, *objects, tense="present", adverb=None, frame=0, more=()):
    """A clause whose objects fill the slots of one of the verb's frames in order."""
    slots = demo.VERBS[verb].frames[frame] if objects else ()
    complements = [demo.complement(phrase, slot) for phrase, slot in zip(objects, slots, strict=True)]
    return demo.Clause(subject, demo.VERBS[verb], tense, (*complements, *more), adverb)


def be(subject, adjective, **options):
    return clause(subject, "be", more=(demo.predicate(adjective),), **options)


def related(head, inner):
    """A noun phrase with a relative clause; its pronoun fills the last slot of the verb if it is not the subject."""
    is_subject = inner.subject.english.startswith("(WHNP")
    pronoun = demo.relative_pronoun(head)
    gap = None if is_subject else demo.complement(pronoun, inner.verb.frames[-1][-1])
    return demo.modify(head, demo.relative(inner, gap))


def adverbial(words):
    return (demo.TIMES | demo.FREQUENCIES)[words][0]


ME, YOU, HE, SHE, WE, THEY = (pronoun[word] for word in ("I", "you", "he", "she", "we", "they"))
NOT, PLACE = demo.NOT, demo.place(np("the", "garden"))
DOG, BOY, WOMAN, BOOK = np("the", "dog"), np("the", "boy"), np("the", "woman"), np("the", "book")
CHILDREN = np("the", "child", plural=True)


def because(sub, main):
    return demo.statement(main, demo.subordinate("because", sub))


GOLDEN = {
    "nominative and accusative": (
        demo.statement(clause(HE, "see", DOG)),
        "He sees the dog.",
        "Er sieht den Hund.",
    ),
    "inversion after an adverb": (
        demo.statement(clause(DOG, "see", np("a", "cat")), adverbial("today")),
        "Today the dog sees a cat.",
        "Heute sieht der Hund eine Katze.",
    ),
    "inversion after a contracted place": (
        demo.statement(clause(WE, "sleep", tense="past"), PLACE),
        "In the garden, we slept.",
        "Im Garten schliefen wir.",
    ),
    "dative before accusative, weak and mixed adjectives": (
        demo.statement(clause(np("the", "man", "old"), "give", np("his", "child", "small"), np("a", "book", "new"))),
        "The old man gives his small child a new book.",
        "Der alte Mann gibt seinem kleinen Kind ein neues Buch.",
    ),
    "dative plural, strong adjectives": (
        demo.statement(clause(np("many", "woman", "young", True), "help", np("two", "dog", "old", True))),
        "Many young women help two old dogs.",
        "Viele junge Frauen helfen zwei alten Hunden.",
    ),
    "irregular adjective stem, an before a vowel": (
        demo.statement(clause(HE, "buy", np("a", "lamp", "expensive"))),
        "He buys an expensive lamp.",
        "Er kauft eine teure Lampe.",
    ),
    "weak noun": (
        demo.statement(clause(ME, "wait", np("a", "student"))),
        "I wait for a student.",
        "Ich warte auf einen Studenten.",
    ),
    "possessives and dative pronoun": (
        demo.statement(clause(np("our", "sister"), "show", SHE, np("her", "bag", plural=True), tense="past")),
        "Our sister showed her her bags.",
        "Unsere Schwester zeigte ihr ihre Taschen.",
    ),
    "preposition with dative": (
        demo.statement(clause(demo.modify(BOY, demo.complement(DOG, demo.WITH)), "play", THEY, frame=1)),
        "The boy with the dog plays with them.",
        "Der Junge mit dem Hund spielt mit ihnen.",
    ),
    "preposition with accusative": (
        demo.statement(clause(WE, "buy", np("this", "apple"), np("the", "teacher"), frame=1)),
        "We buy this apple for the teacher.",
        "Wir kaufen diesen Apfel für den Lehrer.",
    ),
    "direction": (
        demo.statement(clause(np("the", "horse"), "go", np("the", "house"), tense="perfect")),
        "The horse has gone into the house.",
        "Das Pferd ist ins Haus gegangen.",
    ),
    "perfect with to be": (
        demo.statement(clause(YOU, "stay", np("my", "room", plural=True), tense="perfect")),
        "You have stayed in my rooms.",
        "Du bist in meinen Zimmern geblieben.",
    ),
    "compound nouns": (
        demo.statement(be(np("the", "kitchen table", plural=True), "big")),
        "The kitchen tables are big.",
        "Die Küchentische sind groß.",
    ),
    "separable verb": (
        demo.statement(clause(YOU, "open", np("the", "car door"), more=(adverbial("now"),))),
        "You open the car door now.",
        "Du machst die Autotür jetzt auf.",
    ),
    "English particle before a noun": (
        demo.statement(clause(HE, "pick", np("some", "boy", plural=True))),
        "He picks up some boys.",
        "Er holt einige Jungen ab.",
    ),
    "English particle after a pronoun": (
        demo.statement(clause(HE, "pick", ME, tense="will")),
        "He will pick me up.",
        "Er wird mich abholen.",
    ),
    "known before and new after the adverbial": (
        demo.statement(clause(SHE, "give", BOY, np("a", "key"), more=(adverbial("every day"),))),
        "She gives the boy a key every day.",
        "Sie gibt dem Jungen jeden Tag einen Schlüssel.",
    ),
    "time before place": (
        demo.statement(clause(ME, "see", WOMAN, tense="past", more=(PLACE, adverbial("on Monday")))),
        "I saw the woman in the garden on Monday.",
        "Ich sah die Frau am Montag im Garten.",
    ),
    "modal verb": (
        demo.statement(
            clause(np("the", "girl"), "write", np("a", "letter"), tense="want", more=(adverbial("tomorrow"),))
        ),
        "The girl wants to write a letter tomorrow.",
        "Das Mädchen will morgen einen Brief schreiben.",
    ),
    "kein": (
        demo.statement(clause(WE, "find", np("kein", "key", "small"), adverb=NOT)),
        "We do not find a small key.",
        "Wir finden keinen kleinen Schlüssel.",
    ),
    "kein in the plural": (
        demo.statement(clause(HE, "buy", np("kein", "apple", "", True), adverb=NOT)),
        "He does not buy apples.",
        "Er kauft keine Äpfel.",
    ),
    "nicht after object and time": (
        demo.statement(clause(SHE, "see", DOG, tense="past", adverb=NOT, more=(adverbial("yesterday"),))),
        "She did not see the dog yesterday.",
        "Sie sah den Hund gestern nicht.",
    ),
    "nicht before the participle": (
        demo.statement(clause(THEY, "invite", WE, tense="perfect", adverb=NOT)),
        "They have not invited us.",
        "Sie haben uns nicht eingeladen.",
    ),
    "nicht before a prepositional object": (
        demo.statement(clause(ME, "wait", YOU, adverb=NOT)),
        "I do not wait for you.",
        "Ich warte nicht auf dich.",
    ),
    "nicht before a predicate": (
        demo.statement(be(CHILDREN, "tired", tense="past", adverb=NOT)),
        "The children were not tired.",
        "Die Kinder waren nicht müde.",
    ),
    "frequency": (
        demo.statement(clause(ME, "call", np("your", "friend"), tense="should", adverb=adverbial("often"))),
        "I should often call your friend.",
        "Ich sollte deinen Freund oft anrufen.",
    ),
    "question": (
        demo.question(clause(np("your", "sister"), "work", np("the", "doctor"), frame=1)),
        "Does your sister work for the doctor?",
        "Arbeitet deine Schwester für den Arzt?",
    ),
    "question in the perfect": (
        demo.question(clause(HE, "follow", SHE, tense="perfect", adverb=adverbial("never"))),
        "Has he never followed her?",
        "Ist er ihr nie gefolgt?",
    ),
    "question with to be": (demo.question(be(YOU, "sad")), "Are you sad?", "Bist du traurig?"),
    "verb-final clause in front": (
        because(clause(SHE, "call", HE, tense="perfect"), clause(HE, "work")),
        "Because she has called him, he works.",
        "Weil sie ihn angerufen hat, arbeitet er.",
    ),
    "separable verb at the end": (
        demo.statement(clause(THEY, "know", more=(demo.subordinate("that", clause(BOY, "call", ME)),))),
        "They know that the boy calls me.",
        "Sie wissen, dass der Junge mich anruft.",
    ),
    "modal at the end": (
        demo.statement(
            clause(ME, "work", tense="must", more=(demo.subordinate("if", clause(YOU, "sleep", tense="want")),))
        ),
        "I must work if you want to sleep.",
        "Ich muss arbeiten, wenn du schlafen willst.",
    ),
    "relative pronoun as subject": (
        demo.statement(be(related(WOMAN, clause(demo.relative_pronoun(WOMAN), "sleep")), "young")),
        "The woman who sleeps is young.",
        "Die Frau, die schläft, ist jung.",
    ),
    "dative relative pronoun": (
        demo.statement(clause(related(DOG, clause(HE, "follow", tense="past")), "sleep")),
        "The dog that he followed sleeps.",
        "Der Hund, dem er folgte, schläft.",
    ),
    "relative pronoun after a preposition": (
        demo.statement(clause(related(CHILDREN, clause(WE, "play")), "arrive", tense="perfect")),
        "The children with whom we play have arrived.",
        "Die Kinder, mit denen wir spielen, sind angekommen.",
    ),
    "extraposed relative clause": (
        demo.statement(
            clause(SHE, "buy", related(BOOK, be(demo.relative_pronoun(BOOK), "expensive")), tense="perfect")
        ),
        "She has bought the book that is expensive.",
        "Sie hat das Buch gekauft, das teuer ist.",
    ),
    "coordination": (
        demo.compound(clause(HE, "sleep"), "and", clause(WE, "close", np("a", "window"))),
        "He sleeps, and we close a window.",
        "Er schläft und wir machen ein Fenster zu.",
    ),
}


@pytest.mark.parametrize(("derived", "english", "german"), GOLDEN.values(), ids=GOLDEN)
def test_hand_checked_translation(derived, english, german):
    assert (derived.english, derived.german) == (english, german)


@pytest.mark.parametrize(
    ("name", "tree"),
    [
        (
            "extraposed relative clause",
            "(TOP (S (NP (PRP She)) (VP (VBZ has) (VP (VBN bought) (NP (NP (DT the) (NN book)) (SBAR (WHNP "
            "(WDT that)) (S (VP (VBZ is) (ADJP (JJ expensive)))))))) (. .)))",
        ),
        (
            "modal verb",
            "(TOP (S (NP (DT The) (NN girl)) (VP (VBZ wants) (S (VP (TO to) (VP (VB write) (NP (DT a) "
            "(NN letter)) (NP (NN tomorrow)))))) (. .)))",
        ),
        (
            "question in the perfect",
            "(TOP (SQ (VBZ Has) (NP (PRP he)) (ADVP (RB never)) (VP (VBN followed) (NP (PRP her))) (. ?)))",
        ),
        (
            "verb-final clause in front",
            "(TOP (S (SBAR (IN Because) (S (NP (PRP she)) (VP (VBZ has) (VP (VBN called) (NP (PRP him)))))) "
            "(, ,) (NP (PRP he)) (VP (VBZ works)) (. .)))",
        ),
        (
            "relative pronoun after a preposition",
            "(TOP (S (NP (NP (DT The) (NNS children)) (SBAR (WHPP (IN with) (WHNP (WP whom))) (S (NP (PRP we)) "
            "(VP (VBP play))))) (VP (VBP have) (VP (VBN arrived))) (. .)))",
        ),
    ],
)
def test_hand_checked_tree(name, tree):
    assert GOLDEN[name][0].tree == tree


@pytest.mark.parametrize(
    ("words", "nominative", "accusative", "dative"),
    [
        (("the", "man", "old"), "der alte Mann", "den alten Mann", "dem alten Mann"),
        (("the", "lamp", "red"), "die rote Lampe", "die rote Lampe", "der roten Lampe"),
        (("this", "book", "new"), "dieses neue Buch", "dieses neue Buch", "diesem neuen Buch"),
        (("the", "man", "old", True), "die alten Männer", "die alten Männer", "den alten Männern"),
        (
            ("a", "key", "small"),
            "ein kleiner Schlüssel",
            "einen kleinen Schlüssel",
            "einem kleinen Schlüssel",
        ),
        (("my", "sister", "tired"), "meine müde Schwester", "meine müde Schwester", "meiner müden Schwester"),
        (("our", "house", "big"), "unser großes Haus", "unser großes Haus", "unserem großen Haus"),
        (
            ("their", "car", "black", True),
            "ihre schwarzen Autos",
            "ihre schwarzen Autos",
            "ihren schwarzen Autos",
        ),
        (("a", "horse", "sad", True), "traurige Pferde", "traurige Pferde", "traurigen Pferden"),
        (
            ("some", "boy", "young", True),
            "einige junge Jungen",
            "einige junge Jungen",
            "einigen jungen Jungen",
        ),
        (
            ("two", "girl", "happy", True),
            "zwei glückliche Mädchen",
            "zwei glückliche Mädchen",
            "zwei glücklichen Mädchen",
        ),
        (("this", "boy"), "dieser Junge", "diesen Jungen", "diesem Jungen"),
        (("kein", "city park"), "kein Stadtpark", "keinen Stadtpark", "keinem Stadtpark"),
    ],
)
def test_declension(words, nominative, accusative, dative):
    german = np(*words).german
    assert [" ".join(german[case]) for case in ("nom", "acc", "dat")] == [nominative, accusative, dative]


@pytest.fixture(scope="module")
def corpus():
    return demo.draw_corpus(seed=1, size=20_000)


def read_constituent(tokens):
    """Label with children, or tag with a word; the opening bracket is already read."""
    label, token = next(tokens), next(tokens)
    assert label not in "()"
    if token != "(":
        assert token != ")", "empty constituent"
        assert next(tokens) == ")"
        return label, token
    children = []
    while token == "(":
        children.append(read_constituent(tokens))
        token = next(tokens)
    assert token == ")"
    return label, children


def read_tree(text):
    tokens = iter(re.findall(r"[()]|[^()\s]+", text))
    assert next(tokens) == "("
    tree = read_constituent(tokens)
    assert not list(tokens), "more than one tree"
    return tree


def nodes(tree):
    yield tree
    if not isinstance(tree[1], str):
        for child in tree[1]:
            yield from nodes(child)


def test_trees_are_well_formed_and_their_leaves_are_the_english_text(corpus):
    for english, _, text in corpus[:5000]:
        tree = read_tree(text)
        tokens = [content for _, content in nodes(tree) if isinstance(content, str)]
        assert re.sub(r" ([,.?])", r"\1", " ".join(tokens)) == english
        assert {label for label, content in nodes(tree) if not isinstance(content, str)} <= LABELS
        assert tree[0] == "TOP"
        assert [label for label, _ in tree[1]] == ["SQ" if english.endswith("?") else "S"]


def test_pairs_are_distinct_in_both_languages(corpus):
    assert len(corpus) == 20_000
    assert len({pair.english for pair in corpus}) == len({pair.german for pair in corpus}) == 20_000


def test_no_english_sentence_has_two_translations():
    sampler, translations = demo.Sampler(seed=7), {}
    for _ in range(2000):
        drawn = sampler.draw()
        assert translations.setdefault(drawn.english, drawn.german) == drawn.german


def test_a_second_translation_is_an_error(monkeypatch):
    pairs = iter([demo.Sentence("He sleeps now.", german, "") for german in ("Er schläft.", "Sie schläft.")])
    monkeypatch.setattr(demo.Sampler, "draw", lambda self: next(pairs))
    with pytest.raises(ValueError, match="two derivations"):
        demo.draw_corpus(seed=1, size=2)


def test_text_looks_raw(corpus):
    shape = re.compile(r"[A-ZÄÖÜ][A-Za-zÄÖÜäöüß]*(,? [A-Za-zÄÖÜäöüß]+)*[.?]")
    for english, german, _ in corpus:
        assert shape.fullmatch(english), english
        assert shape.fullmatch(german), german
        assert english[-1] == german[-1]


def test_lengths_and_vocabulary(corpus):
    lengths = [len(pair.english.split()) for pair in corpus]
    assert min(lengths) == 3
    assert max(lengths) == 20
    assert 8 <= sum(lengths) / len(lengths) <= 11
    counts = Counter(re.findall(r"[a-z]+", " ".join(pair.english for pair in corpus).lower()))
    assert 150 <= len(counts) <= 250
    assert min(counts.values()) >= 30


def finite_forms():
    """German finite verb forms: in a main clause, and at the end of a subordinate one."""
    main = {form for forms in demo.AUXILIARIES.values() for form in forms.split()} | {"sind"}
    final = set(main)
    for verb in demo.VERBS.values():
        infinitive, *present, past, _, _ = verb.german
        forms = {infinitive, *present, past, past + "st", past + "n", past + "en"}
        main |= forms
        final |= {verb.prefix + form for form in forms}
    return main, final


def test_finite_verb_is_second_after_an_adverb_and_first_in_a_question(corpus):
    main, _ = finite_forms()
    inverted = [german.split() for _, german, _ in corpus if re.match("(Heute|Gestern|Morgen|Jetzt|Bald) ", german)]
    questions = [german.split() for _, german, _ in corpus if german.endswith("?")]
    assert min(len(inverted), len(questions)) > 500
    assert {words[1] for words in inverted} <= main
    assert {words[0].lower() for words in questions} <= main


@pytest.mark.parametrize("conjunction", ["weil", "wenn", "dass"])
def test_finite_verb_ends_a_subordinate_clause(corpus, conjunction):
    _, final = finite_forms()
    clauses = [re.search(rf", {conjunction} ([^,]+)[.?]$", german) for _, german, _ in corpus]
    last_words = {found[1].split()[-1] for found in clauses if found}
    assert len(last_words) > 20
    assert last_words <= final


def test_mit_takes_the_dative(corpus):
    following = {word for _, german, _ in corpus for word in re.findall(r"\bmit (\w+)", german)}
    assert {"dem", "der", "einem", "ihm", "meiner", "vielen"} <= following
    assert not following & {
        "das",
        "die",
        "ein",
        "eine",
        "einen",
        "ihn",
        "sie",
        "mich",
        "dich",
        "viele",
        "dieses",
    }


def test_fuer_takes_the_accusative(corpus):
    following = {word for _, german, _ in corpus for word in re.findall(r"\bfür (\w+)", german)}
    assert {"den", "die", "das", "einen", "ihn"} <= following
    assert not following & {"dem", "der", "einem", "einer", "ihm", "mir", "dir"}


SIZES = {"train": 60, "valid": 20, "test": 10}


def test_files_depend_on_the_seed_only(tmp_path):
    first, again, other = (
        run_script("demo_corpus", tmp_path / f"{n}", SIZES, seed, n) for n, seed in enumerate((1, 1, 2))
    )
    assert first == again
    assert all(first[name] != other[name] for name in first)


def test_splits_are_parallel_and_disjoint(tmp_path):
    files = {name: text.splitlines() for name, text in run_script("demo_corpus", tmp_path / "out", SIZES, 3, 0).items()}
    assert set(files) == {f"{split}.{suffix}" for split in SIZES for suffix in ("en", "de", "trees")}
    for split, size in SIZES.items():
        assert all(len(files[f"{split}.{suffix}"]) == size for suffix in ("en", "de", "trees"))
    for suffix in ("en", "de"):
        assert len({line for split in SIZES for line in files[f"{split}.{suffix}"]}) == sum(SIZES.values())
    pairs = {(pair.english, pair.german, pair.tree) for pair in demo.draw_corpus(3, sum(SIZES.values()))}
    columns = ([line for split in SIZES for line in files[f"{split}.{suffix}"]] for suffix in ("en", "de", "trees"))
    assert set(zip(*columns, strict=True)) == pairs
