"""Text for made-up conversations: deterministic, of any length, from the sentences below.

Owns the sentences. They are plain English so that a chat model reads them as it reads a user's text.
"""

import random
from collections.abc import Callable

SENTENCES = (
    "The harbour was quiet that morning, and only two boats had gone out before the fog came in.",
    "She counted the crates twice, wrote the number on the slate, and sent the boy for the foreman.",
    "A pump that has run dry must be filled by hand before it draws water again.",
    "The report says that costs fell by a tenth, but it does not say what was left out.",
    "We agreed to meet on the third day at the bridge, whatever the weather.",
    "The function returns an empty list when the folder is missing, and raises where it cannot be read.",
    "Nobody had painted the door since the war, yet the hinges were oiled every spring.",
    "Please compare the two offers and tell me which one is cheaper over five years.",
    "The test fails only on machines with more than eight cores, and then not every time.",
    "In the north of the valley the ground is too stony for wheat, so they keep sheep.",
    "He asked whether the train would stop at the small station, and the guard shook his head.",
    "Write the names in a column, the amounts beside them, and draw a line under the last.",
    "A short summary is better than a long one, as long as nothing that matters is lost.",
    "The committee will look at the plan again in autumn, when the figures are known.",
    "Every index that can disagree with the files will one day disagree with the files.",
    "They planted the orchard on the slope, where the frost runs off at night.",
    "If the lock is held, say by whom, and do not wait for longer than a minute.",
    "The old map shows a road along the river that nobody remembers.",
    "Her second letter was shorter than the first, and much easier to answer.",
    "The valve opens at six bar, and it should never be opened by hand while it is warm.",
    "What the customer wants is an answer by Friday, not a better answer next month.",
    "Three of the five samples were spoiled in transport and had to be taken again.",
    "The library closes at noon on Saturdays, but the reading room stays open until four.",
    "Rename the file only after its bytes have reached the disk, and then flush the folder.",
    "It took the two brothers eleven years to pay for the mill, and one night to lose it.",
    "You can leave the salt out, but then the dough will rise too fast.",
    "The survey asked nine hundred people, of whom a third did not answer the last question.",
    "From the tower one sees both coasts, and on clear days the islands behind them.",
    "The engine reads what it is given and remembers none of it once the process ends.",
    "A good rule has a reason that fits into one sentence.",
)


def text_of(count: Callable[[str], int], tokens: int, seed: int) -> str:
    """Sentences that `count` says are about `tokens` tokens long, at most; another seed is another text."""
    chosen, words, have = random.Random(seed), [], 0
    words.append(f"Part {seed}.")
    have = count(words[0])
    while have < tokens:
        sentence = chosen.choice(SENTENCES)
        words.extend(sentence.split(" "))
        have += count(" " + sentence)
    while len(words) > 2 and count(" ".join(words)) > tokens:
        del words[-max(1, len(words) // 400) :]
    return " ".join(words)
