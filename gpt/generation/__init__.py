"""Generates text from a model and a prompt; generate.py is the command.

continuation  the settings of sampling, and the state of one text
decoder       runs a model one token at a time, with weights laid out for it
drawing       draws the next ids from the distribution that the settings leave
sampling      the loop that generates several texts
prompts       reads the prompt and encodes it
streaming     prints text while it is generated
quoting       what a text quotes from the training text: generate.py --compare_with
chat          a conversation: generate.py --chat
"""
