"""What train.py is made of; train.py itself has the loop."""
