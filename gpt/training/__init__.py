"""The parts of a training run. The story itself, main, the loop and the step, is train.py.

run            Run, the changing parts of a run, and what feeds its step: begin here
starting       starts or resumes a run
strategies     several processes: their shares of a step, their common decisions
compiling      compiles the step
recovery       undoes a failed step, and explains why a run cannot go on
pacing         the seconds of a step
due            the work between two steps
checkpointing  saves a run
validation     the validation loss, and samples
teacher        --teacher
overfit        --overfit
"""
