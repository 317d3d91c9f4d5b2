"""From a model and a prompt to text; generate.py is the command.

continuation  the settings of sampling, and one text in the making
decoder       a model one token at a time, its weights laid out for that
sampling      the loop that makes several texts, and the distribution that ids are drawn from
prompts       the texts to continue, and their ids
streaming     ids as text while they come; generate.py --interactive
"""
