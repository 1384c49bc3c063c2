"""Instructions, completions and verdicts, written by hand from the text of each instruction; for test_instruction_pairs.

A row: arguments, completion, whether it follows the instruction, and what the row is about. A fifth member marks a row where
if-verifiable 0.1.2 decides otherwise, and says why its verdict is not taken.
"""

from __future__ import annotations

from typing import Any

AT_LEAST, LESS = "at least", "less than"
STORY = "The cat sat down. It slept."
SUBSTRING = "it searches for the letters, also inside other words"
PATTERN = "it takes the keyword for a regular expression"
CONTENT = "it counts marks without content"
NOTHING_ELSE = "the text holds the mark and no answer"
ANYWHERE = "it finds the mark anywhere, the text of the instruction gives its place"
NAN = "it uses json.loads, which accepts more than JSON"
YES_NO = "it looks for one of the answers anywhere in the text"
TOKENS = "nltk splits a sentence there"
LETTERS = "a single capital letter is no word in capitals to a reader"


def words(number: int, relation: str) -> dict[str, Any]:
    return {"num_words": number, "relation": relation}


def sentences(number: int, relation: str) -> dict[str, Any]:
    return {"num_sentences": number, "relation": relation}


def often(keyword: str, number: int, relation: str) -> dict[str, Any]:
    return {"keyword": keyword, "frequency": number, "relation": relation}


def letters(letter: str, number: int, relation: str) -> dict[str, Any]:
    return {"letter": letter, "let_frequency": number, "let_relation": relation}


def capitals(number: int, relation: str) -> dict[str, Any]:
    return {"capital_frequency": number, "capital_relation": relation}


def nth(count: int, place: int, word: str) -> dict[str, Any]:
    return {"num_paragraphs": count, "nth_paragraph": place, "first_word": word}


def sections(marker: str, count: int) -> dict[str, Any]:
    return {"section_spliter": marker, "num_sections": count}


ANN = {"name": "Ann", "age": 31, "member": True, "tags": ["a", "b"]}
ANN_TEXT = '{"name": "Ann", "age": 31, "member": true, "tags": ["a", "b"]}'

ROWS: dict[str, list[tuple[Any, ...]]] = {
    "keywords:existence": [
        ({"keywords": ["cat", "dog"]}, "A cat and a dog.", True, "both"),
        ({"keywords": ["cat", "dog"]}, "A Cat and a DOG.", True, "case does not count"),
        ({"keywords": ["cat", "dog"]}, "A cat.", False, "one of two"),
        ({"keywords": ["cat"]}, "We concatenate strings.", False, "inside a word", SUBSTRING),
        ({"keywords": ["ice cream"]}, "Some ice\ncream for me.", True, "over a line break", "it compares white space exactly"),
        ({"keywords": ["c.t"]}, "A cat.", False, "a dot is a dot", PATTERN),
        ({"keywords": ["C++"]}, "I like C++ most.", True, "signs of a pattern"),
        ({"keywords": ["end"]}, "the end", True, "at the edge"),
    ],
    "keywords:forbidden_words": [
        ({"forbidden_words": ["cat"]}, "A dog.", True, "none"),
        ({"forbidden_words": ["cat"]}, "A CAT.", False, "in capitals"),
        ({"forbidden_words": ["cat"]}, "We concatenate.", True, "inside a word"),
        ({"forbidden_words": ["a.b"]}, "see acb here", True, "a dot is a dot", PATTERN),
        ({"forbidden_words": ["C++"]}, "I like C++ a lot.", False, "signs of a pattern"),
        ({"forbidden_words": ["ice cream"]}, "ice  cream", False, "two spaces", "it compares white space exactly"),
    ],
    "keywords:frequency": [
        (often("cat", 2, AT_LEAST), "Cat, cat!", True, "twice"),
        (often("cat", 2, AT_LEAST), "One cat.", False, "once"),
        (often("cat", 2, AT_LEAST), "A cat in a category.", False, "inside a word", SUBSTRING),
        (often("cat", 2, LESS), "A cat in a category.", True, "inside a word", SUBSTRING),
        (often("cat", 2, LESS), "A cat is a cat.", False, "twice"),
        (often("cat", 1, LESS), "A dog.", True, "none"),
    ],
    "keywords:letter_frequency": [
        (letters("e", 3, AT_LEAST), "Eleven bees", True, "five"),
        (letters("e", 3, AT_LEAST), "A bee", False, "two"),
        (letters("E", 3, LESS), "A bee", True, "two, asked for in capitals"),
        (letters("z", 1, LESS), "A bee", True, "none"),
    ],
    "length_constraints:number_words": [
        (words(3, AT_LEAST), "One two three.", True, "three"),
        (words(4, AT_LEAST), "One two three.", False, "three"),
        (words(4, LESS), "One two three.", True, "three"),
        (words(3, LESS), "One two three.", False, "three"),
        (words(3, AT_LEAST), "Don't stop.", False, "an apostrophe does not end a word", "it counts don't as don and t"),
        (words(4, LESS), "a-b-c-d", False, "hyphens join no words"),
        (words(3, AT_LEAST), "yes ... -- !", False, "signs are no words"),
        (words(3, LESS), "one_two_three", False, "underscores join no words", "it counts one_two_three as one word"),
        (words(2, AT_LEAST), "It’s so", True, "a typographic apostrophe"),
        (words(2, AT_LEAST), "___ ***", False, "rules are no words"),
    ],
    "count:word_count_range": [
        ({"min_words": 2, "max_words": 3}, "One two.", True, "the lower end"),
        ({"min_words": 2, "max_words": 3}, "One two three.", True, "the upper end"),
        ({"min_words": 2, "max_words": 3}, "One.", False, "too few"),
        ({"min_words": 2, "max_words": 3}, "One two three four.", False, "too many"),
    ],
    "count:unique_word_count": [
        ({"N": 3}, "one two three", True, "three"),
        ({"N": 3}, "one one two Two", False, "two different ones"),
        ({"N": 3}, "one - two", False, "a dash is no word", "it counts the empty word that is left of a dash"),
        ({"N": 3}, "one,two,three", True, "without spaces", "it splits at white space alone"),
    ],
    "count:numbers": [
        ({"N": 2}, "I have 3 cats and 12 dogs.", True, "two"),
        ({"N": 2}, "I have 3 cats.", False, "one"),
        ({"N": 1}, "It costs 1,250.75 dollars.", True, "one number with signs inside"),
        ({"N": 2}, "From 3-4 people.", True, "a range is two", "it deletes the dash and reads 34"),
        ({"N": 1}, "Take A4 paper, 5 sheets.", True, "a name is no number", "it counts the digit of A4"),
        ({"N": 1}, "the 12th man", True, "an ordinal"),
        ({"N": 2}, "1/2", True, "a fraction holds two", "it deletes the slash and reads 12"),
    ],
    "length_constraints:number_sentences": [
        (sentences(2, AT_LEAST), STORY, True, "two"),
        (sentences(3, AT_LEAST), STORY, False, "two"),
        (sentences(3, LESS), STORY, True, "two"),
        (sentences(2, LESS), STORY, False, "two"),
        (sentences(2, AT_LEAST), "Mr. Smith met Dr. Jones.", False, "titles end no sentence"),
        (sentences(2, AT_LEAST), "It is 3.5 metres long.", False, "nor do decimals"),
        (sentences(2, AT_LEAST), "J. R. Smith slept.", False, "nor do initials"),
        (sentences(2, AT_LEAST), "She asked, e.g. him.", False, "nor do abbreviations", TOKENS),
        (sentences(2, AT_LEAST), "Really?! Yes!!!", True, "several marks"),
        (sentences(2, AT_LEAST), '"Come in." He did.', True, "a quotation"),
        (sentences(3, AT_LEAST), "Yes. ... !!! ???", False, "marks without words", CONTENT),
        (sentences(2, AT_LEAST), "One here.\n\nAnd an unfinished one", False, "it has no end", TOKENS),
        (sentences(2, LESS), "One here.\n\nAnd an unfinished one", False, "yet it is a second one"),
        (sentences(3, LESS), "one two\n\nthree four\n\nfive six", False, "lines without marks", "it sees one sentence"),
        (sentences(2, AT_LEAST), "1. First thing.\n2. Second thing.", True, "numbers of a list end nothing"),
        (sentences(3, AT_LEAST), "1. First thing.\n2. Second thing.", False, "numbers of a list end nothing", TOKENS),
        (sentences(2, AT_LEAST), "**Bold end.** Next one.", True, "behind emphasis"),
        (sentences(2, AT_LEAST), "今日は。明日は。", True, "without spaces", "its English tokenizer sees one sentence"),
    ],
    "length_constraints:number_paragraphs": [
        ({"num_paragraphs": 2}, "One.\n***\nTwo.", True, "two"),
        ({"num_paragraphs": 2}, "One.\n\n***\n\nTwo.\n", True, "with blank lines"),
        ({"num_paragraphs": 2}, "***\nOne.\n***\nTwo.\n***", True, "dividers at both ends"),
        ({"num_paragraphs": 3}, "One.\n***\nTwo.", False, "two"),
        ({"num_paragraphs": 2}, "One.\n\nTwo.", False, "a blank line is not that divider"),
        ({"num_paragraphs": 3}, "One.\n***\n***\nTwo.", False, "an empty one"),
        ({"num_paragraphs": 2}, "A ***bold*** word.", False, "emphasis is no divider"),
        ({"num_paragraphs": 3}, "A ***bold*** word.", False, "emphasis is no divider", "it cuts at *** within a line"),
        ({"num_paragraphs": 2}, "One.\n***\n...", False, "dots are no paragraph", CONTENT),
    ],
    "length_constraints:nth_paragraph_first_word": [
        (nth(2, 2, "then"), "First this.\n\nThen that.", True, "the second"),
        (nth(2, 1, "First"), "First this.\n\nThen that.", True, "the first, written as asked"),
        (nth(2, 2, "then"), "First this.\n\nAnd then that.", False, "another word"),
        (nth(3, 2, "then"), "First this.\n\nThen that.", False, "too few"),
        (nth(2, 2, "then"), "First this.\n\n\n\nThen that.", True, "two blank lines", "it counts the empty paragraph as the second"),
        (nth(2, 2, "then"), "First this.\n \nThen that.", True, "a blank line with a space", "it sees one paragraph"),
        (nth(2, 2, "then"), "First this.\n\n**Then** that.", True, "in bold", "it takes the asterisks for letters"),
        (nth(2, 2, "the"), "First this.\n\nThen that.", False, "a longer word"),
        (nth(2, 1, "First"), "First this.\n\nThen that.\n\n---", False, "a rule is no paragraph, and no part of two"),
    ],
    "change_case:english_capital": [
        ({}, "HELLO MY FRIENDS, HOW ARE YOU TODAY?", True, "capitals"),
        ({}, "HELLO MY FRIENDs, HOW ARE YOU TODAY?", False, "one small letter"),
        ({}, "ПРИВЕТ ДРУЗЬЯ КАК ДЕЛА", False, "Russian"),
        ({}, "OK.", True, "two letters"),
        ({}, "1 2 3", False, "no letters"),
        ({}, "你好 世界 WORLD", False, "mostly Chinese"),
    ],
    "change_case:english_lowercase": [
        ({}, "hello my friends, how are you today?", True, "small letters"),
        ({}, "hello my Friends, how are you today?", False, "one capital"),
        ({}, "привет друзья как дела", False, "Russian"),
        ({}, "ok.", True, "two letters", "langdetect takes short texts for another language"),
        ({}, "1 2 3", False, "no letters"),
    ],
    "change_case:capital_word_frequency": [
        (capitals(2, AT_LEAST), "STOP right NOW.", True, "two"),
        (capitals(2, AT_LEAST), "STOP right now.", False, "one"),
        (capitals(2, AT_LEAST), "I think I know.", False, "I is a letter", LETTERS),
        (capitals(1, LESS), "I have A plan.", True, "I is a letter", LETTERS),
        (capitals(2, LESS), "STOP right NOW.", False, "two"),
        (capitals(2, AT_LEAST), "The U.S.A. and NATO", False, "one, and letters with dots", "it counts U.S.A. as a word"),
        (capitals(2, AT_LEAST), "A WELL-KNOWN thing", True, "two words beside a letter"),
    ],
    "punctuation:no_comma": [
        ({}, "No such sign here.", True, "none"),
        ({}, "One, two.", False, "one"),
        ({}, "One， two.", False, "a full-width comma", "it knows the comma of ASCII alone"),
        ({}, "一、二", False, "an ideographic comma", "it knows the comma of ASCII alone"),
        ({}, "One‚ two.", False, "a lookalike", "it knows the comma of ASCII alone"),
        ({}, "One; two.", True, "a semicolon"),
    ],
    "startend:quotation": [
        ({}, '"All of it."', True, "wrapped"),
        ({}, ' "All of it."\n', True, "white space outside"),
        ({}, "All of it.", False, "bare"),
        ({}, '"All of it.', False, "never closed"),
        ({}, '""', False, "nothing inside", CONTENT),
        ({}, '"', False, "one mark"),
        ({}, '"This" is not "that"', False, "two quotations", "it looks at both ends alone"),
        ({}, '"He said "hi" to me."', True, "a quotation inside"),
        ({}, "“All of it.”", True, "typographic marks", "it knows the mark of ASCII alone"),
        ({}, "'All of it.'", False, "single marks"),
    ],
    "startend:end_checker": [
        ({"end_phrase": "That is all."}, "It rained. That is all.", True, "at the end"),
        ({"end_phrase": "That is all."}, "It rained. that is ALL.\n", True, "in other case"),
        ({"end_phrase": "That is all."}, "That is all. It rained.", False, "not at the end"),
        ({"end_phrase": "That is all."}, "It rained. That is all. Bye.", False, "words behind it"),
        ({"end_phrase": "That is all."}, "That is all.", False, "nothing before it", NOTHING_ELSE),
        ({"end_phrase": "That is all."}, '"It rained. That is all."', True, "in quotation marks"),
        ({"end_phrase": "That is all."}, "It rained. **That is all.**", True, "in bold", "it compares the asterisks"),
        ({"end_phrase": "end"}, "See you at the weekend", False, "inside a word", SUBSTRING),
        ({"end_phrase": "That is all."}, "It rained. That is all", False, "the full stop is missing"),
    ],
    "detectable_content:number_placeholders": [
        ({"num_placeholders": 2}, "Dear [name], come to [address].", True, "two"),
        ({"num_placeholders": 3}, "Dear [name], come to [address].", False, "two"),
        ({"num_placeholders": 2}, "Dear [], come to [ ].", False, "empty brackets", CONTENT),
        ({"num_placeholders": 2}, "[name] [address]", False, "bare placeholders", NOTHING_ELSE),
        ({"num_placeholders": 1}, "See [the page](http://a.b).", False, "a link", "it takes a link for a placeholder"),
        ({"num_placeholders": 1}, "As shown by Kim [1].", False, "a reference", "it takes the number of a source for one"),
        ({"num_placeholders": 1}, "Dear [na\nme], hello.", False, "over a line break"),
        ({"num_placeholders": 2}, "Dear [[name]], hello.", False, "brackets in brackets"),
    ],
    "detectable_content:postscript": [
        ({"postscript_marker": "P.S."}, "Dear Ann.\n\nP.S. Bring milk.", True, "at the end"),
        ({"postscript_marker": "P.S."}, "Dear Ann.\nP. S. Bring milk.", True, "with a space"),
        ({"postscript_marker": "P.S."}, "dear ann.\n\np.s. bring milk.", True, "in small letters"),
        ({"postscript_marker": "P.P.S"}, "Dear Ann.\n\nP.P.S. Bring milk.", True, "with a last dot"),
        ({"postscript_marker": "P.P.S"}, "Dear Ann.\n\nP.P.S Bring milk.", True, "without it"),
        ({"postscript_marker": "P.S."}, "Dear Ann.\n\nBring milk.", False, "none"),
        ({"postscript_marker": "P.S."}, "Dear Ann.\n\nP.S.", False, "nothing in it", CONTENT),
        ({"postscript_marker": "P.S."}, "P.S. Bring milk.", False, "nothing before it", NOTHING_ELSE),
        ({"postscript_marker": "P.S."}, "P.S. Bring milk.\n\nDear Ann, how are you?", False, "at the beginning", ANYWHERE),
        ({"postscript_marker": "P.S."}, "Dear Ann, no p.s. today.", False, "within a sentence", ANYWHERE),
        ({"postscript_marker": "P.S."}, "Dear Ann.\n\n**P.S.** Bring milk.", True, "in bold"),
    ],
    "detectable_format:number_bullet_lists": [
        ({"num_bullets": 2}, "* one\n* two", True, "asterisks"),
        ({"num_bullets": 2}, "Here:\n- one\n- two\nDone.", True, "hyphens"),
        ({"num_bullets": 2}, "- one\n  - two", True, "one below the other"),
        ({"num_bullets": 3}, "* one\n* two", False, "two"),
        ({"num_bullets": 1}, "* one\n* two", False, "two"),
        ({"num_bullets": 2}, "* \n* ", False, "empty ones", CONTENT),
        ({"num_bullets": 2}, "* one\n* two\n* ", False, "an empty one more"),
        ({"num_bullets": 2}, "* one\n* two\n\n---\nEnd.", True, "a rule is none", "it takes a rule for a bullet"),
        ({"num_bullets": 1}, "-5 degrees today", False, "a negative number", "it takes a minus sign for a bullet"),
        ({"num_bullets": 1}, "*Note* this.", False, "emphasis", "it takes emphasis for a bullet"),
        ({"num_bullets": 2}, "1. one\n2. two", False, "a numbered list"),
        ({"num_bullets": 1}, "**Title**\n* one", True, "a bold line"),
    ],
    "detectable_format:constrained_response": [
        ({}, "My answer is yes.", True, "yes"),
        ({}, " My answer is maybe.\n", True, "white space outside"),
        ({}, "**My answer is no.**", True, "in bold"),
        ({}, "My answer is yes. My answer is no. My answer is maybe.", False, "all of them", YES_NO),
        ({}, "I say: My answer is yes.", False, "words before it", YES_NO),
        ({}, "My answer is yes", False, "the full stop is missing"),
        ({}, "Yes.", False, "another sentence"),
        ({}, "I would never write My answer is yes. Never.", False, "quoted", YES_NO),
    ],
    "detectable_format:number_highlighted_sections": [
        ({"num_highlights": 2}, "A *first* and a *second* one.", True, "two"),
        ({"num_highlights": 2}, "A **first** and a *second* one.", True, "bold and italic"),
        ({"num_highlights": 2}, "A *first* one.", False, "one"),
        ({"num_highlights": 1}, "A ** ** one.", False, "nothing in it"),
        ({"num_highlights": 2}, "A *...* and a *!* one.", False, "signs in it", CONTENT),
        ({"num_highlights": 1}, "2 * 3 * 4", False, "multiplication", "it takes a product for emphasis"),
        ({"num_highlights": 1}, "* one\n* two", False, "bullets"),
        ({"num_highlights": 1}, "A *broken\nline* here", False, "over a line break"),
        ({"num_highlights": 1}, "***both*** at once", True, "bold italic"),
        ({"num_highlights": 2}, "A **first** one.", False, "bold is one"),
    ],
    "detectable_format:multiple_sections": [
        (sections("Section", 2), "Section 1\nOne.\nSection 2\nTwo.", True, "two"),
        (sections("SECTION", 2), "SECTION 1: One.\nSECTION 2: Two.", True, "on the line of the heading"),
        (sections("Section", 2), "## Section 1\nOne.\n\n**Section 2**\nTwo.", True, "as headings"),
        (sections("Section", 3), "Section 1\nOne.\nSection 2\nTwo.", False, "two"),
        (sections("Section", 2), "Section 1\nOne.\nSection 2\nTwo.\nSection 3\nThree.", False, "three", "it accepts more than asked for"),
        (sections("Section", 2), "Section 1\nSection 2\n", False, "empty ones", CONTENT),
        (sections("Section", 2), "In Section 1 and Section 2 of this text.", False, "within a line", ANYWHERE),
        (sections("Section", 2), "Section 1\nOne.\nSection 1\nTwo.", False, "the same number", "it does not read the numbers"),
        (sections("Section", 1), "SECTION 1\nOne.", False, "another spelling"),
    ],
    "detectable_format:title": [
        ({}, "<<A day>>\nIt rained.", True, "a title"),
        ({}, "It rained.", False, "none"),
        ({}, "<< >>\nIt rained.", False, "an empty one"),
        ({}, "<<...>>\nIt rained.", False, "signs in it", CONTENT),
        ({}, "<<A day>>", False, "nothing else", NOTHING_ELSE),
        ({}, "<A day>\nIt rained.", False, "single brackets"),
        ({}, "<<A\nday>>\nIt rained.", False, "over a line break"),
        ({}, "1 << 2 and 4 >> 1", True, "operators around words look like a title"),
    ],
    "combination:two_responses": [
        ({}, "Yes.\n******\nNo.", True, "two"),
        ({}, "******\nYes.\n******\nNo.\n******", True, "dividers at both ends"),
        ({}, "Yes.\n******\nYes.", False, "the same twice"),
        ({}, "Yes.\n******\nyes!", False, "the same words", "it compares letter by letter"),
        ({}, "Yes.\n******\nNo.\n******\nMaybe.", False, "three"),
        ({}, "Yes.", False, "one"),
        ({}, "Yes.\n******\n", False, "an empty second one"),
        ({}, "Yes.\n***\nNo.", False, "three asterisks"),
        ({}, "Yes.\n*******\nNo.", False, "seven asterisks", "it cuts within a longer row of asterisks"),
        ({}, "Yes.\n******\n...", False, "dots are no response", CONTENT),
    ],
    "combination:repeat_prompt": [
        ({"prompt_to_repeat": "Name a fruit."}, "Name a fruit.\nAn apple.", True, "and an answer"),
        ({"prompt_to_repeat": "Name a\nfruit."}, "Name a fruit. An apple.", True, "another line break", "it compares white space exactly"),
        ({"prompt_to_repeat": "Name a fruit."}, "Name a fruit.", False, "no answer", NOTHING_ELSE),
        ({"prompt_to_repeat": "Name a fruit."}, "Name a fruit. Name a fruit.", False, "twice, and no answer", NOTHING_ELSE),
        ({"prompt_to_repeat": "Name a fruit."}, "An apple. Name a fruit.", False, "the answer first"),
        ({"prompt_to_repeat": "Name a fruit."}, "NAME A FRUIT. An apple.", False, "not without change", "it forgives case, the text says without change"),
        ({"prompt_to_repeat": "Name a fruit."}, "Sure! Name a fruit. An apple.", False, "a word before it"),
    ],
    "detectable_format:json_format": [
        ({}, '{"a": 1}', True, "an object"),
        ({}, "[1, 2]", True, "a list"),
        ({}, '```json\n{"a": 1}\n```', True, "in a fence"),
        ({}, '```\n{"a": 1}\n```', True, "in a plain fence"),
        ({}, 'Here: {"a": 1}', False, "a word before it"),
        ({}, '{"a": 1} {"a": 2}', False, "two values"),
        ({}, "{'a': 1}", False, "single quotes"),
        ({}, '{"a": NaN}', False, "NaN", NAN),
        ({}, '{"a": 1, "a": 2}', False, "a key twice", NAN),
        ({}, '{"a": 1e999}', False, "an infinite number", NAN),
        ({}, "7", False, "a bare number", "a value is not wrapped in JSON"),
        ({}, '"All of it."', False, "a bare text", "a value is not wrapped in JSON"),
        ({}, "{}", False, "nothing in it", CONTENT),
        ({}, '{"a": [1, 2}', False, "a bracket is missing"),
    ],
    "json_record": [
        ({"record": ANN}, ANN_TEXT, True, "as it is"),
        ({"record": ANN_TEXT}, ANN_TEXT, True, "the record as text"),
        ({"record": ANN}, f" \n{ANN_TEXT}\n", True, "white space around it"),
        ({"record": ANN}, '{"tags":["a","b"],"member":true,"age":31,"name":"Ann"}', True, "another order of keys"),
        ({"record": ANN}, ANN_TEXT.replace("31", "31.0"), True, "31.0 is 31"),
        ({"record": ANN}, ANN_TEXT.replace("31", "3.1e1"), True, "3.1e1 is 31"),
        ({"record": ANN}, ANN_TEXT.replace("Ann", "\\u0041nn"), True, "an escape"),
        ({"record": ANN}, ANN_TEXT.replace("31", '"31"'), False, "a text is no number"),
        ({"record": ANN}, ANN_TEXT.replace("true", "1"), False, "1 is not true"),
        ({"record": {"n": 1}}, '{"n": true}', False, "true is not 1"),
        ({"record": {"n": 0}}, '{"n": false}', False, "false is not 0"),
        ({"record": {"n": [1, 0]}}, '{"n": [true, false]}', False, "nor within a list"),
        ({"record": {"n": 0}}, '{"n": -0.0}', True, "-0.0 is 0"),
        ({"record": ANN}, ANN_TEXT.replace('"a", "b"', '"b", "a"'), False, "another order of a list"),
        ({"record": ANN}, ANN_TEXT.replace("Ann", "ann"), False, "another letter"),
        ({"record": ANN}, ANN_TEXT.replace("Ann", "Ann "), False, "a space more"),
        ({"record": ANN}, ANN_TEXT[:-1] + ', "x": 1}', False, "a key more"),
        ({"record": ANN}, ANN_TEXT.replace('"age": 31, ', ""), False, "a key less"),
        ({"record": ANN}, ANN_TEXT[:-1] + ', "age": 31}', False, "a key twice"),
        ({"record": ANN}, f"```json\n{ANN_TEXT}\n```", False, "a fence"),
        ({"record": ANN}, f"Sure: {ANN_TEXT}", False, "a word before it"),
        ({"record": ANN}, f"{ANN_TEXT}.", False, "a full stop behind it"),
        ({"record": ANN}, f"{ANN_TEXT}\n{ANN_TEXT}", False, "twice"),
        ({"record": ANN}, f"[{ANN_TEXT}]", False, "in a list"),
        ({"record": ANN}, ANN_TEXT.replace('"', "'"), False, "single quotes"),
        ({"record": ANN}, f"\ufeff{ANN_TEXT}", False, "a byte order mark"),
        ({"record": ANN}, "", False, "nothing"),
        ({"record": ANN}, "{}", False, "an empty object"),
        ({"record": {"n": 1}}, '{"n": 1e999}', False, "an infinite number"),
        ({"record": {"n": 1}}, '{"n": NaN}', False, "NaN"),
        ({"record": {"n": 1}}, '{"n": ' + "9" * 5000 + "}", False, "a number of 5,000 digits"),
        ({"record": {"n": 10**30}}, '{"n": 1' + "0" * 30 + "}", True, "a large number"),
        ({"record": {"n": 2**53}}, '{"n": 9007199254740993}', False, "a large number, off by one"),
        ({"record": {"n": 0.1}}, '{"n": 0.10}', True, "a decimal"),
        ({"record": {"n": None}}, '{"n": null}', True, "null"),
        ({"record": "[]"}, "[]", True, "an empty list that is right"),
        ({"record": "null"}, "null", True, "null by itself"),
        ({"record": '"4"'}, "4", False, "a text by itself"),
    ],
}  # fmt: skip
"""By id."""

PAIRS = [({"id": name, **row[0]}, *row[1:4], row[4] if len(row) > 4 else "") for name, rows in ROWS.items() for row in rows]
"""(entry, completion, whether it follows it, what the row is about, why if-verifiable decides otherwise; "" where it agrees)."""
