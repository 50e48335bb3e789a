"""The questions of accuracy.py: short ones with one right answer each, most of them made by a seed.

A module of accuracy.py and make_accuracy_reference.py; it has no command of its own. An item is

    id, kind            "knowledge-7", "knowledge"
    messages or prompt  a chat, or a text to go on with
    max_tokens
    and what is right: "number" (the first number of the answer), "words" (one of them occurs as a whole word, whatever
    its case) or "pattern" (a regular expression that the whole answer matches)
"""

import random
import re

SEED = 20261130
N_DRAWN = 200  # more than are needed: what was drawn before is left out
N_ANSWER, N_FORMAT = 16, 24  # tokens: an answer of a few words, one that is to have a form

CAPITALS = {
    "France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Portugal": "Lisbon", "Greece": "Athens", "Austria": "Vienna",
    "Germany": "Berlin", "Poland": "Warsaw", "Norway": "Oslo", "Sweden": "Stockholm", "Finland": "Helsinki",
    "Denmark": "Copenhagen", "Ireland": "Dublin", "Hungary": "Budapest", "Russia": "Moscow", "Turkey": "Ankara",
    "Egypt": "Cairo", "Kenya": "Nairobi", "Japan": "Tokyo", "China": "Beijing", "India": "Delhi", "Thailand": "Bangkok",
    "Canada": "Ottawa", "Cuba": "Havana", "Peru": "Lima", "Chile": "Santiago", "Argentina": "Aires", "Mexico": "Mexico",
    "Iran": "Tehran", "Iraq": "Baghdad",
}
OPPOSITES = {
    "hot": "cold", "up": "down", "left": "right", "big": "small|little", "fast": "slow", "happy": "sad|unhappy",
    "light": "dark|heavy", "open": "closed|close|shut", "full": "empty", "wet": "dry", "early": "late", "rich": "poor",
    "strong": "weak", "hard": "soft|easy", "young": "old", "high": "low", "near": "far", "thick": "thin",
    "clean": "dirty", "loud": "quiet|soft",
}
SYMBOLS = {
    "H": "hydrogen", "O": "oxygen", "C": "carbon", "N": "nitrogen", "Fe": "iron", "Au": "gold", "Ag": "silver",
    "Na": "sodium", "He": "helium", "Ca": "calcium", "Cu": "copper", "Pb": "lead",
}
COUNTS = {
    "days are in a week": 7, "months are in a year": 12, "hours are in a day": 24, "minutes are in an hour": 60,
    "legs does a spider have": 8, "legs does a dog have": 4, "sides does a triangle have": 3, "wheels does a bicycle have": 2,
    "letters are in the English alphabet": 26, "sides does a hexagon have": 6, "planets are in the solar system": 8,
    "seconds are in a minute": 60,
}
FACTS = {
    "What do bees make": "honey", "What is frozen water called": "ice", "What colour is a ripe banana": "yellow",
    "What is a young dog called": "puppy|pup", "What is a young cat called": "kitten", "What do cows drink": "water",
    "Which star is closest to the Earth": "sun", "What is the largest ocean": "pacific", "Who wrote Hamlet": "shakespeare",
    "What gas do plants take from the air": "carbon|co2", "Which planet is known as the red planet": "mars",
    "What colour is grass": "green", "What is the largest planet of the solar system": "jupiter",
    "Which animal is known as the king of the jungle": "lion", "What is the frozen continent at the South Pole": "antarctica",
    "What do you call a doctor for teeth": "dentist", "Which metal is liquid at room temperature": "mercury",
    "Which organ pumps the blood": "heart", "What do caterpillars become": "butterfly|butterflies|moth|moths",
    "Which season comes after winter": "spring", "What language is spoken in Brazil": "portuguese",
    "On which continent is Egypt": "africa", "What is the tallest mountain": "everest",
    "Which bird is a symbol of peace": "dove", "What is the boiling point of water in degrees Celsius": "100",
    "Which instrument has black and white keys": "piano",
}
# Texts whose next word is hardly in doubt.
TEXTS = {
    "She cut the bread with a sharp": "knife", "The sun rises in the": "east", "He put the letter into an": "envelope",
    "In winter the lake is covered with": "ice|snow", "They crossed the river over an old": "bridge|wooden|stone",
    "The bird built a nest in the": "tree|branches|garden", "To open the door she turned the": "key|knob|handle|doorknob",
    "The farmer milked the": "cow|cows", "We read a story before going to": "bed|sleep", "He lit the candle with a": "match|lighter",
    "The baby began to": "cry|cries|walk|crawl", "You can see the stars at": "night", "The ship sailed across the": "ocean|sea",
    "She washed her hands with soap and": "water", "The doctor told him to take his": "medicine|medication|pills|medications",
    "An apple a day keeps the doctor": "away", "Bread and": "butter", "Salt and": "pepper",
    "The cat chased the": "mouse|mice", "He brushed his": "teeth|hair", "Once upon a": "time", "Ladies and": "gentlemen",
    "The teacher wrote on the": "board|blackboard|chalkboard|whiteboard", "It was raining, so she opened her": "umbrella",
    "The capital of France is": "paris", "Water freezes at zero degrees": "celsius", "The Earth moves around the": "sun",
    "He drank a cup of": "coffee|tea|water|milk", "The opposite of black is": "white", "One, two, three,": "four",
}
WORDS = ["river", "lamp", "stone", "garden", "silver", "window", "paper", "winter", "candle", "market", "bridge", "meadow",
         "harbour", "pencil", "copper"]
SERIES = [
    ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"],
    ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
     "December"],
    list("ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
    ["first", "second", "third", "fourth", "fifth", "sixth", "seventh"],
]


def chat(text, n_tokens, **right):
    return {"messages": [{"role": "user", "content": text}], "max_tokens": n_tokens, **right}


def text(prompt, **right):
    return {"prompt": prompt, "max_tokens": N_ANSWER, **right}


def arithmetic(generator):
    """Sums, differences, products, and which of two is larger."""
    for i in range(N_DRAWN):
        a, b = generator.randint(2, 60), generator.randint(2, 60)
        c, d = generator.randint(2, 12), generator.randint(2, 12)
        question, number = [
            (f"What is {a} + {b}?", a + b),
            (f"What is {max(a, b)} - {min(a, b)}?", abs(a - b)),
            (f"What is {c} times {d}?", c * d),
            (f"Which number is larger, {a} or {a + d}?" if i % 8 < 4 else f"Which number is larger, {a + d} or {a}?", a + d),
        ][i % 4]
        yield chat(f"{question} Answer with the number only.", N_ANSWER, number=number)


def knowledge(_):
    """The tables above."""
    for country, city in CAPITALS.items():
        yield chat(f"What is the capital of {country}? Answer in one word.", N_ANSWER, words=[city])
    for word, others in OPPOSITES.items():
        yield chat(f'What is the opposite of "{word}"? Answer in one word.', N_ANSWER, words=others.split("|"))
    for symbol, name in SYMBOLS.items():
        yield chat(f"Which chemical element has the symbol {symbol}? Answer in one word.", N_ANSWER, words=[name])
    for what, number in COUNTS.items():
        yield chat(f"How many {what}? Answer with the number only.", N_ANSWER, number=number)
    for question, words in FACTS.items():
        yield chat(f"{question}? Answer in one word.", N_ANSWER, words=words.split("|"))


def completion(generator):
    """Sentences, and series of numbers and names."""
    for prompt, words in TEXTS.items():
        yield text(prompt, words=words.split("|"))
    for i in range(N_DRAWN):
        if i % 2:
            names = generator.choice(SERIES)
            at = generator.randint(0, len(names) - 4)
            yield text(", ".join(names[at:at + 3]) + ",", words=[names[at + 3]])
        else:
            first, step = generator.randint(1, 20), generator.randint(1, 10)
            yield text(", ".join(str(first + step * k) for k in range(5)) + ",", number=first + step * 5)


def form(generator):
    """Questions that ask for a form."""
    for i in range(N_DRAWN):
        word, other = generator.sample(WORDS, 2)
        first = generator.randint(1, 12)
        numbers = [str(first + k) for k in range(4)]
        question, pattern = [
            (f'Write the word "{word}" three times, separated by commas, and nothing else.',
             rf"{word}, ?{word}, ?{word}\.?"),
            (f"Write the numbers from {numbers[0]} to {numbers[-1]}, separated by spaces, and nothing else.",
             " ".join(numbers)),
            (f'Write the word "{word}" in capital letters and nothing else.', rf'"?{word.upper()}"?\.?'),
            (f'Answer only with a JSON object that has one key, "name", whose value is "{word}".',
             rf'\{{\s*"name":\s*"{word}"\s*\}}'),
            (f'Which word comes first in the alphabet, "{word}" or "{other}"? Answer with that word only.',
             rf'"?{min(word, other)}"?\.?'),
            (f'Spell the word "{word}" with a hyphen between the letters and write nothing else.', "-".join(word)),
        ][i % 6]
        yield chat(question, N_FORMAT, pattern=f"(?i){pattern}" if "capital" not in question else pattern)


KINDS = {"arithmetic": (arithmetic, 100), "knowledge": (knowledge, 100), "completion": (completion, 60), "format": (form, 60)}


def items():
    """All items, the same ones in every run."""
    found = []
    for kind, (make, n) in KINDS.items():
        drawn = {str(item.get("messages", item.get("prompt"))): item for item in make(random.Random(f"{SEED} {kind}"))}
        found += [{"id": f"{kind}-{i}", "kind": kind, **item} for i, item in enumerate(list(drawn.values())[:n])]
    return found


def is_right(item, answer):
    if "number" in item:
        numbers = re.findall(r"-?\d+(?:,\d{3})*", answer)
        return bool(numbers) and int(numbers[0].replace(",", "")) == item["number"]
    if "pattern" in item:
        return re.fullmatch(item["pattern"], answer.strip()) is not None
    words = re.findall(r"\w+", answer.lower())
    return any(word.lower() in words for word in item["words"])
