"""What is said and recorded while a run trains, and how that is read back.

The log line, advice and closing block (monitor); metrics.jsonl and the trackers beside it (trackers); a run's figures
read back for plots and reports (history).
"""
